"""WeightedClicks: the sums of ClickMetrics where samples have weights, as whole numbers that merge in any order.

Legend: K bands of weights (`metrics/bands.py`).
"""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from sparsefleet.core.batch import F32, I64
from sparsefleet.metrics.auc import auc_of
from sparsefleet.metrics.bands import BITS, LOWEST, TOP, WIDTH, banded

FINE = 8
"""Losses and predictions are rounded to 2**-FINE of the last bit of their sample's weight."""
AT_ONCE = 2**18
"""Samples whose sums fit 64 bits, whatever their losses."""
CARRIED = 32
"""Bits of a histogram's number that stay in its band; a multiple of WIDTH."""
ROOM = 2 ** (62 - BITS)
"""Samples that a band can take before its numbers are carried."""
OLD_PARTS = 20
"""Releases before this counted all weights in units of 2**-OLD_PARTS."""
_NAMES = ("log_loss", "predicted", "correct")


def normalized(log_loss: float, clicks: float) -> float:
    """Log loss over that of predicting the share of clicks for every sample; below 1 something was learnt."""
    if not 0 < clicks < 1:
        return math.nan
    return log_loss / -(clicks * math.log(clicks) + (1 - clicks) * math.log(1 - clicks))


class WeightedClicks:
    def __init__(self, buckets: int) -> None:
        self._buckets = buckets
        self._bands: dict[int, I64] = {}
        """[2 * buckets] each, in the band's unit: weights by bucket, of samples without a click, then of those with."""
        self._counted = 0
        """Samples that may be in one number of a band."""
        self.log_loss = self.predicted = self.correct = 0
        """In units of 2**-LOWEST; the first two in 2**-FINE of that."""

    def count(self, probabilities: F32, labels: F32, weights: F32) -> None:
        for at in range(0, len(weights), AT_ONCE):
            part = slice(at, at + AT_ONCE)
            self._count(probabilities[part], labels[part], weights[part])

    def _count(self, probabilities: F32, labels: F32, weights: F32) -> None:
        clicks = labels == 1
        good = (probabilities >= 0) & (probabilities <= 1) & (clicks | (labels == 0))
        good &= np.isfinite(weights) & (weights > 0)
        if not good.all():
            probabilities, clicks, weights = probabilities[good], clicks[good], weights[good]
        if not len(weights):
            return
        self._make_room(len(weights))
        p, exact = probabilities.astype(np.float64), banded(weights)
        parts = exact.parts()
        place = (p * (self._buckets - 1)).astype(np.int64) + clicks * self._buckets
        q = np.minimum(np.maximum(p, 1e-7), 1 - 1e-7)
        fine = np.ldexp(exact.digits, FINE)
        losses = np.rint(-np.log(np.where(clicks, q, 1 - q)) * fine).astype(np.int64) << exact.shift
        predicted = np.rint(p * fine).astype(np.int64) << exact.shift
        right = parts * ((p > 0.5) == clicks)
        low, high = int(exact.band.min()), int(exact.band.max())
        for band in (low,) if low == high else np.unique(exact.band).tolist():
            mine = slice(None) if low == high else exact.band == band
            np.add.at(self._band(band), place[mine], parts[mine])
            shift = WIDTH * band
            self.log_loss += int(losses[mine].sum()) << shift
            self.predicted += int(predicted[mine].sum()) << shift
            self.correct += int(right[mine].sum()) << shift

    def _band(self, band: int) -> I64:
        found = self._bands.get(band)
        if found is None:
            found = self._bands[band] = np.zeros(2 * self._buckets, np.int64)
        return found

    def _make_room(self, samples: int) -> None:
        if self._counted + samples > ROOM:
            self._carry()
        self._counted += samples

    def _carry(self) -> None:
        """Hand the upper bits of all numbers on to higher bands, as in long addition."""
        band = min(self._bands, default=TOP)
        while band <= max(self._bands, default=0):
            numbers = self._bands.get(band)
            if numbers is not None and (numbers >> CARRIED).any():
                self._band(band + CARRIED // WIDTH)[:] += numbers >> CARRIED
                numbers &= 2**CARRIED - 1
            band += 1
        self._counted = 2 ** (CARRIED - BITS) + 1

    def merge(self, other: Self) -> None:
        if self._counted + other._counted > ROOM:
            self._carry()
            other._carry()
        self._counted += other._counted
        for band, numbers in other._bands.items():
            self._band(band)[:] += numbers
        for name in _NAMES:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def to_dict(self) -> dict[str, Any]:
        self._carry()
        bands = sorted(self._bands)
        raw = b"".join(self._bands[band].astype("<i8").tobytes() for band in bands)
        packed = base64.b64encode(zlib.compress(raw)).decode()
        return {"bands": bands, "histograms": packed, **{name: getattr(self, name) for name in _NAMES}}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], buckets: int) -> Self:
        made = cls(buckets)
        raw = np.frombuffer(zlib.decompress(base64.b64decode(data["histograms"])), "<i8").astype(np.int64)
        scalars = {name: int(data[name]) for name in _NAMES}
        if "bands" in data:
            bands = [int(band) for band in data["bands"]]
            if bands != sorted(set(bands)) or not all(0 < band <= TOP for band in bands):
                raise ValueError(f"bands {bands}")
            made._bands = dict(zip(bands, raw.reshape(len(bands), 2 * buckets).copy(), strict=True))
        else:
            # Of a release before: one unit for all weights, and samples with a click first.
            clicked, others = raw.reshape(2, buckets)
            band, shift = divmod(LOWEST - OLD_PARTS, WIDTH)
            numbers = np.concatenate([others, clicked])
            up = WIDTH - shift  # what does not fit below the next band goes there
            made._bands = {band: (numbers & (2**up - 1)) << shift, band + 1: numbers >> up}
            scalars = {
                name: number << (LOWEST - OLD_PARTS + (0 if name == "correct" else FINE))
                for name, number in scalars.items()
            }
        if (
            any(((numbers < 0) | (numbers > 2**62)).any() for numbers in made._bands.values())
            or min(scalars.values()) < 0
        ):
            raise ValueError("sums of weights are out of range: releases before counted large weights wrongly")
        for name, number in scalars.items():
            setattr(made, name, number)
        made._carry()
        return made

    def values(self) -> dict[str, float]:
        # Python's whole numbers: exact over all bands. As floats none is out of range, not even their products.
        total = np.zeros(2 * self._buckets, object)
        for band, numbers in self._bands.items():
            total += numbers.astype(object) << (WIDTH * band)
        negative, positive = total[: self._buckets], total[self._buckets :]
        clicks, others = int(positive.sum()), int(negative.sum())
        weight = clicks + others
        log_loss = self.log_loss / (weight << FINE) if weight else math.nan
        return {
            "auc": auc_of(positive.astype(np.float64), negative.astype(np.float64)),
            "logloss": log_loss,
            "normalized_entropy": normalized(log_loss, clicks / weight if weight else math.nan),
            "accuracy": self.correct / weight if weight else math.nan,
            "click_ratio": self.predicted / (clicks << FINE) if clicks else math.nan,
        }
