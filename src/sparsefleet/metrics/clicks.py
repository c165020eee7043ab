"""Metrics of click predictions, over everything since the last reset and over the last few batches."""

from __future__ import annotations

import base64
import math
import zlib
from collections import deque
from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from sparsefleet.core.batch import F32, Batch
from sparsefleet.core.errors import ConfigError
from sparsefleet.kernels.rows import CLICK_PARTS, count_clicks
from sparsefleet.metrics.auc import auc_of
from sparsefleet.metrics.base import PROBABILITY, Metric, Outputs
from sparsefleet.metrics.weighted import WeightedClicks, normalized

NUM_THRESHOLDS = 2**12
SLIDE_STEPS = 20
_IN_FLOATS = {"log_loss": "log_loss_sum", "predicted": "predicted"}


class ClickMetrics(Metric):
    """Global AUC, log loss, accuracy, predicted/actual click ratio.

    Sums of whole numbers only: parts of a data set can be merged, and in whichever order and batches rows were counted,
    every digit is the same.
    """

    name = "clicks"
    more_is_better = ("auc", "accuracy")
    less_is_better = ("logloss", "normalized_entropy")

    def __init__(self, num_thresholds: int = NUM_THRESHOLDS) -> None:
        if num_thresholds < 1:
            raise ConfigError(f"num_thresholds={num_thresholds} must be 1 or above")
        self.positive = np.zeros(num_thresholds + 1, np.int64)
        self.negative = np.zeros(num_thresholds + 1, np.int64)
        self.log_loss = self.predicted = 0
        """In parts; see kernels/rows.py."""
        self.clicks = self.correct = self.bad = 0
        self.weighted: WeightedClicks | None = None
        """The same sums by weight, once a sample had one: then values are theirs."""

    def update(self, batch: Batch, outputs: Outputs) -> None:
        self.count(outputs[PROBABILITY], batch.labels, batch.weights)

    def count(self, probabilities: F32, labels: F32, weights: F32 | None = None) -> None:
        """[B] each; a label that is NaN counts as `bad`. Of several labels [B, L] the first counts."""
        labels = labels if labels.ndim == 1 else labels[:, 0]
        # The kernel takes no strided arrays, such as a column of a model's output.
        probabilities, labels = np.ascontiguousarray(probabilities), np.ascontiguousarray(labels)
        sums = count_clicks(probabilities, labels, self.positive, self.negative)
        self.log_loss += sums.log_loss
        self.predicted += sums.predicted
        self.clicks += sums.clicks
        self.correct += sums.correct
        self.bad += sums.bad
        if weights is not None:
            if self.weighted is None:
                self.weighted = WeightedClicks(len(self.positive))
            self.weighted.count(probabilities, labels, weights)

    def merge(self, other: Self) -> None:
        if len(other.positive) != len(self.positive):
            raise ConfigError(
                f"metrics of {len(other.positive) - 1} and {len(self.positive) - 1} thresholds cannot be merged"
            )
        self.positive += other.positive
        self.negative += other.negative
        self.log_loss += other.log_loss
        self.predicted += other.predicted
        self.clicks += other.clicks
        self.correct += other.correct
        self.bad += other.bad
        if other.weighted is not None:
            if self.weighted is None:
                self.weighted = WeightedClicks(len(self.positive))
            self.weighted.merge(other.weighted)

    def to_dict(self) -> dict[str, Any]:
        histograms = np.stack([self.positive, self.negative]).astype("<i8").tobytes()
        return {
            "histograms": base64.b64encode(zlib.compress(histograms)).decode(),
            "log_loss_parts": self.log_loss,
            "predicted_parts": self.predicted,
            "clicks": self.clicks,
            "correct": self.correct,
            "bad": self.bad,
            **({} if self.weighted is None else {"weighted": self.weighted.to_dict()}),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        try:
            if "log_loss_sum" in data:  # of a checkpoint of release 0.1
                parts = {f"{name}_parts": round(float(data[old]) * CLICK_PARTS) for name, old in _IN_FLOATS.items()}
                data = {**data, **parts}
            raw = zlib.decompress(base64.b64decode(data["histograms"]))
            histograms = np.frombuffer(raw, "<i8").reshape(2, -1)
            metrics = cls(histograms.shape[1] - 1)
            metrics.positive[:], metrics.negative[:] = histograms
            metrics.log_loss, metrics.predicted = int(data["log_loss_parts"]), int(data["predicted_parts"])
            metrics.clicks, metrics.correct = int(data["clicks"]), int(data["correct"])
            metrics.bad = int(data["bad"])
            if "weighted" in data:
                metrics.weighted = WeightedClicks.from_dict(data["weighted"], len(metrics.positive))
            return metrics
        except (KeyError, TypeError, ValueError, OverflowError, zlib.error) as error:
            raise ConfigError(f"these are not metrics that to_dict wrote: {error!r}") from error

    @property
    def rows(self) -> int:
        """Rows counted; those without a label, or whose prediction is not a number, are not (see `bad`)."""
        return int(self.positive.sum() + self.negative.sum())

    @property
    def only_class(self) -> int | None:
        """The label that all rows have, 0 or 1; None: there are both, or no rows."""
        if not self.rows or (self.positive.any() and self.negative.any()):
            return None
        return int(self.positive.any())

    def values(self) -> dict[str, float]:
        rows = self.rows
        if self.weighted is not None:
            return {**self.weighted.values(), "rows": rows}
        log_loss = self.log_loss / rows / CLICK_PARTS if rows else math.nan
        return {
            "auc": auc_of(self.positive, self.negative),
            "logloss": log_loss,
            "normalized_entropy": normalized(log_loss, self.clicks / rows if rows else math.nan),
            "accuracy": self.correct / rows if rows else math.nan,
            "click_ratio": self.predicted / self.clicks / CLICK_PARTS if self.clicks else math.nan,
            "rows": rows,
        }


class WindowMetrics:
    """AUC of the pooled histograms of the last `slide_steps` batches. Pools only when asked."""

    def __init__(self, num_thresholds: int = NUM_THRESHOLDS, slide_steps: int = SLIDE_STEPS) -> None:
        if slide_steps < 1:
            raise ConfigError(f"slide_steps={slide_steps} must be 1 or above")
        self.num_thresholds = num_thresholds
        self._last: deque[tuple[F32, F32]] = deque(maxlen=slide_steps)

    def update(self, probabilities: F32, labels: F32) -> None:
        self._last.append((probabilities, labels))

    def auc(self) -> float:
        window = ClickMetrics(self.num_thresholds)
        for probabilities, labels in tuple(self._last):
            window.count(probabilities, labels)
        return auc_of(window.positive, window.negative)
