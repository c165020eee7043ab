"""A slot's values one by one instead of pooled: the last `length` of each sample, side by side.

A sample's bag of up to `length` values becomes `length` bags of one value or none, and `pool_forward` does the rest:
training, scoring and serving share this one way.

Legend: B samples, S slots of the lookup, N values, L = length, D values of a row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparsefleet.core.batch import F32, I64
from sparsefleet.kernels.rows import I32, pool_forward


@dataclass(frozen=True, slots=True)
class Spread:
    """The values of one slot, a bag each."""

    inverse: I32
    """[kept values] place of each value's row."""
    offsets: I64
    """[B*L+1]"""
    places: I32
    """[L] 0, 1, …"""
    lengths: I64
    """[B] how many values a sample has, of those that count."""

    @property
    def mask(self) -> npt.NDArray[np.bool_]:
        """[B, L] where there is a value."""
        return self.places < self.lengths[:, None]

    def vectors(self, rows: F32) -> F32:
        """[B, L * D], zeros behind the last value."""
        length = len(self.places)
        out = np.empty((len(self.lengths), length * rows.shape[1]), np.float32)
        pool_forward(rows, self.inverse, self.offsets, length, self.places, False, out)
        return out


def spread_slot(inverse: I32, offsets: I64, slots: int, place: int, most: int, *, tight: bool = False) -> Spread:
    """The last `most` values of the slot at `place`. tight: L is what the longest sample needs, else `most`."""
    ends = offsets[1:][place::slots]
    lengths = np.minimum(ends - offsets[:-1][place::slots], most)
    length = max(1, int(lengths.max(initial=0))) if tight else most
    starts = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=starts[1:])
    position = np.arange(starts[-1]) + np.repeat(ends - lengths - starts[:-1], lengths)
    places = np.arange(length, dtype=np.int32)
    bags = np.minimum(places, lengths[:, None]) + starts[:-1, None]
    return Spread(inverse[position], np.append(bags.ravel(), starts[-1]), places, lengths)


def sequence_input(rows: F32, inverse: I32, offsets: I64, slots: int, place: int, most: int) -> F32:
    """[B, L * D + L]: what a bundle's network gets for such a slot: the vectors, and 1 where there is a value."""
    spread = spread_slot(inverse, offsets, slots, place, most)
    return np.concatenate([spread.vectors(rows), spread.mask.astype(np.float32)], 1)
