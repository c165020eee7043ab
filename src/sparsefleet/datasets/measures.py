"""Measuring numbers of the training rows: bounds of quantile buckets, minima, maxima, means and deviations.

Both give the same whoever measures which rows, to the last bit. Bounds are exact: numbers are counted as `min_count`
counts values (`value_counts.py`), by 64-bit codes that rise as they do. Moments are floats, whose sums depend on their
order: each item of the input has moments of its own, which are put together in the order of the items.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sparsefleet.core.batch import I64, U64
from sparsefleet.core.errors import DataError
from sparsefleet.core.schema import DenseFeature
from sparsefleet.datasets.value_counts import counted_values

F64 = npt.NDArray[np.float64]

_SIGN = np.uint64(1 << 63)


def codes_of(numbers: F64) -> U64:
    """Whole numbers that rise as the numbers do; 0.0 and -0.0 are one."""
    bits = (numbers + 0.0).view(np.uint64)
    return np.where(bits & _SIGN, ~bits, bits | _SIGN)


def numbers_of(codes: U64) -> F64:
    return np.where(codes & _SIGN, codes ^ _SIGN, ~codes).view(np.float64)


def equal_buckets(tables: Iterable[tuple[U64, I64]], total: int, buckets: int) -> list[float]:
    """Rising bounds of so many buckets with about equally many of the `total` numbers: fewer where many are equal.

    `tables`: codes and how often each occurs, in rising order, part by part. Of the places where sorted numbers can be
    cut, between two that differ, each bound takes the one nearest to where it should be; of two as near, the first.
    """
    wanted = np.arange(1, buckets, dtype=np.int64) * total  # in parts of 1 / buckets of a number
    off = np.full(buckets - 1, np.iinfo(np.int64).max)
    bounds = np.zeros(buckets - 1, np.uint64)
    below = 0
    for codes, counts in tables:
        starts = below + np.cumsum(counts) - counts
        below += int(counts.sum())
        codes, starts = codes[starts > 0], starts[starts > 0] * buckets
        if not len(starts):
            continue
        behind = np.searchsorted(starts, wanted)
        for place in (np.maximum(behind - 1, 0), np.minimum(behind, len(starts) - 1)):
            distance = np.abs(starts[place] - wanted)
            nearer = distance < off
            off[nearer], bounds[nearer] = distance[nearer], codes[place[nearer]]
    found = bounds[off < np.iinfo(np.int64).max]
    return [float(number) for number in numbers_of(np.unique(found))]


@dataclass(frozen=True, slots=True)
class Moments:
    """Of some numbers."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0
    """Sum of the squared distances from the mean."""
    least: float = math.inf
    greatest: float = -math.inf

    @staticmethod
    def of(numbers: F64) -> Moments:
        """None of them is NaN."""
        if not len(numbers):
            return Moments()
        with np.errstate(over="ignore", invalid="ignore"):
            mean = float(numbers.mean())
            squares = float(np.square(numbers - mean).sum())
        return Moments(len(numbers), mean, squares, float(numbers.min()), float(numbers.max()))

    @staticmethod
    def from_plain(fields: Sequence[float]) -> Moments:
        """As an item's answer holds them."""
        return Moments(int(fields[0]), *fields[1:])

    def plus(self, other: Moments) -> Moments:
        """Of both together (Chan, Golub and LeVeque)."""
        if not self.count or not other.count:
            return self if self.count else other
        count = self.count + other.count
        share = other.count / count
        apart = other.mean - self.mean
        return Moments(
            count,
            self.mean + apart * share,
            self.squares + other.squares + apart * apart * share * self.count,
            min(self.least, other.least),
            max(self.greatest, other.greatest),
        )

    @property
    def deviation(self) -> float:
        """Of all that there are: divided by their number."""
        return math.sqrt(self.squares / self.count) if self.count else 0.0


def scale(feature: DenseFeature, moments: Moments) -> tuple[float, float, str]:
    """minimum, diff, and a remark where they are not what one would expect."""
    what = f"dense feature {feature.name!r}"
    if not moments.count:
        return 0.0, 1.0, f"{what}: no training row has a number; minimum is 0 and diff 1"
    least, greatest = moments.least, moments.greatest
    if least == greatest:
        return least, 1.0, f"{what}: all numbers of the training rows are {least:g}; they become 0 (diff is 1)"
    standard = feature.measure == "standard"
    minimum, diff = (moments.mean, moments.deviation) if standard else (least, greatest - least)
    if standard and diff == 0:  # too near to each other to be squared
        diff = greatest - least
    if not math.isfinite(minimum) or not math.isfinite(diff):
        raise DataError(
            f"{what}: its numbers go from {least:g} to {greatest:g}, further than can be measured; say clip = [low, "
            'high] or function = "log1p" in the schema'
        )
    return minimum, diff, ""


def bounds_of(folder: Path, slot: int, buckets: int, name: str) -> tuple[tuple[float, ...], str]:
    """Bounds from the numbers counted in the folder, and a remark where there are none."""
    total, tables = counted_values(folder, slot)
    bounds = equal_buckets(tables, total, buckets)
    if not total:
        return (), f"slot {name!r}: no training row has a number, so there is one bucket"
    if not bounds:
        return (), f"slot {name!r}: all numbers of the training rows are equal, so there is one bucket"
    return tuple(bounds), ""
