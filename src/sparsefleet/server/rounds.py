"""Rounds of sync mode: every trainer's gradients of step t, summed in the trainers' order, are one step of each rule.

A round is open until all trainers in it have contributed; whoever comes last applies it, and all get the answer. A
trainer that left is not waited for. One that is lost ends the wait with an error that names it, or is dropped, by
`lost_trainer`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from sparsefleet.core.errors import StoreError
from sparsefleet.core.keyed_rows import KeyedRows
from sparsefleet.kernels.rows import sum_blocks, sum_rows
from sparsefleet.server.cut import SLICE, CutGate, OnWait, PushLane
from sparsefleet.server.holdings import Bound, BoundDense, BoundRows, apply_push
from sparsefleet.server.sessions import Sessions


@dataclass(frozen=True, slots=True)
class Contribution:
    lane: PushLane
    number: int
    parts: Sequence[Bound]
    steps: int
    """Batches of the trainer that the parts are of."""


@dataclass
class Round:
    number: int
    contributions: dict[int, Contribution] = field(default_factory=dict)
    applying: bool = False
    done: bool = False
    error: StoreError | None = None


class Rounds:
    def __init__(self, sessions: Sessions, gate: CutGate) -> None:
        self._sessions, self._gate = sessions, gate
        self._open = Round(1)
        sessions.on_new_life.append(self._forget_life)

    @property
    def waiting(self) -> int:
        """Contributions that wait for others."""
        return len(self._open.contributions)

    def contribute(self, lane: PushLane, number: int, parts: Sequence[Bound], steps: int, on_wait: OnWait) -> int:
        """Hand in a part of the open round and return the round's number when it is applied."""
        with self._sessions.changed:
            if number <= lane.applied:
                return lane.round  # sent again after a lost answer
            # At once: while it waits for a round that is being applied, the others must not begin the next without it.
            self._sessions.come_back(lane.worker)
        while not self._joinable(lane):
            on_wait(f"round {self._open.number} is being applied")
        with self._sessions.changed:
            if number <= lane.applied:
                return lane.round  # sent again after a lost answer
            current = self._open
            mine = current.contributions.get(lane.worker)
            if mine is None:
                current.contributions[lane.worker] = Contribution(lane, number, parts, steps)
                self._sessions.changed.notify_all()
            elif mine.lane is not lane or mine.number != number:
                raise StoreError(
                    f"worker {lane.worker} contributed twice to round {current.number}: a trainer merges its threads' "
                    "gradients and pushes once"
                )
        while not self._settled(current, on_wait):
            on_wait(self._what_it_waits_for(current))
        if current.error is not None:
            raise current.error
        return current.number

    def _what_it_waits_for(self, current: Round) -> str:
        with self._sessions.changed:
            missing = sorted(self._sessions.in_rounds() - current.contributions.keys())
            return f"round {current.number} waits for {', '.join(map(self._sessions.name, missing)) or 'its turn'}"

    def _joinable(self, lane: PushLane) -> bool:
        """Wait a while; False while the open round is applied without this trainer, which had left: its is the next."""
        until = time.monotonic() + SLICE
        with self._sessions.changed:
            while self._open.applying and lane.worker not in self._open.contributions:
                if time.monotonic() >= until:
                    return False
                self._sessions.changed.wait(SLICE)
            return True

    def _settled(self, current: Round, on_wait: OnWait) -> bool:
        """Wait a while; True when the round is over. Applies it if it is complete."""
        sessions, until = self._sessions, time.monotonic() + SLICE
        with sessions.changed:
            while not current.done and time.monotonic() < until:
                missing = sessions.in_rounds() - current.contributions.keys()
                if not missing and not current.applying:
                    current.applying = True
                    break
                if (lost := sessions.lost_among(missing)) and not current.applying:
                    error = sessions.go_on_without(f"round {current.number}", lost)
                    if error is None:
                        continue
                    self._close(current, error)
                    break
                sessions.changed.wait(min(0.25, SLICE))
            else:
                return current.done
            if current.done:
                return True
        self._apply(current, on_wait)
        return True

    def _apply(self, current: Round, on_wait: OnWait) -> None:
        contributions = [current.contributions[worker] for worker in sorted(current.contributions)]
        error: StoreError | None = None
        try:
            self._gate.enter([(one.lane, one.number) for one in contributions], on_wait)
        except BaseException:
            # Our client died while a checkpoint held us off: the round is still whole, another contributor applies it.
            with self._sessions.changed:
                current.applying = False
                self._sessions.changed.notify_all()
            raise
        try:
            for bound in merged([one.parts for one in contributions]):
                apply_push(bound)
            for one in contributions:
                one.lane.applied, one.lane.round = one.number, current.number
                one.lane.steps += one.steps
        except Exception as problem:
            error = StoreError(f"round {current.number} failed on this server: {problem!r}")
        finally:
            self._gate.leave()
            with self._sessions.changed:
                self._close(current, error)

    def _forget_life(self, worker: int | None) -> None:
        """What a former life handed in is not another's part of the round, unless it is being applied already."""
        current = self._open
        for one in list(current.contributions) if worker is None else [worker]:
            if not current.applying:
                current.contributions.pop(one, None)

    def _close(self, current: Round, error: StoreError | None) -> None:
        current.error, current.done = error, True
        current.contributions = {} if error is not None else current.contributions
        self._open = Round(current.number + (error is None))
        self._sessions.changed.notify_all()


def merged(contributions: Sequence[Sequence[Bound]]) -> list[Bound]:
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
        total = sum_rows([KeyedRows(part.keys, part.values) for part in same])
        result.append(BoundRows(same[0].table, total.keys, total.rows))
    for same_block in dense.values():
        result.append(BoundDense(same_block[0].block, sum_blocks([part.values for part in same_block])))
    return result
