"""Calibration: are as many clicks predicted as there are, among samples of low and of high predictions?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from sparsefleet.core.batch import Batch
from sparsefleet.core.errors import ConfigError
from sparsefleet.metrics.base import PROBABILITY, Metric, Outputs
from sparsefleet.metrics.grouped import BUCKETS, GroupedClicks
from sparsefleet.metrics.labels import first_label


class Calibration(Metric):
    """Samples in so many parts of equal size, by their predictions, the lowest first; with weights, of equal weight.

    `calibration_1` … : predicted ÷ actual clicks of each part; 1 is right, NaN where a part has no click.
    `calibration_error`: how far predicted and actual rates of the parts are apart, in the mean over samples.
    """

    name = "calibration"
    in_training = False
    less_is_better = ("calibration_error",)

    def __init__(self, parts: int = 10) -> None:
        if not 1 <= parts <= BUCKETS:
            raise ConfigError(f"parts={parts} must be 1 to {BUCKETS}")
        self._parts = parts
        self._sums = GroupedClicks()

    def update(self, batch: Batch, outputs: Outputs) -> None:
        # One group, which is never left out: the sums of each bucket of predictions.
        one = np.zeros(len(batch), np.uint64)
        self._sums.count(one, outputs[PROBABILITY], first_label(batch.labels), batch.weights)

    def merge(self, other: Self) -> None:
        if self._parts != other._parts:
            raise ConfigError(f"calibrations of {self._parts} and {other._parts} parts cannot be merged")
        self._sums.merge(other._sums)

    def to_dict(self) -> dict[str, Any]:
        return {"parts": self._parts, **self._sums.to_dict()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        made = cls(int(data["parts"]))
        made._sums = GroupedClicks.from_dict(data)
        return made

    def values(self) -> dict[str, float]:
        samples, clicks, predicted = self._sums.by_bucket()
        ends = np.cumsum(samples)
        total = float(ends[-1]) if len(ends) else 0.0
        # A bucket belongs to the part that its middle sample is in: buckets are never divided.
        part = np.minimum(((ends - samples / 2) * self._parts / total).astype(int), self._parts - 1) if total else ends
        told, error = dict[str, float](), 0.0
        for number in range(self._parts):
            mine = part == number
            actual, expected = float(clicks[mine].sum()), float(predicted[mine].sum())
            told[f"calibration_{number + 1}"] = expected / actual if actual else math.nan
            error += abs(expected - actual)
        return {"calibration_error": error / total if total else math.nan, **told}
