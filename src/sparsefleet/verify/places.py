"""The places that are compared. All are measured against the checkpoint: see `offline.py`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sparsefleet.core.batch import F32
from sparsefleet.export.bundle import Bundle
from sparsefleet.serving.mmap import MappedSource
from sparsefleet.serving.predictor import Predictor, Scores
from sparsefleet.serving.source import SparseSource
from sparsefleet.verify.http_client import ONLY
from sparsefleet.verify.samples import RawSample

ByLabel = Mapping[str, F32]
"""[B] of each label; of a model of one label, under `ONLY`."""

CHECKPOINT, BUNDLE, HTTP, REDIS = "checkpoint", "bundle", "http", "redis"


class ScoringPlace(ABC):
    """A place that scores raw samples."""

    @abstractmethod
    def scores(self, samples: Sequence[RawSample]) -> ByLabel:
        """Probabilities [B] by label."""


class PredictorPlace(ScoringPlace):
    """A bundle in this process, with rows from its own files or from elsewhere."""

    def __init__(self, bundle: Bundle, source: SparseSource) -> None:
        self._predictor = Predictor(bundle, source=source)

    def scores(self, samples: Sequence[RawSample]) -> ByLabel:
        return by_label(self._predictor.score(self._predictor.parser.samples(samples)))


def by_label(scores: Scores) -> ByLabel:
    return dict(scores.by_label) or {ONLY: scores.probabilities}


@dataclass(frozen=True, slots=True)
class RowsPlace:
    """A place that holds rows of tables."""

    source: SparseSource
    count: Callable[[str], int]
    """Of the rows that the place holds of a table."""


def bundle_rows(bundle: Bundle) -> RowsPlace:
    return RowsPlace(MappedSource(bundle), lambda table: len(bundle.tables[table]))
