"""Batch: what a reader hands to a trainer.

Legend: B samples, S slots, N feature values in all, n dense features, L labels of a sample.

Bags are sample-major: the values of slot `s` in sample `b` are `keys[offsets[b*S+s] : offsets[b*S+s+1]]`. So samples
are contiguous, and slicing, shuffling and re-batching never touch a sample's inside.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsefleet.core.errors import ConfigError

F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]

COLUMNS: Mapping[str, tuple[type[np.generic], str]] = {
    "labels": (np.float32, "[B] or [B, L]"),
    "dense": (np.float32, "[B, n]"),
    "weights": (np.float32, "[B]"),
    "groups": (np.uint64, "[B]"),
    "times": (np.int64, "[B]"),
}
"""The fields of a batch that have one entry per sample: type and shape. All but the first two may be None."""
_DIMENSIONS = {"labels": (1, 2), "dense": (2,)}


@dataclass(frozen=True, slots=True)
class Mark:
    """How far reading has come in one unit of input once the batch that carries this mark is consumed."""

    unit: int
    """Index of the unit (a file, or a byte range of one) in the reader's plan."""
    samples: int
    """Samples of the unit consumed so far, skipped ones included."""
    offset: int = -1
    """Byte offset in the file where the next sample starts; -1 where there is no such thing (pipes, gzip, Parquet)."""
    done: bool = False
    """True when the unit has no further samples."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples as arrays, C-contiguous and of the types below. `Batch(…)` checks all of it."""

    labels: F32
    """[B], or [B, L] where a sample has several; NaN where it has none."""
    dense: F32
    """[B, n]; n may be 0."""
    keys: U64
    """[N] feature keys of all bags, sample-major."""
    offsets: I64
    """[B*S+1]; offsets[0] == 0, offsets[-1] == N, never decreasing."""
    slots: tuple[str, ...]
    """Names of the S slots, in order."""
    marks: tuple[Mark, ...] = field(default=(), compare=False)
    weights: F32 | None = field(default=None, kw_only=True)
    """[B] how much each sample counts in the loss; None: all the same."""
    groups: U64 | None = field(default=None, kw_only=True)
    """[B] what the samples belong to (a user, a query), for measures within a group."""
    times: I64 | None = field(default=None, kw_only=True)
    """[B] when each event happened."""

    def __post_init__(self) -> None:
        _check_array("keys", self.keys, np.uint64, "[N]", (1,))
        _check_array("offsets", self.offsets, np.int64, "[B*S+1]", (1,))
        if not isinstance(self.slots, tuple):
            raise ConfigError(f"a batch's slots must be a tuple of names; got {type(self.slots).__name__}")
        columns = self.columns()
        for name, column in columns.items():
            kind, shape = COLUMNS[name]
            _check_array(name, column, kind, shape, _DIMENSIONS.get(name, (1,)))
        samples = len(self.labels)
        if any(len(column) != samples for column in columns.values()):
            found = ", ".join(f"{name} {list(column.shape)}" for name, column in columns.items())
            raise ConfigError(f"the columns of a batch must have one entry per sample; got {found}")
        _check_offsets(self.offsets, len(self.keys), samples, len(self.slots))

    @staticmethod
    def trusted(
        labels: F32,
        dense: F32,
        keys: U64,
        offsets: I64,
        slots: tuple[str, ...],
        marks: tuple[Mark, ...] = (),
        *,
        weights: F32 | None = None,
        groups: U64 | None = None,
        times: I64 | None = None,
    ) -> Batch:
        """A batch that is not checked: for our own parsers, whose arrays are sound, and for parts of another batch.

        A check takes 40 µs for a thousand samples of 26 slots, more than cutting them out of a larger batch.
        """
        batch = object.__new__(Batch)
        put = object.__setattr__
        put(batch, "labels", labels)
        put(batch, "dense", dense)
        put(batch, "keys", keys)
        put(batch, "offsets", offsets)
        put(batch, "slots", slots)
        put(batch, "marks", marks)
        put(batch, "weights", weights)
        put(batch, "groups", groups)
        put(batch, "times", times)
        return batch

    def __len__(self) -> int:
        return len(self.labels)

    def columns(self) -> dict[str, Any]:
        """The fields with one entry per sample, by name; those that are None are left out."""
        found = ((name, getattr(self, name)) for name in COLUMNS)
        return {name: column for name, column in found if column is not None}

    def slot(self, name: str) -> tuple[U64, I64]:
        """The ragged pair of one slot: `keys [N]`, `offsets [B+1]`."""
        if name not in self.slots:
            raise ConfigError(f"the batch has no slot {name!r}; it has {', '.join(self.slots)}")
        index, count = self.slots.index(name), len(self.slots)
        starts, ends = self.offsets[:-1][index::count], self.offsets[1:][index::count]
        lengths = ends - starts
        offsets = _offsets_of(lengths)
        position = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths) + np.repeat(starts, lengths)
        return self.keys[position], offsets

    def samples(self, start: int, stop: int, marks: Iterable[Mark] = ()) -> Batch:
        """Samples start..stop as views, with marks of their own: this batch's belong to the whole of it."""
        if not 0 <= start <= stop <= len(self):
            raise ConfigError(f"samples {start} to {stop} of a batch that has {len(self)}")
        width = len(self.slots)
        first, last = int(self.offsets[start * width]), int(self.offsets[stop * width])
        offsets = self.offsets[start * width : stop * width + 1]
        weights, groups, times = self.weights, self.groups, self.times
        return Batch.trusted(
            self.labels[start:stop],
            self.dense[start:stop],
            self.keys[first:last],
            offsets - first if first else offsets,
            self.slots,
            tuple(marks),
            weights=None if weights is None else weights[start:stop],
            groups=None if groups is None else groups[start:stop],
            times=None if times is None else times[start:stop],
        )

    def take(self, order: npt.NDArray[np.int64]) -> Batch:
        """The samples in the given order, copied."""
        shape = (len(self), len(self.slots))
        lengths = np.diff(self.offsets).reshape(shape)[order].ravel()
        starts = self.offsets[:-1].reshape(shape)[order].ravel()
        offsets = _offsets_of(lengths)
        position = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths) + np.repeat(starts, lengths)
        columns = {name: column[order] for name, column in self.columns().items()}
        return Batch.trusted(keys=self.keys[position], offsets=offsets, slots=self.slots, **columns)

    def with_marks(self, marks: Iterable[Mark]) -> Batch:
        return Batch.trusted(
            keys=self.keys, offsets=self.offsets, slots=self.slots, marks=tuple(marks), **self.columns()
        )

    @staticmethod
    def concat(batches: Sequence[Batch]) -> Batch:
        """One batch of all samples, in order. Marks are those of all parts, in order."""
        if not batches:
            raise ConfigError("cannot join zero batches")
        if len(batches) == 1:
            return batches[0]
        first = batches[0].layout
        for part in batches:
            if part.layout != first:
                raise ConfigError(f"batches of different layouts cannot be joined: {first} and {part.layout}")
        ends = np.cumsum([0] + [len(part.keys) for part in batches])
        offsets = [part.offsets[1:] + end for part, end in zip(batches, ends, strict=False)]
        all_columns = [part.columns() for part in batches]
        return Batch.trusted(
            keys=np.concatenate([part.keys for part in batches]),
            offsets=np.concatenate([np.zeros(1, np.int64), *offsets]),
            slots=batches[0].slots,
            marks=tuple(mark for part in batches for mark in part.marks),
            **{name: np.concatenate([columns[name] for columns in all_columns]) for name in all_columns[0]},
        )

    @property
    def layout(self) -> Layout:
        """What batches must have in common to be joined."""
        return Layout(self.slots, {name: column.shape[1:] for name, column in self.columns().items()})

    @staticmethod
    def from_slots(
        slots: Mapping[str, tuple[npt.ArrayLike, npt.ArrayLike]],
        *,
        labels: npt.ArrayLike | None = None,
        dense: npt.ArrayLike | None = None,
        weights: npt.ArrayLike | None = None,
        groups: npt.ArrayLike | None = None,
        times: npt.ArrayLike | None = None,
    ) -> Batch:
        """From one ragged pair (keys, offsets [B+1]) per slot: the inverse of `slot`."""
        if not slots:
            raise ConfigError("a batch needs at least one slot")
        pairs = [_ragged_pair(name, *pair) for name, pair in slots.items()]
        sizes = {len(offsets) - 1 for _, offsets in pairs}
        if len(sizes) != 1:
            raise ConfigError(f"slots differ in their number of samples: {sorted(sizes)}")
        samples, width = sizes.pop(), len(pairs)
        lengths = np.stack([np.diff(offsets) for _, offsets in pairs], axis=1).reshape(samples * width)
        all_offsets = _offsets_of(lengths)
        keys = np.empty(all_offsets[-1], np.uint64)
        for index, (slot_keys, offsets) in enumerate(pairs):
            starts, counts = all_offsets[:-1][index::width], np.diff(offsets)
            keys[np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts) + np.repeat(starts, counts)] = slot_keys
        return Batch(
            labels=np.full(samples, np.nan, np.float32) if labels is None else np.ascontiguousarray(labels, np.float32),
            dense=np.empty((samples, 0), np.float32) if dense is None else np.ascontiguousarray(dense, np.float32),
            keys=keys,
            offsets=all_offsets,
            slots=tuple(slots),
            weights=None if weights is None else np.ascontiguousarray(weights, np.float32),
            groups=None if groups is None else np.ascontiguousarray(groups, np.uint64),
            times=None if times is None else np.ascontiguousarray(times, np.int64),
        )


