"""Meetings: trainers hand something in under a name and wait until all have. A barrier hands in nothing.

Trainers whose calls differ may all wait, each for the others, at different meetings. Where that has been so for the
time-out, none of them will ever come, and the job ends with an error that says who waits where.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sparsefleet.core.errors import StoreError
from sparsefleet.server.sessions import Sessions

KEPT = 64
"""Finished meetings that are remembered, for trainers who have not asked again since they were told who is missing."""
KEPT_TOLD = 4
"""The same of meetings whose outcome all have been told: an answer may get lost. What is handed in can be large, as
metrics of every user are, and lies here once for each trainer."""

Place = tuple[str, str, int]
"""kind, name, turn: the nth meeting of that name."""


@dataclass
class Meeting:
    payloads: dict[int, Any] = field(default_factory=dict)
    lives: dict[int, str] = field(default_factory=dict)
    """By trainer, the incarnation that came."""
    result: list[Any] | None = None
    first: int | None = None
    """Who of those that came does what one does for all. Settled once: one that is slow to give signs of life could be
    told of another than the others are, and nobody would do it."""
    told: set[int] = field(default_factory=set)
    """Who has been told the outcome."""


@dataclass
class Waiting:
    """Where a trainer waits for others without a limit of its own."""

    place: Place
    since: float
    asked: float


ASKED_AGAIN = 5.0
"""Seconds after which a trainer that has not asked again waits no more: it asks about every second."""


class Meetings:
    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._meetings: dict[Place, Meeting] = {}
        self._met: dict[tuple[str, str], int] = {}
        """By kind and name, the last turn that is over."""
        self._waiting: dict[int, Waiting] = {}
        self.on_met: list[Callable[[Place], None]] = []
        """Called with `sessions.changed` held when all have come to a meeting."""
        sessions.on_new_life.append(self._forget_life)

    def meet(
        self, place: Place, worker: int, incarnation: str, payload: Any, patience: float, bounded: bool = False
    ) -> dict[str, Any]:
        """All payloads in the order of the trainers, or after `patience` seconds who is missing; then ask again.

        bounded: the trainer will not ask for ever.
        """
        sessions, until = self._sessions, time.monotonic() + patience
        with sessions.changed:
            sessions.check(worker, incarnation)
            sessions.check_job()
            if place not in self._meetings and place[2] > self._met.get(place[:2], 0):
                self._meetings[place] = Meeting()
            meeting = self._meetings.get(place)
            if meeting is None or (
                meeting.result is not None and meeting.lives.get(worker, incarnation) != incarnation
            ):
                raise sessions.late_error(_in_words(place), worker)
            if meeting.result is None:
                meeting.payloads[worker], meeting.lives[worker] = payload, incarnation
                sessions.changed.notify_all()
            if not bounded:
                self._note_waiting(worker, place)
            while meeting.result is None:
                missing = sessions.in_meetings() - meeting.payloads.keys()
                if not missing:
                    meeting.result = [meeting.payloads[one] for one in sorted(meeting.payloads)]
                    meeting.first = min(meeting.payloads.keys() & sessions.in_meetings(), default=sessions.first())
                    self._met[place[:2]] = max(place[2], self._met.get(place[:2], 0))
                    for look in self.on_met:
                        look(place)
                    sessions.changed.notify_all()
                    break
                if lost := sessions.lost_among(missing):
                    if error := sessions.go_on_without(_in_words(place), lost):
                        raise error
                    continue
                left = until - time.monotonic()
                if left <= 0:
                    self._check_deadlock()
                    return {"missing": [self._whereabouts(one) for one in sorted(missing)]}
                sessions.changed.wait(min(left, 0.25))
            self._waiting.pop(worker, None)
            meeting.told.add(worker)
            self._forget_old()
            return {"all": meeting.result, "first": meeting.first}

    def turns(self) -> list[list[Any]]:
        """With `sessions.changed` held: kind, name and last turn of the meetings that are over, for who comes late."""
        return [[kind, name, turn] for (kind, name), turn in self._met.items()]

    def _note_waiting(self, worker: int, place: Place) -> None:
        now, known = time.monotonic(), self._waiting.get(worker)
        if known is None or known.place != place or now - known.asked > ASKED_AGAIN:
            known = self._waiting[worker] = Waiting(place, now, now)
        known.asked = now

    def _waits_at(self, worker: int) -> Waiting | None:
        waiting = self._waiting.get(worker)
        return waiting if waiting is not None and time.monotonic() - waiting.asked <= ASKED_AGAIN else None

    def _whereabouts(self, worker: int) -> str:
        waiting = self._waits_at(worker)
        elsewhere = f", which waits at {_in_words(waiting.place)}" if waiting is not None else ""
        return f"{self._sessions.name(worker)}{elsewhere}"

    def _check_deadlock(self) -> None:
        sessions = self._sessions
        waiting = {worker: self._waits_at(worker) for worker in sessions.in_meetings()}
        since = [each.since for each in waiting.values() if each is not None]
        if len(since) < len(waiting) or time.monotonic() - max(since) < sessions.config.timeout:
            return
        where = ", ".join(f"worker {worker} at {_in_words(at.place)}" for worker, at in sorted(waiting.items()) if at)
        sessions.break_job(
            f"its trainers wait for each other at different places: {where}. All trainers must make the same calls in "
            "the same order (global_shuffle, fit, infer, barriers)"
        )
        sessions.check_job()

    def _forget_life(self, worker: int | None) -> None:
        """A finished meeting stays the former life's: the others are past it, and must not be waited for there."""
        if worker is None:
            self._meetings, self._met, self._waiting = {}, {}, {}
            return
        self._waiting.pop(worker, None)
        for meeting in self._meetings.values():
            if meeting.result is None:
                meeting.payloads.pop(worker, None)

    def _forget_old(self) -> None:
        finished = [place for place, meeting in self._meetings.items() if meeting.result is not None]
        told = [place for place in finished if self._meetings[place].payloads.keys() <= self._meetings[place].told]
        for place in {*finished[:-KEPT], *told[:-KEPT_TOLD]}:
            del self._meetings[place]


def _in_words(place: Place) -> str:
    return f"{place[0]} {place[1]!r}"


def read_place(data: dict[str, Any]) -> Place:
    kind, name, turn = data.get("kind"), data.get("name"), data.get("turn")
    if kind not in ("barrier", "reduce") or not isinstance(name, str) or type(turn) is not int:
        raise StoreError(f"a meeting has a kind, a name and a turn; got {kind!r}, {name!r}, {turn!r}")
    return str(kind), name, turn
