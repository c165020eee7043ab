"""Rows from the bundle's own mapped files."""

from __future__ import annotations

from sparsefleet.core.batch import F32, U64
from sparsefleet.export.bundle import Bundle
from sparsefleet.export.kernels.bundle_rows import Found
from sparsefleet.serving.source import SparseSource


class MappedSource(SparseSource):
    def __init__(self, bundle: Bundle) -> None:
        self._tables = bundle.tables

    def rows(self, table: str, keys: U64) -> tuple[F32, Found]:
        return self._tables[table].lookup(keys)
