"""Geo: trainers add what they learnt to the shared values, and are told what the others changed.

A trainer hears of the keys it subscribes to: those it has pulled or sent. Per trainer and table there is the set of
these keys (native), and the list of those among them that others have changed since its last exchange, each once when
it grows long.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

from sparsefleet.core.batch import F32, U64
from sparsefleet.core.errors import StoreError
from sparsefleet.core.initializer import Constant
from sparsefleet.kernels.rows import unique_keys
from sparsefleet.kernels.table import RowTable
from sparsefleet.optim import SGD
from sparsefleet.server.holdings import Bound, BoundDense, BoundRows
from sparsefleet.store.wire.parts import DENSE, ROWS
from sparsefleet.table.sparse import SparseTable

COMPACT_KEYS = 1 << 20
NO_KEYS: U64 = np.empty(0, np.uint64)

AnswerPart = tuple[str, str, U64, F32]
"""kind, name, keys, flat floats."""


class KeySet:
    """A set of keys: a native table with rows of one unused value."""

    def __init__(self) -> None:
        self._rows = RowTable(1, 0, 0, Constant.kind, 0.0, 0.0)

    def add(self, keys: U64) -> None:
        self._rows.pull(keys, np.empty((len(keys), 1), np.float32), True)

    def has(self, keys: U64) -> U64:
        """Those of the keys that are in the set."""
        return keys[self._rows.contains(keys)]

    def __len__(self) -> int:
        return len(self._rows)


class Subscriber:
    """One trainer's view of one table."""

    def __init__(self, incarnation: str) -> None:
        self.incarnation = incarnation
        self.keys = KeySet()
        self.changed: list[U64] = []
        self._length = 0
        self._compacted = 0
        self.told: tuple[str, int, U64] = ("", 0, NO_KEYS)
        """The last exchange's lane and number, and the keys it was told of: its answer may have to be given again."""

    def note(self, keys: U64) -> None:
        mine = self.keys.has(keys)
        if not len(mine):
            return
        self.changed.append(mine)
        self._length += len(mine)
        if self._length > max(COMPACT_KEYS, 2 * self._compacted):
            self.changed = [unique_keys(np.concatenate(self.changed))[0]]
            self._length = self._compacted = len(self.changed[0])

    def take(self) -> U64:
        """The keys changed since the last time, each once."""
        keys = unique_keys(np.concatenate(self.changed))[0] if self.changed else NO_KEYS
        self.changed, self._length, self._compacted = [], 0, 0
        return keys


class Geo:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._subscribers: dict[str, dict[int, Subscriber]] = {}

    def subscribe(self, worker: int, incarnation: str, table: SparseTable, keys: U64) -> None:
        with self._lock:
            self._subscriber(table, worker, incarnation).keys.add(keys)

    def forget(self, worker: int) -> None:
        """A trainer has gone: nothing is collected for it any more."""
        with self._lock:
            for subscribers in self._subscribers.values():
                subscribers.pop(worker, None)

    def exchange(
        self, worker: int, incarnation: str, lane: str, number: int, parts: Sequence[Bound], again: bool
    ) -> list[AnswerPart]:
        """Add the deltas, unless they are sent again, and answer part by part."""
        with self._lock:
            answer: list[AnswerPart] = []
            for part in parts:
                if isinstance(part, BoundDense):
                    if not again:
                        part.block.table.add(part.values)
                        part.block.table.step += 1
                    answer.append((DENSE, part.name, NO_KEYS, part.block.table.values.copy()))
                else:
                    answer += self._rows(worker, incarnation, (lane, number), part, again)
            return answer

    def check(self, parts: Sequence[Bound]) -> None:
        for part in parts:
            rule = part.table.spec.rule if isinstance(part, BoundRows) else part.block.table.rule
            if not isinstance(rule, SGD):
                raise StoreError(f"geo works with SGD only; {part.name!r} has {rule.name}")

    def stats(self) -> dict[str, dict[str, int]]:
        with self._lock:
            return {
                table: {str(worker): len(one.keys) for worker, one in subscribers.items()}
                for table, subscribers in self._subscribers.items()
            }

    def _rows(
        self, worker: int, incarnation: str, call: tuple[str, int], part: BoundRows, again: bool
    ) -> list[AnswerPart]:
        me = self._subscriber(part.table, worker, incarnation)
        told = me.take()
        if again:
            if me.told[:2] == call:
                told = unique_keys(np.concatenate([told, me.told[2]]))[0]
        else:
            part.table.add(part.keys, part.values)
            me.keys.add(part.keys)
            for other, subscriber in self._subscribers[part.name].items():
                if other != worker:
                    subscriber.note(part.keys)
        me.told = (*call, told)
        news = unique_keys(np.concatenate([part.keys, told]))[0][len(part.keys) :]  # in order of first appearance
        return [
            (ROWS, part.name, NO_KEYS, part.table.pull(part.keys).reshape(-1)),
            (ROWS, part.name, news, part.table.pull(news, create=False).reshape(-1)),
        ]

    def _subscriber(self, table: SparseTable, worker: int, incarnation: str) -> Subscriber:
        subscribers = self._subscribers.setdefault(table.spec.name, {})
        present = subscribers.get(worker)
        if present is None or present.incarnation != incarnation:
            present = subscribers[worker] = Subscriber(incarnation)
        return present
