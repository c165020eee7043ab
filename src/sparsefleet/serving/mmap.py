"""Rows from the bundle's own mapped files, which are looked after: bundles are never changed in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from sparsefleet.core.batch import F32, U64
from sparsefleet.core.errors import BundleError
from sparsefleet.export.bundle import Bundle
from sparsefleet.export.kernels.bundle_rows import Found
from sparsefleet.serving.source import SourceError, SparseSource

P = ParamSpec("P")
T = TypeVar("T")


class MappedSource(SparseSource):
    def __init__(self, bundle: Bundle) -> None:
        if len(bundle.tables) < len(bundle.manifest.tables):
            raise BundleError(f"{bundle.origin}: it was opened without its rows: they must come from Redis")
        self._bundle, self._tables = bundle, bundle.tables
        self._damage = ""

    def rows(self, table: str, keys: U64) -> tuple[F32, Found]:
        if self._damage:
            raise SourceError(self._damage)
        try:
            return self._tables[table].lookup(keys)
        except BundleError as error:
            raise SourceError(str(error)) from error

    def over(self, score: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
        """What a `MappedNetwork` over these files finds, if they are whole."""
        if self._damage:
            raise SourceError(self._damage)
        try:
            try:
                return score(*given, **named)
            finally:
                for file in self._tables.values():
                    file.check_whole()
        except BundleError as error:
            raise SourceError(str(error)) from error

    def look(self) -> list[str]:
        """Whether a rows file was changed in place. One that was only touched has its checksum still."""
        if self._damage:
            return []
        for table in self._bundle.manifest.tables:
            rows = self._tables[table.name]
            change = rows.changed()
            if not change:
                continue
            if "cut short" not in change:
                state = rows.checksum()
                if state == self._bundle.manifest.file(table.path).checksum:
                    rows.settle()
                    continue
            self._damage = (
                f"{change}; version {self._bundle.name} gives no more scores. Bundles are never changed in place: "
                "copy it anew under another name, and load that"
            )
            return [self._damage]
        return []
