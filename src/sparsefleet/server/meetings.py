"""Meetings: trainers hand something in under a name and wait until all have. A barrier hands in nothing."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from sparsefleet.core.errors import StoreError
from sparsefleet.server.sessions import Sessions

KEPT = 64
"""Finished meetings that are remembered, for trainers who ask again after a lost answer."""

Place = tuple[str, str, int]
"""kind, name, turn: the nth meeting of that name."""


@dataclass
class Meeting:
    payloads: dict[int, Any] = field(default_factory=dict)
    lives: dict[int, str] = field(default_factory=dict)
    """By trainer, the incarnation that came."""
    result: list[Any] | None = None


class Meetings:
    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._meetings: dict[Place, Meeting] = {}
        self._met: dict[tuple[str, str], int] = {}
        """By kind and name, the last turn that is over."""
        sessions.on_new_life.append(self._forget_life)

    def meet(self, place: Place, worker: int, incarnation: str, payload: Any, patience: float) -> dict[str, Any]:
        """All payloads in the order of the trainers, or after `patience` seconds who is missing; then ask again."""
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
                raise sessions.late_error(f"{place[0]} {place[1]!r}", worker)
            if meeting.result is None:
                meeting.payloads[worker], meeting.lives[worker] = payload, incarnation
                sessions.changed.notify_all()
            while meeting.result is None:
                missing = sessions.in_meetings() - meeting.payloads.keys()
                if not missing:
                    meeting.result = [meeting.payloads[one] for one in sorted(meeting.payloads)]
                    self._met[place[:2]] = max(place[2], self._met.get(place[:2], 0))
                    self._forget_old()
                    sessions.changed.notify_all()
                    break
                if lost := sessions.lost_among(missing):
                    if error := sessions.go_on_without(f"{place[0]} {place[1]!r}", lost):
                        raise error
                    continue
                left = until - time.monotonic()
                if left <= 0:
                    return {"missing": [sessions.name(one) for one in sorted(missing)]}
                sessions.changed.wait(min(left, 0.25))
            return {"all": meeting.result}

    def _forget_life(self, worker: int | None) -> None:
        """A finished meeting stays the former life's: the others are past it, and must not be waited for there."""
        if worker is None:
            self._meetings, self._met = {}, {}
            return
        for meeting in self._meetings.values():
            if meeting.result is None:
                meeting.payloads.pop(worker, None)

    def _forget_old(self) -> None:
        finished = [place for place, meeting in self._meetings.items() if meeting.result is not None]
        for place in finished[:-KEPT]:
            del self._meetings[place]


def read_place(data: dict[str, Any]) -> Place:
    kind, name, turn = data.get("kind"), data.get("name"), data.get("turn")
    if kind not in ("barrier", "reduce") or not isinstance(name, str) or type(turn) is not int:
        raise StoreError(f"a meeting has a kind, a name and a turn; got {kind!r}, {name!r}, {turn!r}")
    return str(kind), name, turn
