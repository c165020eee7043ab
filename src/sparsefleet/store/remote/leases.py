"""RemoteLender: a trainer's pieces of leased data, from server 0 (`server/leases.py`)."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sparsefleet.core.batch import Mark
from sparsefleet.core.leases import Lease, to_progress
from sparsefleet.crew.base import LeaseState
from sparsefleet.store.remote.link import ServerLink

LAP_ENDS = ": nothing left to take"
"""So ends the name of the meeting at a lap's end, after the name of the pass."""
FIT_ENDS = "cut: the end"
"""The name of the last meeting of a call of `fit`, in a job that heals (`Run.end`)."""


class RemoteLender:
    """Implements `PassLender` (`crew/base.py`). Any thread may call it."""

    def __init__(
        self,
        link: ServerLink,
        identity: Mapping[str, Any],
        name: str,
        barrier: Callable[[str], None],
        *,
        told: Mapping[str, Any] | None = None,
        laps: int = 0,
    ) -> None:
        """name: of the pass, the same for all trainers. told: to trainers that come while it is under way; None: none
        may come. laps: that are over."""
        self._link, self._identity, self._name, self._barrier = link, dict(identity), name, barrier
        self.pieces = self._untaken = self.done_here = 0
        self._laps, self._told = laps, told
        self.leaves = False
        self._lock = threading.Lock()
        self._ahead: deque[Lease] = deque()
        """Pieces that this trainer has, and that none of its threads has begun to read."""
        self._taken: list[int] = []
        self.samples = 0
        """In the model of this pass, of all trainers, as the last answer said."""

    def open(
        self, plan: str, pieces: int, marks: Mapping[int, Mark], position: Callable[[], Mapping[str, Any]]
    ) -> None:
        self.pieces = self._untaken = pieces
        said = {"plan": plan, "pieces": pieces, "progress": to_progress(marks.values())}
        if self._ask("lease_open", **said).get("wanted"):
            joinable = {} if self._told is None else {"position": position(), "told": dict(self._told)}
            self._ask("lease_open", **said, **{"position": {}, **joinable})

    def take(self) -> Lease | None:
        with self._lock:
            if not self._ahead:
                self._fetch()
            if not self._ahead:
                return None
            lease = self._ahead.popleft()
            self._taken.append(lease.piece)
            return lease

    def _fetch(self) -> None:
        """With the lock held. The request has a time-out; another thread would ask for the same meanwhile."""
        answer = self._ask("lease_take")
        self._untaken, self.samples = int(answer["untaken"]), int(answer["samples"])
        self.leaves = self.leaves or answer.get("leave") is True
        for piece, mark in answer.get("pieces", ()):
            self._ahead.append(Lease(piece, None if mark is None else Mark(piece, int(mark[0]), int(mark[1]))))

    def note(self, marks: Sequence[Mark]) -> None:
        self._ask("lease_note", progress=to_progress(marks))

    def all_done(self) -> None:
        taken, self._taken = self._taken, []
        self.note([Mark(piece, 0, -1, done=True) for piece in taken])
        self.done_here += len(taken)

    def end_lap(self) -> int:
        self._laps += 1
        self._barrier(f"{self._name}{LAP_ENDS}")
        return int(self._ask("lease_lap", lap=self._laps)["left"])

    def state(self) -> LeaseState | None:
        answer = self._ask("lease_state")
        return LeaseState(int(answer["left"]), answer["progress"]) if answer["name"] == self._name else None

    def share(self) -> float:
        return 1.0 - self._untaken / self.pieces if self.pieces else 0.0

    def _ask(self, action: str, **data: Any) -> dict[str, Any]:
        return self._link.action(action, {**self._identity, "name": self._name, **data})