@dataclass(frozen=True, slots=True)
class Layout:
    """The slots of a batch, and of each column that it has the shape of one entry."""

    slots: tuple[str, ...]
    columns: Mapping[str, tuple[int, ...]]

    def __str__(self) -> str:
        columns = ", ".join(name + (f" {list(shape)}" if shape else "") for name, shape in self.columns.items())
        return f"({columns}, {len(self.slots)} slots {', '.join(self.slots[:4])}{', …' * (len(self.slots) > 4)})"


def _offsets_of(lengths: npt.NDArray[Any]) -> I64:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _check_array(name: str, array: object, kind: type[np.generic], shape: str, dimensions: tuple[int, ...]) -> None:
    wanted = f"a C-contiguous array of {np.dtype(kind)} {shape}"
    if not isinstance(array, np.ndarray):
        raise ConfigError(f"a batch's {name} must be {wanted}; got {type(array).__name__}")
    if array.dtype != kind or array.ndim not in dimensions or not array.flags.c_contiguous:
        apart = "" if array.flags.c_contiguous else ", not contiguous"
        raise ConfigError(
            f"a batch's {name} must be {wanted}; got {array.dtype} {list(array.shape)}{apart}: "
            f"convert it by np.ascontiguousarray({name}, np.{np.dtype(kind)})"
        )


