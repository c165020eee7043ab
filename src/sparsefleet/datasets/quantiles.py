"""Quantiles of a stream of numbers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]


class Quantiles:
    """Counts the values seen; exact while at most `limit` of them differ, then neighbours are merged.

    Counts and codes have far fewer different values than rows, so in practice the answers are exact. Each
    merge moves a quantile by at most 4 / limit of the ranks seen by then, always upwards, and at least 3/4 ·
    limit new values come between two merges: so even 1,000 million different values move it by less than 0.3
    % of the ranks.
    """

    def __init__(self, limit: int = 1 << 20) -> None:
        self._limit = limit
        self._values = np.empty(0)
        self._counts = np.empty(0, np.int64)
        self._waiting: list[F64] = []
        self._waiting_size = 0
        self.minimum, self.maximum = float("inf"), float("-inf")
        self.exact = True

    def add(self, values: F64) -> None:
        """NaN must not be among the values."""
        if not len(values):
            return
        self.minimum = min(self.minimum, float(values.min()))
        self.maximum = max(self.maximum, float(values.max()))
        self._waiting.append(values)
        self._waiting_size += len(values)
        if self._waiting_size >= self._limit:
            self._settle()

    @property
    def count(self) -> int:
        return int(self._counts.sum()) + self._waiting_size

    def at(self, share: float) -> float:
        """The value at that position of the sorted ones: the first with so large a share at or below it."""
        self._settle()
        if not len(self._values):
            return float("nan")
        below = np.cumsum(self._counts)
        # The tolerance keeps 0.95 * 20, which is a hair above 19 in binary, at rank 19.
        rank = max(1, int(np.ceil(share * below[-1] - 1e-9 * below[-1])))
        return float(self._values[np.searchsorted(below, rank)])

    def _settle(self) -> None:
        if not self._waiting:
            return
        fresh, fresh_counts = np.unique(np.concatenate(self._waiting), return_counts=True)
        self._waiting, self._waiting_size = [], 0
        self._values, place = np.unique(np.concatenate([self._values, fresh]), return_inverse=True)
        counts = np.concatenate([self._counts, fresh_counts])
        self._counts = np.bincount(place, weights=counts, minlength=len(self._values)).astype(np.int64)
        if len(self._values) > self._limit:
            self._merge()

    def _merge(self) -> None:
        below = np.cumsum(self._counts)
        bucket = (below - 1) * (self._limit // 4) // below[-1]
        last = np.flatnonzero(np.append(np.diff(bucket) > 0, True))
        self._values = self._values[last]
        self._counts = np.diff(np.concatenate([[0], below[last]]))
        self.exact = False
