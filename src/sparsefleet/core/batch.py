"""Batch: what a reader hands to a trainer.

Legend: B rows, S slots, N feature values in all, n dense features.

Bags are row-major: the values of slot `s` in row `b` are `keys[offsets[b*S+s] : offsets[b*S+s+1]]`. So rows are
contiguous, and slicing, shuffling and re-batching never touch a row's inside.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from sparsefleet.core.errors import ConfigError

F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Mark:
    """How far reading has come in one unit of input once the batch that carries this mark is consumed."""

    unit: int
    """Index of the unit (a file, or a byte range of one) in the reader's plan."""
    rows: int
    """Rows of the unit consumed so far, skipped ones included."""
    offset: int = -1
    """Byte offset in the file where the next row starts; -1 where there is no such thing (pipes, gzip, Parquet)."""
    done: bool = False
    """True when the unit has no further rows."""


@dataclass(frozen=True, slots=True)
class Batch:
    labels: F32
    """[B]; NaN where a row has no label."""
    dense: F32
    """[B, n]; n may be 0."""
    keys: U64
    """[N] feature keys of all bags, row-major."""
    offsets: I64
    """[B*S+1]; offsets[0] == 0, offsets[-1] == N, never decreasing."""
    slots: tuple[str, ...]
    """Names of the S slots, in order."""
    marks: tuple[Mark, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        rows = len(self.labels)
        if self.dense.ndim != 2 or len(self.dense) != rows:
            raise ConfigError(
                f"a batch of {rows} labels needs dense values of shape [{rows}, n]; got {self.dense.shape}"
            )
        if len(self.offsets) != rows * len(self.slots) + 1:
            raise ConfigError(
                f"a batch of {rows} rows and {len(self.slots)} slots needs {rows * len(self.slots) + 1} offsets; "
                f"got {len(self.offsets)}"
            )
        if self.offsets[0] != 0 or self.offsets[-1] != len(self.keys):
            raise ConfigError(
                f"offsets must run from 0 to the number of keys ({len(self.keys)}); "
                f"got {self.offsets[0]} to {self.offsets[-1]}"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def slot(self, name: str) -> tuple[U64, I64]:
        """The ragged pair of one slot: `keys [N]`, `offsets [B+1]`."""
        if name not in self.slots:
            raise ConfigError(f"the batch has no slot {name!r}; it has {', '.join(self.slots)}")
        index, count = self.slots.index(name), len(self.slots)
        starts, ends = self.offsets[:-1][index::count], self.offsets[1:][index::count]
        lengths = ends - starts
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        position = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths) + np.repeat(starts, lengths)
        return self.keys[position], offsets

    def rows(self, start: int, stop: int, marks: Iterable[Mark] = ()) -> Batch:
        """Rows start..stop as views, with marks of their own: this batch's belong to the whole of it."""
        width = len(self.slots)
        first, last = int(self.offsets[start * width]), int(self.offsets[stop * width])
        offsets = self.offsets[start * width : stop * width + 1]
        return Batch(
            labels=self.labels[start:stop],
            dense=self.dense[start:stop],
            keys=self.keys[first:last],
            offsets=offsets - first if first else offsets,
            slots=self.slots,
            marks=tuple(marks),
        )

    def take(self, order: npt.NDArray[np.int64]) -> Batch:
        """The rows in the given order, copied."""
        width = len(self.slots)
        lengths = np.diff(self.offsets).reshape(-1, width)[order].ravel()
        starts = self.offsets[:-1].reshape(-1, width)[order].ravel()
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        position = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths) + np.repeat(starts, lengths)
        return Batch(self.labels[order], self.dense[order], self.keys[position], offsets, self.slots)

    def with_marks(self, marks: Iterable[Mark]) -> Batch:
        return replace(self, marks=tuple(marks))

    @staticmethod
    def concat(batches: Sequence[Batch]) -> Batch:
        """One batch of all rows, in order. Marks are those of all parts, in order."""
        if not batches:
            raise ConfigError("cannot join zero batches")
        if len(batches) == 1:
            return batches[0]
        ends = np.cumsum([0] + [len(part.keys) for part in batches])
        offsets = [part.offsets[1:] + end for part, end in zip(batches, ends, strict=False)]
        return Batch(
            labels=np.concatenate([part.labels for part in batches]),
            dense=np.concatenate([part.dense for part in batches]),
            keys=np.concatenate([part.keys for part in batches]),
            offsets=np.concatenate([np.zeros(1, np.int64), *offsets]),
            slots=batches[0].slots,
            marks=tuple(mark for part in batches for mark in part.marks),
        )

    @staticmethod
    def from_slots(
        slots: Mapping[str, tuple[npt.ArrayLike, npt.ArrayLike]],
        *,
        labels: npt.ArrayLike | None = None,
        dense: npt.ArrayLike | None = None,
    ) -> Batch:
        """From one ragged pair (keys, offsets [B+1]) per slot: the inverse of `slot`."""
        if not slots:
            raise ConfigError("a batch needs at least one slot")
        pairs = [(np.asarray(k, np.uint64), np.asarray(o, np.int64)) for k, o in slots.values()]
        sizes = {len(offsets) - 1 for _, offsets in pairs}
        if len(sizes) != 1:
            raise ConfigError(f"slots differ in their number of rows: {sorted(sizes)}")
        rows, width = sizes.pop(), len(pairs)
        lengths = np.stack([np.diff(offsets) for _, offsets in pairs], axis=1).reshape(rows * width)
        all_offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        keys = np.empty(all_offsets[-1], np.uint64)
        for index, (slot_keys, offsets) in enumerate(pairs):
            starts, counts = all_offsets[:-1][index::width], np.diff(offsets)
            keys[np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts) + np.repeat(starts, counts)] = slot_keys
        return Batch(
            labels=np.full(rows, np.nan, np.float32) if labels is None else np.asarray(labels, np.float32),
            dense=np.empty((rows, 0), np.float32) if dense is None else np.asarray(dense, np.float32),
            keys=keys,
            offsets=all_offsets,
            slots=tuple(slots),
        )
