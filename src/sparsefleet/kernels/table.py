"""Sparse tables, update rules and initial values: a typed face over the native kernels.

Legend: U keys, D values a row, S floats of optimizer state a row.

Arrays must be C-contiguous and of the very dtype named: nothing is converted here, for that would cost a copy
on the hot path. `sparsefleet.table` checks what users hand in. The twin is `kernels.reference.table`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sparsefleet.core.batch import F32, U64
from sparsefleet.kernels.levels import native as _native

F64 = npt.NDArray[np.float64]
U32 = npt.NDArray[np.uint32]
Bools = npt.NDArray[np.bool_]

NOTING = 16
"""Added to a rule's kind: the same rule, for rows that note at the end of their state what others know of them."""


class Scanned(NamedTuple):
    """A stretch of a table's rows, in no order that means anything."""

    keys: U64
    """[U]"""
    values: F32
    """[U, D]"""
    state: F32
    """[U, S]"""
    seen: U32
    """[U] how often each key was met in training."""
    touched: U32
    """[U] the clock of the last push, or of the row's creation."""
    cursor: int
    """Where `scan` goes on; a cut remembers that by itself."""


def init_rows(seed: int, keys: U64, dim: int, kind: int, a: float, b: float) -> F32:
    """First values [U, D] of the rows of `keys`; `kind`, `a`, `b` as in `core.initializer`."""
    out = np.empty((len(keys), dim), np.float32)
    _native.init_rows(seed, keys, kind, a, b, out)
    return out


class BlockLocks:
    """Lets several threads update one block of values without losing an update; readers need no lock."""

    def __init__(self) -> None:
        self.native = _native.BlockLocks()


def apply_rule(
    kind: int, lr: float, hyper: F64, step: int, values: F32, state: F32, grads: F32, locks: BlockLocks
) -> None:
    """Update `values` [n] and `state` in place, seen as one long row (state: segments of n floats)."""
    _native.apply_rule(kind, lr, hyper, step, values, state, grads, locks.native)


def shift_block(
    kind: int, lr: float, hyper: F64, step: int, values: F32, state: F32, deltas: F32, locks: BlockLocks
) -> None:
    """Add `deltas` [n] that are not of the rule's making, in place; state stays, but FTRL's follows the values."""
    _native.shift_block(kind, lr, hyper, step, values, state, deltas, locks.native)


class RowTable:
    """Rows by 64-bit key; any number of threads may call anything at any time. Its layout: native table.h."""

    def __init__(
        self,
        dim: int,
        state_width: int,
        seed: int,
        kind: int,
        a: float,
        b: float,
        initial_state: float = 0.0,
        notes: bool = False,
        idle: tuple[int, F64] | None = None,
    ) -> None:
        """notes: the last `dim` floats of the state, which begin as the values do, are what others know of the values.

        idle: kind and hyperparameters of a rule whose steps move all rows (native idle.h). Then `note_steps` tells the
        table of each step first, clocks are steps, and what reads rows catches them up to its clock.
        """
        self.dim, self.state_width = dim, state_width
        idle_kind, idle_hyper = idle if idle is not None else (-1, np.empty(0, np.float64))
        self._native = _native.RowTable(dim, state_width, seed, kind, a, b, initial_state, notes, idle_kind, idle_hyper)

    def note_steps(self, first: int, last: int, lr: float) -> None:
        """Steps `first` to `last` have this learning rate; in order, without gaps, from 1 on, one caller at a time."""
        self._native.note_steps(first, last, lr)

    def forget_steps(self) -> None:
        """Forget all steps noted; nobody may read or push meanwhile."""
        self._native.forget_steps()

    def pull(self, keys: U64, out: F32, create: bool, clock: int = 0) -> int:
        """Fill `out` [U, D]; missing rows are created, touched at `clock`, or read as zeros. Returns their number."""
        misses: int = self._native.pull(keys, out, create, clock)
        return misses

    def push(
        self,
        keys: U64,
        grads: F32,
        kind: int,
        lr: float,
        hyper: F64,
        step: int,
        counts: U32 | None = None,
        clock: int = 0,
    ) -> None:
        """Apply a rule to the rows, creating those that are missing, and touch them at `clock` (below 2^32).

        Each row's `seen` goes up by its count [U], or by one where there are none.
        """
        self._native.push(keys, grads, counts, kind, lr, hyper, step, clock)

    def insert(self, keys: U64, values: F32, state: F32, seen: U32, touched: U32) -> None:
        """Write whole rows, new or over old ones."""
        self._native.insert(keys, values, state, seen, touched)

    def take(self, keys: U64, shares: float, out: F32, counts: U32) -> None:
        """Fill `out` [U, D] with one of so many shares of what others do not know yet; zeros where no row is.

        `counts` [U] becomes the rows' `seen`, which becomes 0: all of it counts as told.
        """
        self._native.take(keys, shares, out, counts)

    def rebase(self, keys: U64, values: F32, create: bool, kind: int, lr: float, hyper: F64, step: int) -> None:
        """Rows become `values` [U, D] plus what others do not know yet; missing ones are created, or else left out.

        Their state stays, but where the rule (`kind`, of `NOTING`) makes values of its state alone, FTRL's: then it
        becomes what gives these values.
        """
        self._native.rebase(keys, values, create, kind, lr, hyper, step)

    def contains(self, keys: U64) -> Bools:
        found = np.empty(len(keys), np.uint8)
        self._native.contains(keys, found)
        return found.view(np.bool_)

    def scan(self, cursor: int, max_rows: int, clock: int = 0) -> Scanned:
        """Up to `max_rows` rows from `cursor` on (0: from the start); no rows means the end.

        clock: the step that copies of an exact table's rows are caught up to.
        """
        keys, values, state, seen, touched = self._arrays(max_rows)
        count, cursor = self._native.scan(cursor, keys, values, state, seen, touched, clock)
        return Scanned(keys[:count], values[:count], state[:count], seen[:count], touched[:count], cursor)

    def begin_cut(self) -> int:
        """From now on `scan_cut` reads all rows as they are now, whatever others do to them meanwhile.

        Returns their number. No call that changes rows may be half-way now: calls are atomic per shard only.
        ValueError if a cut is open.
        """
        rows: int = self._native.begin_cut()
        return rows

    def scan_cut(self, max_rows: int, clock: int = 0, since: int | None = None) -> Scanned:
        """Up to `max_rows` of the cut's rows that were not read yet; no rows means the end. clock: as in `scan`.

        since: only rows that the table itself last touched after that clock (below 2^32); the others count as read.
        """
        keys, values, state, seen, touched = self._arrays(max_rows)
        count = self._native.scan_cut(keys, values, state, seen, touched, clock, since)
        return Scanned(keys[:count], values[:count], state[:count], seen[:count], touched[:count], 0)

    def end_cut(self) -> None:
        """Let go of what the cut keeps; nothing if none is open."""
        self._native.end_cut()

    def _arrays(self, rows: int) -> tuple[U64, F32, F32, U32, U32]:
        return (
            np.empty(rows, np.uint64),
            np.empty((rows, self.dim), np.float32),
            np.empty((rows, self.state_width), np.float32),
            np.empty(rows, np.uint32),
            np.empty(rows, np.uint32),
        )

    def __len__(self) -> int:
        rows: int = self._native.rows()
        return rows

    def memory_bytes(self) -> int:
        """All memory the table holds: rows, index and slack."""
        total: int = self._native.memory_bytes()
        return total

    def clear(self) -> None:
        """Forget all rows and give their memory back. ValueError while a cut is open."""
        self._native.clear()
