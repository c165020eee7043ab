"""ServerState: everything one server knows, shared by its streams and actions."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

from sparsefleet.core.errors import StoreError
from sparsefleet.server.config import ServerConfig
from sparsefleet.server.cut import CutGate, PushLane
from sparsefleet.server.cuts import Cuts
from sparsefleet.server.geo import Geo
from sparsefleet.server.holdings import Holdings
from sparsefleet.server.mail import Mail
from sparsefleet.server.meetings import Meetings
from sparsefleet.server.meters import Meters
from sparsefleet.server.rounds import Rounds
from sparsefleet.server.sessions import Sessions

MAX_LANES = 4096
"""Lanes of one trainer: as many as it has threads that call the store."""

Hook = Callable[[str, int], None]


class ServerState:
    def __init__(self, config: ServerConfig, after_apply: Hook | None = None) -> None:
        self.config = config
        self.server_id = uuid.uuid4().hex
        self.started = time.monotonic()
        self.sessions = Sessions(config, self.server_id)
        self.holdings = Holdings(config.index, config.load_from)
        self.gate = CutGate(self.sessions.is_lost_life)
        self.rounds = Rounds(self.sessions, self.gate)
        self.geo = Geo()
        self.meetings = Meetings(self.sessions)
        self.cuts = Cuts(self.sessions, self.steps)
        self.mail = Mail(self.sessions)
        self.meters = Meters()
        self.after_apply = after_apply
        """For tests of lost answers: called between applying a push and answering it."""
        self.stopping = threading.Event()
        self._lanes: dict[str, PushLane] = {}
        self._lock = threading.Lock()

    @property
    def last_checkpoint(self) -> str | None:
        return self.sessions.last_checkpoint

    @last_checkpoint.setter
    def last_checkpoint(self, path: str) -> None:
        self.sessions.last_checkpoint = path

    def lane(self, worker: int, incarnation: str, number: int) -> PushLane:
        """A trainer's lane. Those of a life that is over are forgotten: nothing of it can come any more."""
        if not 0 <= number < MAX_LANES:
            raise StoreError(f"lane {number} must be 0 to {MAX_LANES - 1}")
        with self.sessions.changed:
            self.sessions.check(worker, incarnation)
        lane = PushLane(worker, incarnation, number)
        with self._lock:
            present = self._lanes.get(lane.key)
            if present is not None:
                return present
            over = [k for k, old in self._lanes.items() if old.worker == worker and old.incarnation != incarnation]
            for key in over:
                del self._lanes[key]
            self._lanes[lane.key] = lane
            return lane

    def applied(self) -> dict[str, int]:
        """Per lane the number of its last push that counts."""
        with self._lock:
            return {key: lane.applied for key, lane in self._lanes.items()}

    def over(self) -> list[str]:
        """Lanes on which nothing will come, though other servers may have had more of them."""
        with self._lock:
            lanes = list(self._lanes.values())
        return [lane.key for lane in lanes if self.sessions.is_lost_life(lane.incarnation)]

    def steps(self, worker: int, incarnation: str) -> int:
        """Batches of this life of a trainer that are in what this server has applied."""
        with self._lock:
            mine = [lane for lane in self._lanes.values() if (lane.worker, lane.incarnation) == (worker, incarnation)]
        return sum(lane.steps for lane in mine)

    def stats(self) -> dict[str, Any]:
        return {
            "index": self.config.index,
            "server": self.server_id,
            "uptime_s": round(time.monotonic() - self.started, 1),
            **self.holdings.stats(),
            "calls": self.meters.to_dict(),
            "queues": {
                "under_way": self.meters.under_way,
                "held_by_cut": self.gate.waiting,
                "waiting_in_round": self.rounds.waiting,
                "mail_bytes": self.mail.held_bytes,
            },
            "geo_subscribed_keys": self.geo.stats(),
            "workers": self.sessions.to_dict(),
            "expected_workers": self.sessions.workers,
            "lost": self.sessions.left_out(),
            "not_begun": self.cuts.not_begun(),
            "last_checkpoint": self.last_checkpoint,
        }
