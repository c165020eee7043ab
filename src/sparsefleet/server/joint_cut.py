"""JointCuts: the trainers' part in a checkpoint of the whole job, agreed on at server 0.

A trainer `attend`s while it trains and `depart`s when its run is over, leaving word of where it stands. The one that
saves, the owner, opens a cut and takes all the others through its phases; they watch for them:

    (opened)
    pause       send what you keep back; those that keep nothing back may go on
    report      the servers are frozen, and all have applied the same: say where you stand with what they have of you
    (closed)    go on; the servers have named their cuts, and write them while training goes on

A trainer that has not begun to train is not waited for: it stands where its run will begin. It may begin until all
others have paused, and then takes part; or else once the cut is closed.

A cut ends with its owner: if that one is lost, the others go on.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sparsefleet.core.errors import StoreError
from sparsefleet.server.sessions import Sessions

PAUSE, REPORT = "pause", "report"
LOOK_EVERY = 0.25
"""Losses are found by looking; everything else wakes those who wait."""

Asked = tuple[Any, Any]
"""A cut and its phase."""


@dataclass
class JointCut:
    owner: int
    incarnation: str
    name: str = field(default_factory=lambda: uuid.uuid4().hex)
    phase: str | None = None
    members: set[int] = field(default_factory=set)
    """Who has paused, and so must report."""
    settled: bool = False
    """All have paused: whoever begins to train now has no part in it, and waits until it is closed."""
    answers: dict[int, Any] = field(default_factory=dict)
    failure: StoreError | None = None


class JointCuts:
    """`sessions.changed` guards everything here."""

    def __init__(self, sessions: Sessions, batches: Callable[[int, str], int]) -> None:
        """`batches`: how many batches of a trainer are in what the server has applied."""
        self._sessions, self._batches = sessions, batches
        self._attending: set[int] = set()
        self._begun: set[int] = set()
        """Those that have trained, or have begun to."""
        self._departed: dict[int, Any] = {}
        """By trainer, where its last run left it."""
        self._cut: JointCut | None = None
        sessions.on_new_life.append(self._forget_life)

    def not_begun(self) -> list[int]:
        """Trainers that have never begun to train: nobody knows where they would have."""
        with self._sessions.changed:
            return sorted(set(range(self._sessions.workers)) - self._begun)

    # --- every trainer

    def attend(self, worker: int, incarnation: str, patience: float) -> dict[str, Any]:
        """From now on a cut waits for this trainer. `busy` while one is made in which it has no part."""
        with self._sessions.changed:
            self._sessions.check(worker, incarnation)
            if not self._wait(lambda: self._cut is None or not self._cut.settled, patience):
                return {"busy": True}
            self._attending.add(worker)
            self._begun.add(worker)
            self._departed.pop(worker, None)
            self._sessions.changed.notify_all()
            return {"steps": self._batches(worker, incarnation)}

    def depart(self, worker: int, incarnation: str, report: Any, patience: float) -> dict[str, Any]:
        """This trainer's run is over. `busy` while a cut needs it: it answers that first."""
        with self._sessions.changed:
            self._sessions.check(worker, incarnation)
            if not self._wait(lambda: self._cut is None, patience):
                return {"busy": True}
            self._attending.discard(worker)
            self._departed[worker] = report
            self._sessions.changed.notify_all()
            return {}

    def watch(self, worker: int, incarnation: str, served: Asked, patience: float) -> dict[str, Any]:
        """What this trainer is to do next, after what it has `served`; {} where there is nothing yet."""

        def asked() -> Asked:
            cut = self._cut
            mine = cut is not None and cut.owner != worker and cut.phase is not None
            if mine and cut is not None and (cut.phase == PAUSE or worker in cut.members):
                return cut.name, cut.phase
            return None, None

        with self._sessions.changed:
            self._sessions.check(worker, incarnation)
            self._wait(lambda: asked() != served or worker not in self._attending, patience)
            if worker not in self._attending:
                return {"departed": True}
            if asked() == served:
                return {}
            name, phase = asked()
            return {"cut": name, "phase": phase, "steps": self._batches(worker, incarnation)}

    def answer(self, worker: int, incarnation: str, asked: Asked, report: Any, failure: Any) -> None:
        with self._sessions.changed:
            self._sessions.check(worker, incarnation)
            cut = self._cut
            if cut is None or asked != (cut.name, cut.phase):
                return  # too late: the owner has given up
            if failure is not None:
                cut.failure = StoreError(f"worker {worker}: {failure}")
            cut.answers[worker] = report
            if cut.phase == PAUSE:
                cut.members.add(worker)
            self._sessions.changed.notify_all()

    # --- the owner

    def open(self, worker: int, incarnation: str) -> dict[str, Any]:
        with self._sessions.changed:
            self._sessions.check(worker, incarnation)
            self._sessions.check_job()
            self._close_if_abandoned()
            if self._cut is not None:
                raise StoreError(
                    f"{self._sessions.name(self._cut.owner)} is saving a checkpoint right now: save from one trainer, "
                    "or wait for it"
                )
            self._cut = JointCut(worker, incarnation)
            return {"cut": self._cut.name}

    def ask(self, name: str, phase: str, patience: float) -> dict[str, Any]:
        """Take all trainers into a phase. Their `reports`, or after a while who is missing; then ask again."""
        with self._sessions.changed:
            cut = self._mine(name)
            if phase not in (PAUSE, REPORT):
                raise StoreError(f"phase {phase!r} does not exist; there are {PAUSE} and {REPORT}")
            if cut.phase != phase:
                cut.phase, cut.answers = phase, {}
                self._sessions.changed.notify_all()
            done = self._wait(lambda: self._cut is not cut or cut.failure or not self._missing(cut), patience)
            self._mine(name)
            if cut.failure:
                raise cut.failure
            if not done:
                return {"missing": [self._sessions.name(worker) for worker in sorted(self._missing(cut))]}
            cut.settled = True
            # A lost trainer's word may be of a call of `fit` before the present one, and would take all back there.
            lost = self._sessions.is_lost_for_good
            departed = {worker: report for worker, report in self._departed.items() if not lost(worker)}
            return {
                "reports": {str(worker): report for worker, report in {**departed, **cut.answers}.items()},
                "steps": self._batches(cut.owner, cut.incarnation),
            }

    def close(self, name: str) -> dict[str, Any]:
        with self._sessions.changed:
            if self._cut is not None and self._cut.name == name:
                self._cut = None
                self._sessions.changed.notify_all()
            return {}

    # --- with `changed` held

    def _missing(self, cut: JointCut) -> set[int]:
        """Who has not answered yet; the lost are left out, or end it all with an error, as the policy is."""
        present = self._sessions.in_meetings() - {cut.owner}
        wanted = present & (self._attending if cut.phase == PAUSE else cut.members)
        missing = wanted - cut.answers.keys()
        if lost := self._sessions.lost_among(missing):
            if error := self._sessions.go_on_without("a checkpoint's cut", lost):
                cut.failure = error  # as it is: one that says to rejoin must be told from a fault
                return set()
            missing -= set(lost)
        return missing

    def _forget_life(self, worker: int | None) -> None:
        """Another life of the trainer has not begun to train, and is nowhere yet."""
        if worker is None:
            self._attending, self._begun, self._departed, self._cut = set(), set(), {}, None
            return
        self._attending.discard(worker)
        self._begun.discard(worker)
        self._departed.pop(worker, None)
        cut = self._cut
        if cut is not None and cut.owner == worker:
            self._cut = None
        elif cut is not None and worker in cut.members:
            cut.failure = StoreError(f"worker {worker} was started again while a checkpoint was saved. Save again")

    def _mine(self, name: str) -> JointCut:
        if self._cut is None or self._cut.name != name:
            raise StoreError("this checkpoint's cut is over: its trainer was silent for too long. Save again")
        return self._cut

    def _close_if_abandoned(self) -> None:
        cut = self._cut
        if cut is not None and (
            cut.owner not in self._sessions.in_meetings() or self._sessions.lost_among([cut.owner])
        ):
            self._cut = None
            self._sessions.changed.notify_all()

    def _wait(self, reached: Callable[[], object], patience: float) -> bool:
        until = time.monotonic() + patience
        while not reached():
            self._close_if_abandoned()
            left = until - time.monotonic()
            if left <= 0:
                return bool(reached())
            self._sessions.changed.wait(min(left, LOOK_EVERY))
        return True
