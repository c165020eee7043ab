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
from sparsefleet.serving.kernels.request import PlainRequests
from sparsefleet.serving.kernels.tower import BodiesScored, NetworkPlan
from sparsefleet.serving.mmap import MappedSource
from sparsefleet.serving.source import BodyScorer, Fetch, NotPublishedError, OpenSource, SourceError, SparseSource

RETRY_SECONDS = 2.0
"""How often a Redis that could not be opened is tried again."""


class FallbackSource(SparseSource):
    def __init__(self, bundle: Bundle, first: OpenSource) -> None:
        self._bundle, self._open, self._file = bundle, first, MappedSource(bundle)
        self._lock = threading.Lock()
        self._fetches = 0
        self._away = self._told = False
        """Whether Redis could not give rows when it was last asked, and whether that was told."""
        self._why = ""
        """Of what happened since the last look."""
        self._retry_at = 0.0
        self._first: SparseSource | None = None
        self._plan: NetworkPlan | None = None
        self._scorer: BodyScorer | None = None
        """Of the first, once it is open and the plan is known."""
        self._closed = False
        self._try_open()

    def rows(self, table: str, keys: U64) -> tuple[F32, Found]:
        return self.fetch([(table, keys)])[0]

    def fetch(self, asked: Sequence[tuple[str, U64]]) -> list[tuple[F32, Found]]:
        return self._either(asked, None if self._first is None else self._first.fetch, self._file.fetch)

    def probe(self, asked: Sequence[tuple[str, U64]]) -> list[tuple[F32, Found]]:
        return self._either(asked, None if self._first is None else self._first.probe, self._file.probe)

    def body_scorer(self, plan: NetworkPlan) -> BodyScorer | None:
        with self._lock:
            self._plan = plan
            if self._first is not None:
                self._scorer = self._first.body_scorer(plan)
        return self._score_bodies

    @property
    def merges(self) -> bool:
        first = self._first
        return first is not None and not self._away and first.merges

    def look(self) -> list[str]:
        if self._first is None and time.monotonic() >= self._retry_at:
            self._try_open()
        return [*self._news(), *self._file.look()]

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

    def _news(self) -> list[str]:
        """A Redis that has lost its rows fails or not with every request, by what the cache holds: told once a look."""
        with self._lock:
            news, where = [], f"rows of version {self._bundle.name} come from"
            if self._why and not self._told:
                news.append(f"{self._why}; {where} its own file until it is back")
                self._told = True
            if self._told and not self._away:
                news.append(f"{where} Redis again")
                self._told = False
            self._why = ""
            return news

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

    def _score_bodies(
        self, requests: PlainRequests, bodies: Sequence[bytes], most: Sequence[int]
    ) -> BodiesScored | None:
        scorer = self._scorer
        if scorer is None:
            return None
        try:
            found = scorer(requests, bodies, most)
        except SourceError as error:
            self._is_away(str(error))
            return None  # the long way takes the rows from the file
        if found is not None:
            self._is_back()
        return found

    def _is_away(self, why: str) -> None:
        with self._lock:
            if not self._away:
                self._why = why
            self._away = True

    def _is_back(self) -> None:
        if self._away:
            with self._lock:
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
                self._scorer = None if self._plan is None else opened.body_scorer(self._plan)
                return
        opened.close()
