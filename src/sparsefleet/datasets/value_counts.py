"""Counting the values of slots exactly, in bounded memory: what `min_count` and `quantiles` need.

Values are counted by their 64-bit hashes. What has come together is sorted and merged now and then; a merged table that
grows beyond `MOST_HELD` goes to a file, and a new one is begun. At the end the files of all processes are merged, one
stretch of values after the other, so that memory holds a stretch and the values that are kept. Sums do not depend on
who counted what: any number of processes gives the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from sparsefleet.core.batch import I64, U64

MOST_WAITING = 1 << 20
"""Values that wait to be sorted, of all slots together."""
MOST_HELD = 1 << 21
"""Different values held in memory, of all slots together: 32 MB."""
TOGETHER = 1 << 21
"""About how many values of all files are merged at a time."""


class ValueCounts:
    """Of one process. `tag` is its own: files of several processes lie in one folder."""

    def __init__(self, folder: Path, slots: Sequence[int], tag: str, *, most_held: int = MOST_HELD) -> None:
        """`slots`: the numbers of the slots that are counted."""
        self._folder, self._tag, self._most_held = folder, tag, most_held
        self._waiting: dict[int, list[U64]] = {slot: [] for slot in slots}
        self._held = {slot: (np.empty(0, np.uint64), np.empty(0, np.int64)) for slot in slots}
        self._size = 0
        self._files = 0

    def add(self, slot: int, hashes: U64) -> None:
        self._waiting[slot].append(hashes)
        self._size += len(hashes)
        if self._size > MOST_WAITING:
            self._merge()
            if sum(len(values) for values, _ in self._held.values()) > self._most_held:
                self._spill()

    def finish(self) -> None:
        self._merge()
        self._spill()

    def _merge(self) -> None:
        for slot, waiting in self._waiting.items():
            if waiting:
                values, counts = np.unique(np.concatenate(waiting), return_counts=True)
                self._held[slot] = summed([self._held[slot], (values, counts.astype(np.int64))])
                waiting.clear()
        self._size = 0

    def _spill(self) -> None:
        for slot, (values, counts) in self._held.items():
            if len(values):
                name = f"counts-{slot}-{self._tag}-{self._files}"
                np.save(self._folder / f"{name}.values.npy", values)
                np.save(self._folder / f"{name}.counts.npy", counts)
                self._held[slot] = np.empty(0, np.uint64), np.empty(0, np.int64)
        self._files += 1


def frequent_values(folder: Path, slot: int, min_count: int) -> U64:
    """Hashes of the values that occurred so often, rising; of all the files in the folder."""
    _, tables = counted_values(folder, slot)
    return np.concatenate([np.empty(0, np.uint64), *(values[counts >= min_count] for values, counts in tables)])


def counted_values(folder: Path, slot: int) -> tuple[int, Iterator[tuple[U64, I64]]]:
    """How many values there are, and the different ones with their counts, rising, part by part; of all the files."""
    tables = []
    for file in sorted(folder.glob(f"counts-{slot}-*.values.npy")):
        beside = file.with_name(file.name.replace(".values.", ".counts."))
        tables.append((np.load(file, mmap_mode="r"), np.load(beside, mmap_mode="r")))
    return sum(int(counts.sum()) for _, counts in tables), _merged(tables)


def _merged(tables: Sequence[tuple[U64, I64]]) -> Iterator[tuple[U64, I64]]:
    # Cut where every so many values of a table end: between two cuts no table has more, however the values lie.
    every = max(1, TOGETHER // max(1, len(tables)))
    cuts = np.unique(np.concatenate([np.empty(0, np.uint64), *(values[every::every] for values, _ in tables)]))
    places = [[0, *np.searchsorted(values, cuts).tolist(), len(values)] for values, _ in tables]
    waiting: list[tuple[U64, I64]] = []
    size = 0
    for at in range(len(cuts) + 1):
        for (values, counts), ends in zip(tables, places, strict=True):
            if ends[at] < ends[at + 1]:
                part = slice(ends[at], ends[at + 1])
                waiting.append((np.asarray(values[part]), np.asarray(counts[part])))
                size += ends[at + 1] - ends[at]
        if size >= TOGETHER or at == len(cuts):
            yield summed(waiting)
            waiting, size = [], 0


def summed(parts: Sequence[tuple[U64, I64]]) -> tuple[U64, I64]:
    """Rising values with the sums of their counts."""
    values = np.concatenate([np.empty(0, np.uint64), *(part[0] for part in parts)])
    counts = np.concatenate([np.empty(0, np.int64), *(part[1] for part in parts)])
    order = np.argsort(values, kind="stable")
    values, counts = values[order], counts[order]
    first = (
        np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]])) if len(values) else np.empty(0, np.int64)
    )
    return values[first], np.add.reduceat(counts, first) if len(first) else counts
