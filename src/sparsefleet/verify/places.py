"""The places that are compared. The checkpoint is what all others are measured by; see `offline.py`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sparsefleet.core.batch import F32
from sparsefleet.export.bundle import Bundle
from sparsefleet.serving.mmap import MappedSource
from sparsefleet.serving.predictor import Predictor
from sparsefleet.serving.source import SparseSource
from sparsefleet.verify.data_rows import RawRow

CHECKPOINT, BUNDLE, HTTP, REDIS = "checkpoint", "bundle", "http", "redis"


class ScoringPlace(ABC):
    """Whoever scores raw rows."""

    @abstractmethod
    def scores(self, rows: Sequence[RawRow]) -> F32:
        """Probabilities [B]."""


class PredictorPlace(ScoringPlace):
    """A bundle in this process, with rows from its own files or from elsewhere."""

    def __init__(self, bundle: Bundle, source: SparseSource) -> None:
        self._predictor = Predictor(bundle, source=source)

    def scores(self, rows: Sequence[RawRow]) -> F32:
        return self._predictor.predict(rows)


@dataclass(frozen=True, slots=True)
class RowsPlace:
    """Whoever holds sparse rows."""

    source: SparseSource
    count: Callable[[str], int]
    """Rows of a table that are there."""


def bundle_rows(bundle: Bundle) -> RowsPlace:
    return RowsPlace(MappedSource(bundle), lambda table: len(bundle.tables[table]))
