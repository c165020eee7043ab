"""SparseTable: rows by key, the rule that updates them, the count of steps. Safe for many threads at once.

Legend: U keys, D values a row, S floats of optimizer state a row.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsefleet.core.batch import F32, U64
from sparsefleet.core.errors import StoreError
from sparsefleet.core.table_rows import TableRows
from sparsefleet.kernels import table as kernels
from sparsefleet.kernels.table import U32, Bools
from sparsefleet.optim.schedule import Constant
from sparsefleet.optim.sgd import SGD
from sparsefleet.table.spec import TableSpec

_U32 = 2**32 - 1


def row_seed(spec: TableSpec) -> int:
    """64 bits from seed and table name: equal in every process, different for the tables of one model."""
    digest = hashlib.blake2b(f"{spec.seed}:{spec.name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


class SparseTable:
    def __init__(self, spec: TableSpec) -> None:
        self.spec = spec
        self.state_width = spec.rule.state_width(spec.dim)
        self._exact = spec.rule.exact and spec.rule.moves_idle_rows()
        """Every step moves every row. Rows are caught up when they are read; then a row's `touched` is the step that
        its values and state are of, or the one at which it came to rest (native idle.h)."""
        self._steps_unknown = False
        """Whether the rates of the steps before have to be found out again."""
        self._hyper = np.array(spec.rule.hyperparameters(), np.float64)
        a, b = spec.initializer.numbers
        self._rows = kernels.RowTable(
            spec.dim,
            self.state_width,
            row_seed(spec),
            spec.initializer.kind,
            a,
            b,
            spec.rule.initial_state(),
            idle=(spec.rule.kind, self._hyper) if self._exact else None,
        )
        self._counts = threading.Lock()  # for the counters below only; rows have locks of their own
        self._step = self._misses = self._pulls = self._pulled_rows = self._pushed_rows = 0
        self._cutting = threading.Lock()  # whoever begins, reads or closes a cut, or clears
        self._cut_open = False

    @property
    def step(self) -> int:
        """Pushes so far; the rule's clock."""
        return self._step

    @step.setter
    def step(self, step: int) -> None:
        if step < 0:
            raise StoreError(f"table {self.spec.name!r}: step={step} must be 0 or above")
        with self._counts:
            self._step = step
            self._steps_unknown = self._exact

    @property
    def exact(self) -> bool:
        """Whether every step moves every row: `pull` and `scan` then give rows as of the present step."""
        return self._exact

    @property
    def rows(self) -> int:
        return len(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def misses(self) -> int:
        """Keys that `pull(create=False)` did not find, so far."""
        return self._misses

    @property
    def memory_bytes(self) -> int:
        """All memory of the rows, their state and their index."""
        return self._rows.memory_bytes()

    def pull(self, keys: U64, create: bool = True, *, clock: int | None = None, out: F32 | None = None) -> F32:
        """Rows [U, D]. Missing ones are created, or with create=False read as zeros and counted as misses.

        out: where they go, [U, D]; by default a new array.

        clock: when rows that are created count as touched; by default at the step that comes next, so that every row
        that was made after a cut is touched after it. An exact table goes by its step alone.
        """
        keys = self._checked("keys", keys, np.uint64)
        if out is None:
            out = np.empty((len(keys), self.spec.dim), np.float32)
        elif out.dtype != np.float32 or out.shape != (len(keys), self.spec.dim) or not out.flags.c_contiguous:
            raise StoreError(
                f"table {self.spec.name!r}: out must be float32 [{len(keys)}, {self.spec.dim}], contiguous"
            )
        if self._exact:
            clock = self._exact_step()
        missing = self._rows.pull(keys, out, create, (self._step + 1 if clock is None else clock) & _U32)
        with self._counts:
            self._pulls += 1
            self._pulled_rows += len(keys)
            self._misses += 0 if create else missing
        return out

    def push(self, keys: U64, grads: F32, counts: U32 | None = None, *, clock: int | None = None) -> None:
        """One step of the rule on these rows, also with no keys.

        Keys must be unique: one that comes twice is updated twice. counts [U]: how often each key occurs in the samples
        that the gradients are of, which is what rows' `seen` grows by; by default once. clock: when the rows are
        touched; by default at this step. A clock is kept modulo 2^32 (`touched_after` compares). An exact table goes by
        its step alone.
        """
        keys = self._checked("keys", keys, np.uint64)
        grads = self._checked("grads", grads, np.float32, (len(keys), self.spec.dim))
        if counts is not None:
            counts = self._checked("counts", counts, np.uint32, (len(keys),))
        rule = self.spec.rule
        with self._counts:
            step = self._step + 1
            rate = rule.rate(step)
            if self._steps_unknown:
                self._note_again()
            if self._exact:  # before the step counts: whoever reads at it must find its rate
                self._rows.note_steps(step, step, rate)
                clock = step
            self._step = step
            self._pushed_rows += len(keys)
        now = (step if clock is None else clock) & _U32
        self._rows.push(keys, grads, rule.kind, rate, self._hyper, step, counts, now)

    def _exact_step(self) -> int:
        """The step that rows are to be caught up to."""
        if self._steps_unknown:
            with self._counts:
                self._note_again()
        return self._step

    def _note_again(self) -> None:
        """The table was put at another step: what rates the steps before had is what the rule's schedule says.

        With `_counts` held, and only when somebody needs them: a load may set the schedule after the step.
        """
        if not self._steps_unknown:
            return
        self._rows.forget_steps()
        rule, first, step = self.spec.rule, 1, self._step
        while first <= step:
            rate, last = rule.rate(first), first
            if isinstance(rule.schedule, Constant):
                last = step
            while last < step and rule.rate(last + 1) == rate:
                last += 1
            self._rows.note_steps(first, last, rate)
            first = last + 1
        self._steps_unknown = False  # last of all: others look at it without the lock

    def add(self, keys: U64, deltas: F32, counts: U32 | None = None, *, clock: int | None = None) -> None:
        """Add to the values of these rows, missing ones created first; one step. Only for rules without state.

        counts, clock: as in `push`.
        """
        keys = self._checked("keys", keys, np.uint64)
        deltas = self._checked("deltas", deltas, np.float32, (len(keys), self.spec.dim))
        if counts is not None:
            counts = self._checked("counts", counts, np.uint32, (len(keys),))
        if self.state_width or self._exact:
            why = "is exact" if self._exact else "keeps state"
            raise StoreError(f"table {self.spec.name!r}: {self.spec.rule.name} {why}; values cannot just be added to")
        with self._counts:
            self._step += 1
            step = self._step
            self._pushed_rows += len(keys)
        now = (step if clock is None else clock) & _U32
        self._rows.push(keys, deltas, SGD.kind, -1.0, np.empty(0, np.float64), step, counts, now)

    def contains(self, keys: U64) -> Bools:
        return self._rows.contains(self._checked("keys", keys, np.uint64))

    def scan(self, batch_rows: int = 65536) -> Iterator[TableRows]:
        """All rows, in no special order. They are of one moment if nobody writes meanwhile."""
        if batch_rows < 1:
            raise StoreError(f"table {self.spec.name!r}: batch_rows={batch_rows} must be 1 or above")
        cursor = 0
        while True:
            keys, values, state, seen, touched, cursor = self._rows.scan(
                cursor, batch_rows, self._exact_step() if self._exact else 0
            )
            if len(keys) == 0:
                return
            yield TableRows(keys, values, state, seen, touched)

    def begin_cut(self) -> TableCut:
        """All rows as they are now, to be read while others pull, push, insert and create.

        The caller sees to it that nothing is half-way while this call runs: a push is atomic per shard only, so
        a cut beside one could hold the push's effect on some rows and not on others. Rows that are created
        meanwhile are not in the cut. One cut at a time, and no `clear` until it is closed: `StoreError`.
        """
        with self._counts:
            step = self._step
            if self._steps_unknown:
                self._note_again()
        with self._cutting:
            if self._cut_open:
                raise StoreError(
                    f"table {self.spec.name!r}: a cut of it is open already, as while a checkpoint is written; "
                    "close that one first"
                )
            rows = self._rows.begin_cut()
            self._cut_open = True
        return TableCut(self, step, rows)

    def insert(self, rows: TableRows) -> None:
        """Write whole rows, new or over old ones."""
        keys = self._checked("keys", rows.keys, np.uint64)
        self._rows.insert(
            keys,
            self._checked("values", rows.values, np.float32, (len(keys), self.spec.dim)),
            self._checked("state", rows.state, np.float32, (len(keys), self.state_width)),
            self._checked("seen", rows.seen, np.uint32, (len(keys),)),
            self._checked("touched", rows.touched, np.uint32, (len(keys),)),
        )

    def clear(self) -> None:
        """Forget all rows; the step stays. `StoreError` while a cut is open: its rows are not all read yet."""
        with self._cutting:
            self.check_clearable()
            self._rows.clear()

    def check_clearable(self) -> None:
        if self._cut_open:
            raise StoreError(
                f"table {self.spec.name!r}: its rows cannot be replaced while a checkpoint of them is written; "
                "wait until it is done"
            )

    def stats(self) -> dict[str, int]:
        return {
            "rows": self.rows,
            "memory_bytes": self.memory_bytes,
            "step": self._step,
            "pulls": self._pulls,
            "pulled_rows": self._pulled_rows,
            "pushed_rows": self._pushed_rows,
            "misses": self._misses,
        }

    def _checked(
        self, what: str, array: npt.NDArray[Any], dtype: type[np.generic], shape: tuple[int, ...] | None = None
    ) -> npt.NDArray[Any]:
        """The array, contiguous, or an error that names this table, what came and what it should be.

        shape None: one dimension, of any length.
        """
        if not isinstance(array, np.ndarray) or array.dtype != dtype:
            came = f"an array of {array.dtype}" if isinstance(array, np.ndarray) else type(array).__name__
            raise StoreError(f"table {self.spec.name!r}: {what} must be an array of {dtype.__name__}; got {came}")
        if array.ndim != 1 if shape is None else array.shape != shape:
            wanted = "any" if shape is None else ", ".join(map(str, shape))
            raise StoreError(
                f"table {self.spec.name!r} (dim {self.spec.dim}, {self.spec.rule.name} state "
                f"{self.state_width}): {what} must have shape [{wanted}]; got {list(array.shape)}"
            )
        return np.ascontiguousarray(array)


class TableCut:
    """All rows of a table at one moment, read once, while the table goes on. Made by `SparseTable.begin_cut`.

    Memory: what changes before it is read is kept aside until then.
    """

    def __init__(self, table: SparseTable, step: int, rows: int) -> None:
        self.spec, self.state_width = table.spec, table.state_width
        self.step = step
        """The table's step at the cut."""
        self.rows = rows
        """How many rows the cut has."""
        self.exact = table.exact
        self._table = table
        self._open, self._read = True, False

    def scan(self, batch_rows: int = 65536, *, since: int | None = None) -> Iterator[TableRows]:
        """The cut's rows, in no special order. They can be read once: what is read is not kept.

        since: only rows that were made or pushed to after the table was at that step, and perhaps some others; not for
        exact tables, where every step changes every row. A row that a pull made counts as touched at the next step, so
        that none is missed between two cuts.
        """
        if since is not None and self.exact:
            raise StoreError(f"table {self.spec.name!r} is exact: each step changes every row of it")
        if batch_rows < 1:
            raise StoreError(f"table {self.spec.name!r}: batch_rows={batch_rows} must be 1 or above")
        if self._read:
            raise StoreError(f"table {self.spec.name!r}: this cut has been read; begin another one")
        self._read = True
        return self._batches(batch_rows, None if since is None else since & _U32)

    def close(self) -> None:
        """Let go of what is kept; the table can have another cut then. Closing twice does nothing."""
        table = self._table
        with table._cutting:
            if self._open:
                table._rows.end_cut()
                self._open = table._cut_open = False

    def __enter__(self) -> TableCut:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _batches(self, batch_rows: int, since: int | None) -> Iterator[TableRows]:
        table = self._table
        while True:
            with table._cutting:  # or a cut that comes after this one could be read in its place
                if not self._open:
                    raise StoreError(f"table {self.spec.name!r}: the cut was closed before it was read to its end")
                keys, values, state, seen, touched, _ = table._rows.scan_cut(
                    batch_rows, self.step if table.exact else 0, since
                )
            if len(keys) == 0:
                return
            yield TableRows(keys, values, state, seen, touched)