def _check_offsets(offsets: I64, keys: int, samples: int, slots: int) -> None:
    if len(offsets) != samples * slots + 1:
        raise ConfigError(
            f"a batch of {samples} samples and {slots} slots needs {samples * slots + 1} offsets; got {len(offsets)}"
        )
    if offsets[0] != 0 or offsets[-1] != keys:
        raise ConfigError(f"offsets must run from 0 to the number of keys ({keys}); got {offsets[0]} to {offsets[-1]}")
    falls = offsets[1:] < offsets[:-1]
    if falls.any():
        at = int(falls.argmax())
        raise ConfigError(f"offsets must never decrease; offset {at} is {offsets[at]}, the next one {offsets[at + 1]}")


def _ragged_pair(name: str, keys: npt.ArrayLike, offsets: npt.ArrayLike) -> tuple[U64, I64]:
    """The keys and offsets of one slot, checked."""
    values, ends = _whole_numbers(keys), np.asarray(offsets)
    if values is None:
        raise ConfigError(f"slot {name!r}: keys must be a list of whole numbers, 0 to 2**64 - 1; got {keys!r:.80}")
    if ends.ndim != 1 or not len(ends) or ends.dtype.kind not in "iu":
        raise ConfigError(f"slot {name!r}: offsets must be a list of whole numbers [B+1]; got {offsets!r:.80}")
    wide = ends.astype(np.int64)
    try:
        _check_offsets(wide, len(values), len(wide) - 1, 1)
    except ConfigError as error:
        raise ConfigError(f"slot {name!r}: {error}") from None
    return values, wide


def _whole_numbers(given: npt.ArrayLike) -> U64 | None:
    """The numbers as keys [N]; None where one is not a key."""
    if isinstance(given, list | tuple) and all(isinstance(value, int) for value in given):
        # NumPy would make floats of a list with numbers on both sides of 2**63.
        try:
            return np.array(given, np.uint64)
        except OverflowError:
            return None
    values = np.asarray(given)
    if values.ndim != 1 or (len(values) and (values.dtype.kind not in "iu" or int(values.min()) < 0)):
        return None
    return values.astype(np.uint64, copy=False)
