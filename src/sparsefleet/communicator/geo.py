"""Geo: each trainer trains a local copy; every k steps it sends what it changed and takes in what others did.

For a row and for the dense block alike, with `old` = what the server had when we last spoke:
    send    delta = (local - old) / trainers;  old += delta
    receive local += server - old;  old = server
A row of the local copy has its `old` beside it (`table/working_copy.py`).
So what all change all the time goes out little by little, 1/trainers of what is left each time: trainers learn much of
it alike, and their sum would go too far. That is the dense block, and rows that the last answer told of. Any other row
sends all of what was learnt, and one that is not touched any more the whole rest that it holds back: else a rare
feature, met by one trainer, would keep only 1/trainers. At the end of an epoch, and before a checkpoint, all that is
held back goes out, and the dense block becomes the servers' own, the same for all.

The update rule runs here, on the local copy, and its state stays here: what travels is the difference of values,
whatever rule has made it. Others' changes move values and leave the state, but FTRL's (`table/working_copy.py`).
Servers hold values alone, and so do checkpoints: state outlives a call of `fit`, not the process, and not a load.

Only the rows a trainer has met are copied. Where training began from nothing, a row that is met for the first time is
made here, as the servers would make it, and what others have learnt of it comes with the next exchange; else it is
fetched from the servers. Steps go on while an exchange is under way: whatever they add meanwhile stays in `local` and
goes out with the next delta.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import replace

import numpy as np

from sparsefleet.communicator.base import Communicator, Lane, Parameters, StepGradients
from sparsefleet.communicator.clipping import clipped
from sparsefleet.core.batch import F32, U64, Mark
from sparsefleet.core.interrupts import interrupts_held_off
from sparsefleet.core.keyed_rows import KeyedRows
from sparsefleet.kernels.float_mode import flushed
from sparsefleet.kernels.rows import unique_keys
from sparsefleet.store.base import Done, Pending
from sparsefleet.store.geo import GeoAnswer, GeoStore
from sparsefleet.store.rates import lowered
from sparsefleet.table.dense import DenseTable
from sparsefleet.table.spec import TableSpec
from sparsefleet.table.working_copy import WorkingCopy

logger = logging.getLogger("sparsefleet.communicator")

LATE_STEPS, LATE_SHARE = 8, 10
"""Steps, and at most which part of `k_steps`, that go on before an exchange's answer is waited for."""
TOUCHED_KEYS = 1 << 16
"""Keys of steps that are kept as they come, before those that came twice are left out: few enough for a core's cache.
All of 400 steps with word vectors are two million, tens of megabytes, and took twice as long to make distinct."""
_NO_KEYS: U64 = np.empty(0, np.uint64)


