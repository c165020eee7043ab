"""FallbackSource: rows from Redis, and from the bundle's own files wherever Redis cannot give them.

Both hold the same rows of the same version, so nobody can tell from a score where its rows came from.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from sparsefleet.core.batch import F32, U64
from sparsefleet.export.bundle import Bundle
from sparsefleet.export.kernels.bundle_rows import Found
from sparsefleet.serving.mmap import MappedSource
from sparsefleet.serving.source import Fetch, NotPublishedError, OpenSource, SourceError, SparseSource

RETRY_SECONDS = 2.0
"""How often a Redis that could not be opened is tried again."""


class FallbackSource(SparseSource):
    def __init__(self, bundle: Bundle, first: OpenSource) -> None:
        self._bundle, self._open, self._file = bundle, first, MappedSource(bundle)
        self._lock = threading.Lock()
        self._fetches = 0
        self._news: list[str] = []
        self._away = False
        self._retry_at = 0.0
        self._first: SparseSource | None = None
        self._closed = False
        self._try_open()

    def rows(self, table: str, keys: U64) -> tuple[F32, Found]:
        return self.fetch([(table, keys)])[0]

    def fetch(self, asked: Sequence[tuple[str, U64]]) -> list[tuple[F32, Found]]:
        return self._either(asked, None if self._first is None else self._first.fetch, self._file.fetch)

    def probe(self, asked: Sequence[tuple[str, U64]]) -> list[tuple[F32, Found]]:
        return self._either(asked, None if self._first is None else self._first.probe, self._file.probe)

    def look(self) -> list[str]:
        if self._first is None and time.monotonic() >= self._retry_at:
            self._try_open()
        with self._lock:
            news, self._news = self._news, []
        return [*news, *self._file.look()]

    def stats(self) -> Mapping[str, Any]:
        first = {} if self._first is None else self._first.stats()
        with self._lock:
            return {**first, "fallback_fetches": self._fetches, "fallback": self._away}

    def close(self) -> None:
        with self._lock:
            self._closed, first = True, self._first
        if first is not None:
            first.close()
        self._file.close()

    def _either(self, asked: Sequence[tuple[str, U64]], first: Fetch | None, file: Fetch) -> list[tuple[F32, Found]]:
        if first is not None:
            try:
                found = first(asked)
            except SourceError as error:
                self._is_away(str(error))
            else:
                self._is_back()
                return found
        with self._lock:
            self._fetches += 1
        return file(asked)

    def _is_away(self, why: str) -> None:
        with self._lock:
            if not self._away:
                self._news.append(f"{why}; rows of version {self._bundle.name} come from its own file until it is back")
            self._away = True

    def _is_back(self) -> None:
        if self._away:
            with self._lock:
                if self._away:
                    self._news.append(f"rows of version {self._bundle.name} come from Redis again")
                self._away = False

    def _try_open(self) -> None:
        try:
            opened = self._open(self._bundle)
        except (SourceError, NotPublishedError) as error:
            self._retry_at = time.monotonic() + RETRY_SECONDS
            self._is_away(str(error))
            return
        with self._lock:
            if not self._closed:
                self._first = opened
                return
        opened.close()
