"""Metric: the contract of what a run measures, besides its loss. Implement it and hand it to `Trainer(metrics=[…])`.

Legend: B samples of a batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy.typing as npt

from sparsefleet.core.batch import Batch

PROBABILITY = "probability"
"""The output that every model has: [B] click probabilities, float32."""

Outputs = Mapping[str, npt.NDArray[Any]]
"""A model's outputs by name: `probability`, and the entries of the dict where the model returns one. Not to be changed;
copy what you keep.
"""


class Metric(ABC):
    """Counts over samples, in sums that can be merged.

    A trainer deep-copies the metric that it is given for each run and each evaluation, and counts into the copy: give
    it one that has counted nothing. One thread at a time calls a metric.
    """

    name: str
    """What checkpoints keep it under; unique among a trainer's metrics."""
    in_training: bool = True
    """Whether it counts in training too. One whose sums are large should not: every checkpoint would hold them."""
    more_is_better: Sequence[str] = ()
    """Names of its values of which more is better, as of an AUC: what validation may go by."""
    less_is_better: Sequence[str] = ()
    """And of which less is, as of an error. Of all others neither is, as of a count."""

    @abstractmethod
    def update(self, batch: Batch, outputs: Outputs) -> None:
        """Count one batch. In training, outputs are from before the update; a missing label is NaN."""

    @abstractmethod
    def merge(self, other: Self) -> None:
        """Add what another trainer, or the run before a resume, has counted; `other` stays as it is."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """All of it as plain JSON data, exactly: for checkpoints, and for merging across processes."""

    @classmethod
    @abstractmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The metric that `to_dict` described, settings included."""

    @abstractmethod
    def values(self) -> dict[str, float]:
        """What is shown, by name; NaN where there is nothing to tell yet. The names never change."""
