"""Geo: trainers add what they learnt to the shared values, and are told what the others changed.

A trainer hears of the keys it subscribes to: those it has pulled or sent. Per table there is one bitmap of trainers per
key, and per trainer the list of keys that others have changed since its last exchange, each once (native). A key that
it sends for the first time is on its list too, for others may have changed it before. Of all other keys that it sends
it knows what they have become: what it knew of them plus what it sent, to the last bit.

A trainer that is gone or lost is forgotten: what it has left here would grow with every exchange of the others.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

from sparsefleet.core.batch import F32, U64
from sparsefleet.core.errors import StoreError
from sparsefleet.kernels.rows import unique_keys
from sparsefleet.kernels.subscriptions import Subscriptions
from sparsefleet.server.holdings import Bound, BoundDense, BoundRows
from sparsefleet.table.sparse import SparseTable

NO_KEYS: U64 = np.empty(0, np.uint64)

NO_VALUES: F32 = np.empty(0, np.float32)

AnswerPart = tuple[Bound, U64]
"""What a trainer is told the present values of, and the keys that it must be told with them: a table's.

The values are read when the answer is written: if others have changed them by then, so much the better, and the next
answer tells of that change too.
"""

Told = tuple[str, int, U64]
"""An exchange's caller and number, and the keys its trainer was told of."""


class _Table:
    """Who subscribes to which keys of one table."""

    def __init__(self) -> None:
        self.subscriptions = Subscriptions()
        self.told: dict[int, Told] = {}
        """By trainer, of its last exchange: the answer may have to be given again."""
        self.known: set[int] = set()
        """Trainers that have asked for rows of the table."""

    def forget(self, worker: int) -> None:
        if worker in self.known:
            self.subscriptions.forget(worker)
            self.told.pop(worker, None)
            self.known.discard(worker)


class Geo:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tables: dict[str, _Table] = {}
        self._lives: dict[int, str] = {}
        """By trainer, the incarnation whose subscriptions are held."""
        self._over: dict[int, str] = {}
        """By trainer, the incarnation that was forgotten last. What of it still comes does not subscribe it again."""
        self._leaving: set[int] = set()
        self._all_leave = False
        self._leaving_lock = threading.Lock()  # held for a moment only; `_lock` for as long as an exchange takes

    def subscribe(self, worker: int, incarnation: str, table: SparseTable, keys: U64) -> None:
        with self._lock:
            self._forget_those_leaving()
            if self._is_over(worker, incarnation):
                raise StoreError(f"worker {worker} has left or was lost: it is told of no more changes")
            self._table(table, worker, incarnation).subscriptions.subscribe(keys, worker)

    def forget(self, worker: int | None) -> None:
        """A trainer has gone, or (None) all of them: nothing is collected for it any more.

        Returns at once, for sessions call it with their lock held. The next who asks for anything here clears up first.
        """
        with self._leaving_lock:
            self._all_leave = self._all_leave or worker is None
            if worker is not None:
                self._leaving.add(worker)

    def exchange(
        self, worker: int, incarnation: str, caller: str, number: int, parts: Sequence[Bound], again: bool
    ) -> list[AnswerPart]:
        """Add the deltas, unless they are sent again, and answer part by part."""
        with self._lock:
            self._forget_those_leaving()
            answer: list[AnswerPart] = []
            for part in parts:
                if isinstance(part, BoundDense):
                    if not again:
                        part.block.table.add(part.values)
                        part.block.table.step += 1
                    answer.append((part, NO_KEYS))
                else:
                    answer += self._rows(worker, incarnation, (caller, number), part, again)
            return answer

    def subscribers(self) -> list[int]:
        """The trainers for which something is collected."""
        with self._leaving_lock:
            return [] if self._all_leave else [worker for worker in tuple(self._lives) if worker not in self._leaving]

    def check(self, parts: Sequence[Bound]) -> None:
        for part in parts:
            rule = part.table.spec.rule if isinstance(part, BoundRows) else part.block.table.rule
            if rule.state_width(1):
                raise StoreError(
                    f"geo adds differences to values, but {part.name!r} has {rule.name}'s state on this server: it was "
                    "made for another mode; for geo, make it with optim.values_only(rule)"
                )

    def stats(self) -> dict[str, dict[str, int]]:
        with self._lock:
            self._forget_those_leaving()
            return {
                name: {str(worker): table.subscriptions.keys_of(worker) for worker in sorted(table.known)}
                for name, table in self._tables.items()
            }

    # --- with `_lock` held

    def _rows(
        self, worker: int, incarnation: str, call: tuple[str, int], part: BoundRows, again: bool
    ) -> list[AnswerPart]:
        if self._is_over(worker, incarnation):
            return self._last_rows(part, again)
        table = self._table(part.table, worker, incarnation)
        if not again:
            part.table.add(part.keys, part.values, part.counts)
            table.subscriptions.note(part.keys, worker)
        told = table.subscriptions.take(worker)
        if again:
            last = table.told.get(worker)
            if last is not None and last[:2] == call:
                told = unique_keys(np.concatenate([told, last[2]]))[0]
        table.told[worker] = (*call, told)
        return [(BoundRows(part.table, told, NO_VALUES), told)]

    def _last_rows(self, part: BoundRows, again: bool) -> list[AnswerPart]:
        """Of a trainer that is forgotten: an exchange that was on its way counts, and nothing is collected for it.

        What others have changed of its rows is not known any more: it is told all that it sent.
        """
        if not again:
            part.table.add(part.keys, part.values, part.counts)
            if part.name in self._tables:
                self._tables[part.name].subscriptions.tell(part.keys)
        return [(BoundRows(part.table, part.keys, NO_VALUES), part.keys)]

    def _is_over(self, worker: int, incarnation: str) -> bool:
        return self._over.get(worker) == incarnation

    def _table(self, table: SparseTable, worker: int, incarnation: str) -> _Table:
        if self._lives.setdefault(worker, incarnation) != incarnation:
            self._forget(worker)
            self._lives[worker] = incarnation
        found = self._tables.setdefault(table.spec.name, _Table())
        found.known.add(worker)
        return found

    def _forget_those_leaving(self) -> None:
        with self._leaving_lock:
            leaving, self._leaving = self._leaving, set()
            all_leave, self._all_leave = self._all_leave, False
        for worker in list(self._lives) if all_leave else leaving:
            self._forget(worker)

    def _forget(self, worker: int) -> None:
        if worker in self._lives:
            self._over[worker] = self._lives.pop(worker)
        for table in self._tables.values():
            table.forget(worker)
