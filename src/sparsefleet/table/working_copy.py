"""WorkingCopy: a trainer's own copy of a server's rows, that notes what was changed and not yet told to the server.

Legend: U keys, D values a row.

A row here is always what the server had when we last heard of it plus what was changed here since and not sent: so
neither needs to be kept beside it. Safe for many threads at once.
"""

from __future__ import annotations

import threading

import numpy as np

from sparsefleet.core.batch import F32, U64
from sparsefleet.core.errors import StoreError
from sparsefleet.kernels.table import NOTING_SGD, U32, Bools, RowTable
from sparsefleet.optim.sgd import SGD
from sparsefleet.table.sparse import row_seed
from sparsefleet.table.spec import TableSpec


class WorkingCopy:
    def __init__(self, spec: TableSpec, step: int = 0) -> None:
        """step: where the rule's clock goes on; learning rates may depend on it."""
        if not isinstance(spec.rule, SGD):
            raise StoreError(f"table {spec.name!r}: {spec.rule.name} keeps state; a working copy is for sgd only")
        self.spec = spec
        a, b = spec.initializer.numbers
        self._rows = RowTable(spec.dim, spec.dim, row_seed(spec), spec.initializer.kind, a, b)
        self._hyper = np.array(spec.rule.hyperparameters(), np.float64)
        self._counting = threading.Lock()
        self._step = step

    def __len__(self) -> int:
        return len(self._rows)

    def contains(self, keys: U64) -> Bools:
        return self._rows.contains(keys)

    def pull(self, keys: U64) -> F32:
        """Rows [U, D]; one that is met for the first time begins as the spec says."""
        out = np.empty((len(keys), self.spec.dim), np.float32)
        self._rows.pull(keys, out, True)
        return out

    def push(self, keys: U64, grads: F32, counts: U32 | None = None) -> None:
        """One step of SGD on these rows. counts [U]: how often each key occurs in the samples; by default once."""
        with self._counting:
            self._step += 1
            step = self._step
        self._rows.push(keys, grads, NOTING_SGD, self.spec.rule.rate(step), self._hyper, step, counts)

    def take(self, keys: U64, shares: int, out: F32, counts: U32) -> None:
        """Fill `out` [U, D] with one of so many shares of what is not sent yet, and `counts` [U] with all occurrences.

        From now on both count as sent.
        """
        self._rows.take(keys, float(shares), out, counts)

    def hear(self, keys: U64, values: F32, *, create: bool = False) -> None:
        """The server has these values [U, D] now. Rows that are not here are made, or else left out."""
        self._rows.rebase(keys, np.ascontiguousarray(values), create)
