"""Counting the values of slots exactly, in bounded memory: what `min_count` and `quantiles` need.

Values are counted by their 64-bit hashes. What has come together is sorted and merged now and then; a merged table that
grows beyond `MOST_HELD` goes to a file, and a new one is begun. At the end the files of all processes are merged, one
stretch of values after the other, so that memory holds a stretch and the values that are kept. Sums do not depend on
who counted what: any number of processes gives the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsefleet.core.batch import I64, U64

MOST_WAITING = 1 << 20
"""Values that wait to be sorted, of all slots together."""
MOST_HELD = 1 << 21
"""Different values held in memory, of all slots together: 32 MB."""
TOGETHER = 1 << 21
"""Values of all files that are merged at a time, at most."""


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
                table = _Table(f"{self._folder}/counts-{slot}-{self._tag}-{self._files}", len(values))
                values.tofile(table.values)
                counts.tofile(table.counts)
                self._held[slot] = np.empty(0, np.uint64), np.empty(0, np.int64)
        self._files += 1


def frequent_values(folder: Path, slot: int, min_count: int) -> U64:
    """Hashes of the values that occurred so often, rising; of all the files in the folder."""
    _, tables = counted_values(folder, slot)
    return np.concatenate([np.empty(0, np.uint64), *(values[counts >= min_count] for values, counts in tables)])


def counted_values(folder: Path, slot: int) -> tuple[int, Iterator[tuple[U64, I64]]]:
    """How many values there are, and the different ones with their counts, rising, part by part; of all the files."""
    files = sorted(folder.glob(f"counts-{slot}-*.values"))
    tables = [_Table(str(file.with_suffix("")), file.stat().st_size // 8) for file in files]
    return sum(int(table.part(table.counts, np.int64).sum()) for table in tables), _merged(tables)


@dataclass(frozen=True, slots=True)
class _Table:
    """Rising values and how often each occurs, in two files. They are opened to read a part, and never stay so: there
    may be more of them than a process may have open."""

    stem: str
    size: int

    @property
    def values(self) -> str:
        return f"{self.stem}.values"

    @property
    def counts(self) -> str:
        return f"{self.stem}.counts"

    def part(self, file: str, kind: type[Any], start: int = 0, stop: int | None = None) -> npt.NDArray[Any]:
        return np.fromfile(file, kind, (self.size if stop is None else stop) - start, offset=8 * start)


def _merged(tables: Sequence[_Table]) -> Iterator[tuple[U64, I64]]:
    # The ends of every so many values of each table, of which one in as many as there are tables is a cut: whatever the
    # tables hold, no more than TOGETHER values lie between two cuts, and places are few (the square of the tables).
    if not tables:
        return
    every = max(1, TOGETHER // (2 * len(tables)))
    ends = np.sort(np.concatenate([table.part(table.values, np.uint64)[every::every].copy() for table in tables]))
    cuts = np.unique(ends[:: len(tables)])
    found = [np.searchsorted(table.part(table.values, np.uint64), cuts) for table in tables]
    places = np.concatenate([np.zeros((len(tables), 1), np.int64), np.stack(found)], axis=1)
    for at in range(len(cuts) + 1):
        parts = []
        for table, place in zip(tables, places, strict=True):
            start, stop = int(place[at]), int(place[at + 1]) if at < len(cuts) else table.size
            if start < stop:
                values = table.part(table.values, np.uint64, start, stop)
                parts.append((values, table.part(table.counts, np.int64, start, stop)))
        yield summed(parts)


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
