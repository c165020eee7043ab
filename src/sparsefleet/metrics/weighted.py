"""WeightedClicks: the sums of ClickMetrics where samples have weights, as whole numbers that merge in any order."""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from sparsefleet.core.batch import F32
from sparsefleet.metrics.auc import auc_of

PARTS = 2**20
"""Of a weight of 1."""
_NAMES = ("log_loss", "predicted", "correct")


def normalized(log_loss: float, clicks: float) -> float:
    """Log loss over that of predicting the share of clicks for every sample; below 1 something was learnt."""
    if not 0 < clicks < 1:
        return math.nan
    return log_loss / -(clicks * math.log(clicks) + (1 - clicks) * math.log(1 - clicks))


class WeightedClicks:
    def __init__(self, buckets: int) -> None:
        self.positive, self.negative = np.zeros(buckets, np.int64), np.zeros(buckets, np.int64)
        self.log_loss = self.predicted = self.correct = 0

    def count(self, probabilities: F32, labels: F32, weights: F32) -> None:
        good = (probabilities >= 0) & (probabilities <= 1) & ((labels == 0) | (labels == 1))
        good &= np.isfinite(weights) & (weights >= 0)
        p, clicked = probabilities[good].astype(np.float64), labels[good] == 1
        exact = weights[good].astype(np.float64)
        parts = np.rint(exact * PARTS).astype(np.int64)
        bucket = (p * (len(self.positive) - 1)).astype(np.int64)
        np.add.at(self.positive, bucket[clicked], parts[clicked])
        np.add.at(self.negative, bucket[~clicked], parts[~clicked])
        q = np.clip(p, 1e-7, 1 - 1e-7)
        losses = -np.log(np.where(clicked, q, 1 - q)) * exact
        self.log_loss += int(np.rint(losses * PARTS).astype(np.int64).sum())
        self.predicted += int(np.rint(p * exact * PARTS).astype(np.int64).sum())
        self.correct += int(parts[(p > 0.5) == clicked].sum())

    def merge(self, other: Self) -> None:
        self.positive += other.positive
        self.negative += other.negative
        for name in _NAMES:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def to_dict(self) -> dict[str, Any]:
        raw = np.stack([self.positive, self.negative]).astype("<i8").tobytes()
        packed = base64.b64encode(zlib.compress(raw)).decode()
        return {"histograms": packed, **{name: getattr(self, name) for name in _NAMES}}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], buckets: int) -> Self:
        made = cls(buckets)
        histograms = np.frombuffer(zlib.decompress(base64.b64decode(data["histograms"])), "<i8").reshape(2, buckets)
        made.positive[:], made.negative[:] = histograms
        for name in _NAMES:
            setattr(made, name, int(data[name]))
        return made

    def values(self) -> dict[str, float]:
        clicks, others = int(self.positive.sum()), int(self.negative.sum())
        weight = clicks + others
        log_loss = self.log_loss / weight if weight else math.nan
        return {
            "auc": auc_of(self.positive, self.negative),
            "logloss": log_loss,
            "normalized_entropy": normalized(log_loss, clicks / weight if weight else math.nan),
            "accuracy": self.correct / weight if weight else math.nan,
            "click_ratio": self.predicted / clicks if clicks else math.nan,
        }
