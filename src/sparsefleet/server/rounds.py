"""Rounds of sync mode: every trainer's gradients of step t, summed in the trainers' order, are one step of each rule.

A round is open until all trainers in it have contributed; whoever comes last applies it, as one record, and wakes the
others. A trainer that left is not waited for. One that is lost ends the wait with an error that names it, or is
dropped, by `lost_trainer`.

A contribution costs a look at the set of those that are still missing; only when a trainer comes, goes or is lost does
anybody count anew (`benchmarks/sync_rounds.py` measures it).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from sparsefleet.core.errors import StoreError
from sparsefleet.core.keyed_rows import KeyedRows
from sparsefleet.kernels.rows import sum_blocks, sum_rows
from sparsefleet.server.gate import SLICE, OnWait
from sparsefleet.server.holdings import Bound, BoundDense, BoundRows, apply_all
from sparsefleet.server.ledger import ROUND, Account, Ledger, Record, Step
from sparsefleet.server.sessions import Sessions

LOOK_EVERY = 0.25
"""Seconds between two looks for trainers that have fallen silent."""


@dataclass(frozen=True, slots=True)
class Contribution:
    step: Step
    parts: Sequence[Bound]


@dataclass
class Round:
    number: int
    missing: set[int]
    """Trainers of the round that have not contributed."""
    contributions: dict[int, Contribution] = field(default_factory=dict)
    applying: bool = False
    done: bool = False
    error: StoreError | None = None
    bell: threading.Event = field(default_factory=threading.Event)
    """Rung when the round is over; before that, each time that its contributors should look again."""
    looked: float = 0.0
    """When somebody looked last for lost trainers."""


class Rounds:
    """`sessions.changed` guards everything here."""

    def __init__(self, sessions: Sessions, ledger: Ledger) -> None:
        self._sessions, self._ledger = sessions, ledger
        self._open = Round(1, set())
        self._before: dict[int, int | None] = {}
        """By trainer that was started again, how many rounds were over when it first contributed; None: it has not."""
        self._entering: set[int] = set()
        """Trainers that came late, and are in the rounds after the open one."""
        sessions.on_new_life.append(self._forget_life)
        sessions.on_change.append(self._count_anew)

    @property
    def waiting(self) -> int:
        """Contributions that wait for others."""
        return len(self._open.contributions)

    def holds(self, worker: int, incarnation: str) -> bool:
        """With `sessions.changed` held: whether this life has handed in a part that is not applied yet."""
        mine = self._open.contributions.get(worker)
        return mine is not None and mine.step.account.incarnation == incarnation

    def finish(self) -> None:
        """Nobody is in the rounds any more: apply what somebody handed in who died before the others left."""
        with self._sessions.changed:
            current = self._open
            current.missing = set(self._sessions.in_rounds() - current.contributions.keys())
            mine_to_apply = bool(current.contributions) and self._take_over(current)
        if mine_to_apply:
            self._apply(current, lambda reason: None)

    def enter(self, worker: int, incarnation: str) -> None:
        """A trainer that came late takes part from the round after the open one on.

        Called on every server while all are frozen with the same steps applied: then the open round is the same one
        everywhere, though on one server all of its parts may be there already and on another not.
        """
        with self._sessions.changed:
            self._sessions.check(worker, incarnation)
            self._before[worker] = None  # it counts rounds from its first one
            self._entering.add(worker)
            self._let_in_where_nobody_is()

    def leave(self, worker: int, incarnation: str) -> None:
        """A trainer that came late, and got no data, goes before its first round: it is not let in there."""
        with self._sessions.changed:
            self._sessions.check(worker, incarnation)
            self._entering.discard(worker)

    def wait_to_be_let_in(self, account: Account, on_wait: OnWait) -> None:
        """Of a trainer that came late: return once the round is over that is open without it."""
        worker = account.worker
        while True:
            with self._sessions.changed:
                self._sessions.check(worker, account.incarnation)
                if worker not in self._entering:
                    return
                bell = self._open.bell
            if not bell.wait(SLICE):
                on_wait("the open round is without this trainer")

    def contribute(self, step: Step, parts: Sequence[Bound], on_wait: OnWait) -> int:
        """Hand in a part of the open round, and return the round's number once it is applied.

        To a trainer that was started again, rounds count from its first one: where its former life died within a round,
        the servers may have applied different numbers of them.
        """
        account, sequence = step.account, step.sequence
        worker = account.worker
        with self._sessions.changed:
            if self._made_before(account, sequence):
                return account.round  # sent again after a lost answer
        self.wait_to_be_let_in(account, on_wait)
        with self._sessions.changed:
            # At once: while it waits for a round that is being applied, the others must not begin the next without it.
            self._sessions.come_back(worker)
            current = self._open
            bell = current.bell if current.applying and worker not in current.contributions else None
        while bell is not None:  # the open round is applied without this trainer, which had left: its is the next
            if not bell.wait(SLICE):
                on_wait(f"round {current.number} is being applied")
            with self._sessions.changed:
                current = self._open
                bell = current.bell if current.applying and worker not in current.contributions else None
        with self._sessions.changed:
            if self._made_before(account, sequence):
                return account.round
            current = self._open
            mine = current.contributions.get(worker)
            if mine is None:
                account.check_open()
                if not current.contributions:
                    current.missing = set(self._sessions.in_rounds())
                current.contributions[worker] = Contribution(step, parts)
                current.missing.discard(worker)
                if self._before.get(worker, 0) is None:
                    self._before[worker] = current.number - 1
            elif mine.step.account is not account or mine.step.sequence != sequence:
                raise StoreError(
                    f"worker {worker} contributed twice to round {current.number}: a trainer merges its threads' "
                    "gradients and pushes once"
                )
            mine_to_apply = self._take_over(current)
            bell, first = current.bell, len(current.contributions) == 1
        if mine_to_apply:
            self._apply(current, on_wait)
        self._wait_for_the_end(current, bell, LOOK_EVERY if first else SLICE, on_wait)
        if current.error is not None:
            raise current.error
        return account.round

    def _made_before(self, account: Account, sequence: int) -> bool:
        return sequence <= account.sequence

    def _wait_for_the_end(self, current: Round, bell: threading.Event, patience: float, on_wait: OnWait) -> None:
        told = time.monotonic()
        while not current.done:
            rung = bell.wait(patience)
            if current.done:
                return
            with self._sessions.changed:
                mine_to_apply = self._look_for_losses(current, at_once=rung)
                bell = current.bell
            if mine_to_apply:
                self._apply(current, on_wait)
            elif not current.done and time.monotonic() - told >= SLICE:
                told = time.monotonic()
                on_wait(self._what_it_waits_for(current))

    def _what_it_waits_for(self, current: Round) -> str:
        with self._sessions.changed:
            missing = sorted(current.missing)
            return f"round {current.number} waits for {', '.join(map(self._sessions.name, missing)) or 'its turn'}"

    def _apply(self, current: Round, on_wait: OnWait) -> None:
        contributions = [current.contributions[worker] for worker in sorted(current.contributions)]
        steps, begun = [one.step for one in contributions], False
        error: StoreError | None = None

        def change() -> None:
            nonlocal begun
            begun = True
            apply_all(total)
            for step in steps:
                step.account.round = current.number - (self._before.get(step.account.worker) or 0)

        try:
            total = summed([one.parts for one in contributions])
            self._ledger.apply(Record(ROUND, steps, total), change, on_wait)
        except BaseException as problem:
            if not begun:
                # Our client died while a checkpoint held us off, say: the round is still whole, another contributor
                # applies it.
                with self._sessions.changed:
                    current.applying = False
                    self._ring(current)
                raise
            error = StoreError(f"round {current.number} failed on this server: {problem!r}")
        with self._sessions.changed:
            self._close(current, error)

    # --- with `changed` held

    def _take_over(self, current: Round) -> bool:
        """Whether the caller is to apply the round."""
        if current.missing or current.applying or current.done:
            return False
        current.applying = True
        return True

    def _look_for_losses(self, current: Round, at_once: bool) -> bool:
        """Go on without lost trainers, or end the round with an error; True where the caller is to apply it."""
        now = time.monotonic()
        if current.applying or current.done or not (at_once or now - current.looked >= LOOK_EVERY):
            return False
        current.looked = now
        while lost := self._sessions.lost_among(current.missing):
            error = self._sessions.go_on_without(f"round {current.number}", lost)
            if error is not None:
                self._close(current, error)
                return False
        return self._take_over(current)

    def _let_in_where_nobody_is(self) -> None:
        """No round is open that would come to its end without those that enter."""
        current = self._open
        if self._entering and not current.contributions and not current.applying and not self._sessions.in_rounds():
            self._let_in()

    def _let_in(self) -> None:
        entering, self._entering = self._entering, set()
        for worker in sorted(entering):
            self._sessions.come_back(worker)
        self._ring(self._open)

    def _count_anew(self) -> None:
        """Somebody has come, gone or been lost."""
        self._let_in_where_nobody_is()
        current = self._open
        if current.contributions and not current.applying:
            current.missing = set(self._sessions.in_rounds() - current.contributions.keys())
            self._ring(current)

    def _forget_life(self, worker: int | None) -> None:
        """What a former life handed in is not another's part of the round, unless it is being applied already."""
        current = self._open
        if not current.applying:
            for one in list(current.contributions) if worker is None else [worker]:
                current.contributions.pop(one, None)
        self._entering = set() if worker is None else self._entering - {worker}
        if worker is not None:
            self._before[worker] = None
            return
        current.number = 0 if current.applying else 1  # a new job: the next round is its first
        self._before = {}

    def _ring(self, current: Round) -> None:
        bell, current.bell = current.bell, threading.Event()
        bell.set()

    def _close(self, current: Round, error: StoreError | None) -> None:
        current.error, current.done = error, True
        current.contributions = {} if error is not None else current.contributions
        self._open = Round(current.number + (error is None), set())
        current.bell.set()
        if error is None and self._entering:
            self._let_in()


def summed(contributions: Sequence[Sequence[Bound]]) -> list[Bound]:
    """Sums per table and block, added in the order given, so that the bits do not depend on who came first."""
    rows: dict[str, list[BoundRows]] = {}
    dense: dict[str, list[BoundDense]] = {}
    for parts in contributions:
        for part in parts:
            if isinstance(part, BoundRows):
                rows.setdefault(part.name, []).append(part)
            else:
                dense.setdefault(part.name, []).append(part)
    result: list[Bound] = []
    for same in rows.values():
        total = sum_rows([KeyedRows(part.keys, part.values, part.counts) for part in same])
        result.append(BoundRows(same[0].table, total.keys, total.rows, total.counts))
    for same_block in dense.values():
        result.append(BoundDense(same_block[0].block, sum_blocks([part.values for part in same_block])))
    return result