class GeoCommunicator(Communicator):
    keeps_state = True
    _well = False
    """Whether the last `fit` has ended well: then the next one goes on with its copies and their state."""
    _loads = 0

    def start(self, parameters: Parameters, done: int = 0) -> None:
        geo = self.store.geo
        self._steps = self._flushed = 0
        self._marks: list[Mark] = []
        """Of the steps since the last exchange."""
        self._under_way: Pending[GeoAnswer] | None = None
        self._answer_after = min(LATE_STEPS, self.config.k_steps // LATE_SHARE)
        self._counting, self._exchanging = threading.Lock(), threading.Lock()
        loads = geo.loads()
        if self._well and self.parameters is parameters and self._loads == loads:
            self._go_on()
            return
        super().start(parameters, done)
        fetch, self._loads = not geo.begins_empty(), loads
        if fetch:
            self._tell_what_begins_afresh()
        self._copies = {name: _LocalCopy(spec, geo, fetch, done) for name, spec in parameters.tables.items()}
        self._dense = DenseTable(parameters.dense_name, parameters.dense_values, parameters.dense_rule)
        self._dense.begin_at(done)
        self._old_dense = parameters.dense_values.copy()
        self._dense_news = np.empty_like(self._old_dense)
        """Room for a difference of dense values: fresh memory for each would cost more than the arithmetic."""
        self._well = True

    def _tell_what_begins_afresh(self) -> None:
        rules = {spec.rule for spec in self.parameters.tables.values()} | {self.parameters.dense_rule}
        names = sorted({rule.name for rule in rules if rule.state_width(1)})
        if names and self.crew.index == self.crew.first():
            logger.warning(
                "%s begins without state: in mode geo every trainer keeps its own, and no checkpoint holds it "
                "(docs/distributed.md)",
                ", ".join(names),
            )

    def _go_on(self) -> None:
        """Take in what others have changed since the last call of `fit`; rows not met before are theirs to tell."""
        for copy in self._copies.values():
            copy.fetch = True
        np.copyto(self.parameters.dense_values, self._old_dense)
        self._send(1, rows=False)
        self._take_in()

    def abandon(self) -> None:
        self._well = False

    def begin_epoch(self, number: int, lanes: int) -> list[Lane]:
        return [_GeoLane(self) for _ in range(lanes)]

    def pull(self, table: str, keys: U64) -> F32:
        return self._copies[table].pull(keys)

    def push(self, gradients: StepGradients) -> None:
        gradients = clipped(gradients, self.config.clip_norm)
        for table, rows in gradients.sparse.items():
            self._copies[table].push(rows)
        if len(gradients.dense):
            self._dense.push(gradients.dense)
        with self._counting:
            self._steps += 1
            self._marks += gradients.marks
            past = self._steps % self.config.k_steps
        if past == 0:
            with self._exchanging:
                self._send(self.config.trainers)
        if past == self._answer_after:
            with self._exchanging:
                self._take_in()

    def lower_rates(self, factor: float) -> None:
        for copy in self._copies.values():
            copy.lower_rate(factor)
        self._dense.rule = lowered(self._dense.rule, self._dense.step, factor)

    def staleness(self) -> int:
        return self._steps % self.config.k_steps

    @property
    def keeps_back(self) -> bool:
        return True

    def flush(self) -> None:
        with self._exchanging:
            steps = self._steps
            self._send(1, rows=steps != self._flushed)
            self._flushed = steps  # not before: interrupted on its way, a flush is made again before a save
            self._take_in()
            # What is scored and saved is the servers' model, the same for all trainers.
            np.copyto(self.parameters.dense_values, self._old_dense)

    def _send(self, shares: int, *, rows: bool = True) -> None:
        """Send one of so many shares of what was learnt; `rows` False: of the dense block only."""
        self._take_in()  # of the last time, if it has been waited for by nobody
        with interrupts_held_off():  # what was taken from the copies, and not sent, would be in no checkpoint
            copies = self._copies.items()
            sparse = {table: copy.take_delta(shares) if rows else copy.nothing() for table, copy in copies}
            with flushed():
                delta = np.subtract(self.parameters.dense_values, self._old_dense, out=self._dense_news)
                delta /= np.float32(shares)
                self._old_dense += delta
            with self._counting:
                marks, self._marks = self._marks, []
            self._under_way = self.store.geo.exchange(sparse, self.parameters.dense_part(delta), marks)

    def _take_in(self) -> None:
        """Take in the answer of the exchange under way, if there is one."""
        if self._under_way is None:
            return
        answer = self._under_way.wait()
        with interrupts_held_off():
            self._under_way = None
            for table, changed in answer.changed.items():
                self._copies[table].receive(changed)
            for values in answer.dense.values():
                with flushed():
                    np.subtract(values, self._old_dense, out=self._dense_news)
                self._dense.add(self._dense_news)
                np.copyto(self._old_dense, values)


class _GeoLane(Lane):
    def __init__(self, owner: GeoCommunicator) -> None:
        self._owner = owner

    def pull(self, table: str, keys: U64) -> Done[F32]:
        return Done(self._owner.pull(table, keys))

    def push(self, gradients: StepGradients) -> None:
        self._owner.push(gradients)


class _LocalCopy:
    """The rows of one table that this trainer has met, and which of them the next exchange is about."""

    def __init__(self, spec: TableSpec, geo: GeoStore, fetch: bool, done: int) -> None:
        """fetch: ask the servers for rows that are met for the first time; else they begin as the spec says."""
        self._geo, self._name, self._dim, self.fetch = geo, spec.name, spec.dim, fetch
        self._rows = WorkingCopy(spec, done)
        self._touched: list[U64] = []
        self._touched_keys, self._distinct_at = 0, TOUCHED_KEYS
        """How many keys these are, and at how many those that came twice are left out."""
        self._told = _NO_KEYS
        """Rows that answers have told of since the last sending: others change them too."""
        self._held_back = _NO_KEYS
        """Rows of which the last exchange sent a share only."""
        self._fetching, self._touching = threading.Lock(), threading.Lock()

    def pull(self, keys: U64) -> F32:
        if self.fetch and not self._rows.contains(keys).all():
            with self._fetching:  # once is enough, for all threads
                missing = keys[~self._rows.contains(keys)]
                if len(missing):
                    self._rows.hear(missing, self._geo.pull(self._name, missing).wait(), create=True)
        self._touch(keys)
        return self._rows.pull(keys)

    def push(self, gradients: KeyedRows) -> None:
        self._rows.push(gradients.keys, gradients.rows, gradients.counts)
        self._touch(gradients.keys)

    def lower_rate(self, factor: float) -> None:
        rows = self._rows
        rows.spec = replace(rows.spec, rule=lowered(rows.spec.rule, rows.step, factor))

    def _touch(self, keys: U64) -> None:
        """The next exchange is about these rows: also those only read, that we may hear what others do to them."""
        with self._touching:
            # A step pulls and pushes the same keys: one entry is enough, unless an exchange came in between.
            if self._touched and self._touched[-1] is keys:
                return
            self._touched.append(keys)
            self._touched_keys += len(keys)
            if self._touched_keys >= self._distinct_at:
                distinct = self._distinct_touched()
                self._touched, self._touched_keys = [distinct], len(distinct)
                self._distinct_at = max(TOUCHED_KEYS, 2 * len(distinct))

    def _distinct_touched(self) -> U64:
        """In the order in which they came first."""
        return unique_keys(np.concatenate(self._touched) if self._touched else _NO_KEYS)[0]

    def take_delta(self, shares: int) -> KeyedRows:
        """What the server should add: of rows that others change too a share, of all else what is not sent yet."""
        with self._touching:
            touched = self._distinct_touched()
            self._touched, self._touched_keys, self._distinct_at = [], 0, TOUCHED_KEYS
        _, places = unique_keys(np.concatenate([self._told, touched]))  # by first appearance: those told come first
        alike = places[len(self._told) :] < len(self._told)
        shared, self._told = touched[alike], _NO_KEYS
        keys, _ = unique_keys(np.concatenate([shared, touched[~alike], self._held_back]))
        self._held_back = shared if shares > 1 else _NO_KEYS
        delta = np.empty((len(keys), self._dim), np.float32)
        counts = np.empty(len(keys), np.uint32)
        self._rows.take(shared, shares, delta[: len(shared)], counts[: len(shared)])
        self._rows.take(keys[len(shared) :], 1, delta[len(shared) :], counts[len(shared) :])
        return KeyedRows(keys, delta, counts)

    def nothing(self) -> KeyedRows:
        return KeyedRows(_NO_KEYS, np.empty((0, self._dim), np.float32))

    def receive(self, changed: KeyedRows) -> None:
        """Take in what the server has now of rows that others changed; of all others we know it."""
        self._told = unique_keys(np.concatenate([self._told, changed.keys]))[0] if len(self._told) else changed.keys
        with self._fetching:  # of a row that is being fetched, the older value must not come last
            self._rows.hear(changed.keys, changed.rows)
