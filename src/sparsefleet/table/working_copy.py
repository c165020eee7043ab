"""WorkingCopy: a trainer's own copy of a server's rows, that notes what the server knows of them.

Legend: U keys, D values a row.

A row keeps, behind the rule's state, its values as the server knows them: what it had when we last heard of the row,
plus what was sent since. The difference is what is still to be sent. A step does not touch it, so that it costs one
nothing; only an exchange does. The rule's state of a row is this trainer's alone: made of its own gradients, never
sent, and left as it is when others change the row's values (but for FTRL's z, which values are made of: it becomes what
gives the new ones). Safe for many threads at once.
"""

from __future__ import annotations

import threading

import numpy as np

from sparsefleet.core.batch import F32, U64
from sparsefleet.kernels.table import NOTING, U32, Bools, RowTable
from sparsefleet.table.sparse import row_seed
from sparsefleet.table.spec import TableSpec


class WorkingCopy:
    def __init__(self, spec: TableSpec, step: int = 0) -> None:
        """step: where the learning rate's schedule goes on. State begins here, and so does its clock (Adam's)."""
        self.spec = spec
        rule, (a, b) = spec.rule, spec.initializer.numbers
        self._rows = RowTable(
            spec.dim,
            rule.state_width(spec.dim) + spec.dim,
            row_seed(spec),
            spec.initializer.kind,
            a,
            b,
            rule.initial_state(),
            notes=True,
        )
        self._kind, self._hyper = rule.kind + NOTING, np.array(rule.hyperparameters(), np.float64)
        self._counting = threading.Lock()
        self._step = self._fresh_at = step

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def step(self) -> int:
        """Steps so far; the schedule's clock."""
        return self._step

    @property
    def memory_bytes(self) -> int:
        return self._rows.memory_bytes()

    def contains(self, keys: U64) -> Bools:
        return self._rows.contains(keys)

    def pull(self, keys: U64) -> F32:
        """Rows [U, D]; one that is met for the first time begins as the spec says."""
        out = np.empty((len(keys), self.spec.dim), np.float32)
        self._rows.pull(keys, out, True)
        return out

    def push(self, keys: U64, grads: F32, counts: U32 | None = None) -> None:
        """One step of the rule on these rows. counts [U]: how often each key occurs in the samples; by default once."""
        with self._counting:
            self._step += 1
            step = self._step
        rate = self.spec.rule.rate(step)
        self._rows.push(keys, grads, self._kind, rate, self._hyper, step - self._fresh_at, counts)

    def take(self, keys: U64, shares: int, out: F32, counts: U32) -> None:
        """Fill `out` [U, D] with one of so many shares of what is not sent yet, and `counts` [U] with all occurrences.

        From now on both count as sent.
        """
        self._rows.take(keys, float(shares), out, counts)

    def hear(self, keys: U64, values: F32, *, create: bool = False) -> None:
        """The server has these values [U, D] now. Rows that are not here are made, or else left out."""
        step = max(self._step, 1)
        rate = self.spec.rule.rate(step)
        self._rows.rebase(keys, np.ascontiguousarray(values), create, self._kind, rate, self._hyper, step)
