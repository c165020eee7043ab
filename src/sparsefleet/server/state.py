"""ServerState: everything one server knows, shared by its streams and actions."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any

from sparsefleet.core.errors import StoreError
from sparsefleet.server.config import ServerConfig
from sparsefleet.server.gate import SLICE
from sparsefleet.server.geo import Geo
from sparsefleet.server.holdings import Holdings
from sparsefleet.server.joint_cut import JointCuts
from sparsefleet.server.leases import LeaseBook
from sparsefleet.server.ledger import Account, Ledger
from sparsefleet.server.letters import Letters
from sparsefleet.server.long_tasks import LongTasks
from sparsefleet.server.meetings import Meetings
from sparsefleet.server.meters import Meters
from sparsefleet.server.norms import Norms
from sparsefleet.server.rounds import Rounds
from sparsefleet.server.scale_request import ScaleRequest
from sparsefleet.server.server_cut import ServerCuts
from sparsefleet.server.sessions import Sessions

Hook = Callable[[str, int], None]


class ServerState:
    def __init__(self, config: ServerConfig, after_apply: Hook | None = None) -> None:
        self.config = config
        self.server_id = uuid.uuid4().hex
        self.started = time.monotonic()
        self.sessions = sessions = Sessions(config)
        self.ledger = Ledger(sessions.is_over, self._end_job, config.index)
        self.holdings = Holdings(config.index, self.ledger, config.start, from_cut=config.cut is not None)
        self.cuts = ServerCuts(self.ledger, self.holdings, sessions.is_over, config.index)
        self.rounds, self.norms = Rounds(sessions, self.ledger), Norms(sessions, self.ledger)
        self.geo = Geo()
        sessions.on_new_life.append(self.geo.forget)
        sessions.on_loss.append(self.geo.forget)
        self.meetings = Meetings(sessions)
        self.joint_cuts = JointCuts(sessions, self.ledger.batches)
        self.letters = Letters(sessions)
        self.leases = LeaseBook(sessions, self.ledger, self.meetings, self.rounds)
        self.tasks = LongTasks(self.holdings.rows)
        self.meters = Meters()
        self.after_apply = after_apply
        """For tests of lost answers: called between applying a push and answering it."""
        sessions.on_new_life.append(self._note_former_life)
        sessions.on_late.append(self._note_former_life)
        self.wanted: str | None = None
        """Why a trainer asks for a new attempt of the job."""
        self._in_doubt: set[int] = set()
        """Trainers that were retired, and of whose last step the others may have had less, or more."""
        self.scale: ScaleRequest | None = None
        """Another number of servers that the job is to go on with."""

    @property
    def last_checkpoint(self) -> str | None:
        return self.sessions.last_checkpoint

    @last_checkpoint.setter
    def last_checkpoint(self, path: str) -> None:
        self.sessions.last_checkpoint = path

    def account(self, worker: int, incarnation: str, caller: int) -> Account:
        """A registered trainer's account."""
        with self.sessions.changed:
            self.sessions.check(worker, incarnation)
        return self.ledger.account(worker, incarnation, caller)

    @property
    def attempt(self) -> int | None:
        return self.config.attempt

    def end_attempt(self, why: str) -> None:
        """Whoever still speaks for this attempt is told to rejoin; what it holds is given back to the system."""
        self.sessions.end_attempt(why)
        self.tasks.close()
        self.holdings.let_go()

    def retire(self, worker: int) -> dict[str, Any]:
        """A trainer of a job that heals was lost: take nothing of it any more, and say what has been applied.

        `pending`: its part of a sync round waits for the others, or its last step for a cut to be named; ask again.
        Until `retired_whole` there are no cuts: one that held a part of its last step would be gone back to.
        """
        self._in_doubt.add(worker)
        life = self.sessions.retire(worker)
        if life is None:
            return {"accounts": {}}
        with self.sessions.changed:
            if self.rounds.holds(worker, life):
                return {"pending": True}
            accounts = self.ledger.close_life(worker, life)
        if not self.ledger.let_end(accounts, SLICE / 2):
            return {"pending": True}
        return {
            "accounts": {account.key: [account.sequence, account.records] for account in accounts if account.records}
        }

    def retired_whole(self, worker: int) -> None:
        """All servers have applied the same of this trainer's steps."""
        self._in_doubt.discard(worker)

    def check_no_doubt(self) -> None:
        """Raise where this moment may hold a part of a step."""
        if in_doubt := sorted(self._in_doubt):
            raise StoreError(
                f"no checkpoint is cut while it is not known whether all servers have the last step of worker "
                f"{', '.join(map(str, in_doubt))}, which was just lost; save again"
            )

    def _end_job(self, why: str) -> None:
        with self.sessions.changed:
            self.sessions.break_job(why)

    def _note_former_life(self, worker: int | None) -> None:
        self.holdings.used_before = self.holdings.used_before or self.ledger.has_steps()

    def stats(self) -> dict[str, Any]:
        return {
            "index": self.config.index,
            "server": self.server_id,
            "attempt": self.attempt,
            "cut": self.config.cut,
            "begun_because": self.config.begun_because,
            "uptime_s": round(time.monotonic() - self.started, 1),
            **self.holdings.stats(),
            "records": self.ledger.number,
            "calls": self.meters.to_dict(),
            "queues": {
                "under_way": self.meters.under_way,
                "held_by_cut": self.ledger.gate.waiting,
                "waiting_in_round": self.rounds.waiting + self.norms.waiting,
                "mail_bytes": self.letters.held_bytes,
            },
            "geo_subscribed_keys": self.geo.stats(),
            "workers": self.sessions.to_dict(),
            "expected_workers": self.sessions.workers,
            "lost": self.sessions.left_out(),
            "not_begun": self.joint_cuts.not_begun(),
            "leases": self.leases.stats(),
            "elastic": str(self.config.elastic) if self.config.elastic else None,
            "scaled_to": self.sessions.scaled_to(),
            "last_checkpoint": self.last_checkpoint,
        }
