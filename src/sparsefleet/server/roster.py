"""Roster: who is in the job, as this server knows it: the trainers, what each has said, and who of them is lost.

Only questions stand here. What happens to trainers, and what that means for the others, is `server/sessions.py`'s.

A trainer's states:
    expected    its number is below `workers`, and it has not registered yet
    present     registered; heard of within the time-out
    resting     present, but out of the rounds (no more samples) until it joins or all have left
    stopped     has said that it needs the servers no more (`stop`)
    gone        has closed its store; the number is free for another
    lost        silent for longer than the time-out, or never registered in time; or it, or its launcher, has told us
                that it ended too early
    dropped     lost, and by policy left out for good: its calls are refused from then on
    vacant      of a job whose trainers come and go: nobody has this number, and nobody waits for it
    joining     came while the others were at work, and is not let in yet: nobody waits for it
    retired     in a job that heals: lost, and the others go on with its data; another life of it may join them
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Any

from sparsefleet.server.config import ServerConfig
from sparsefleet.server.job_terms import JobTerms
from sparsefleet.server.members import Member


class Roster:
    """`changed` guards everything here, and is notified whenever someone who waits for trainers should look again."""

    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        self.changed = threading.Condition()
        self._terms = JobTerms(config)
        self._vacant = config.vacant
        self._joining: set[int] = set()
        self._trainers: dict[int, Member] = {}
        self.leased: bool | None = None
        """The present call of `fit` trains on data that is handed out in pieces: what a lost trainer had not trained,
        others do. None: none has begun."""
        self.fits_ended = 0
        """Calls of `fit` whose end all trainers have come to in this attempt; server 0 alone hears that."""
        self._first: float | None = None
        """When the first trainer registered."""
        self._never_came: set[int] = set()
        self._ended_before: dict[int, str] = {}
        """Those that ended before they registered, and how."""
        self._over: str | None = None
        """Why this attempt of the job is over: everybody is told to rejoin."""
        self._in_rounds: frozenset[int] | None = None
        """What `in_rounds` found, until someone comes or goes."""
        for worker in config.stopped:
            self._trainers[worker] = Member(worker, "", "of an earlier attempt", time.monotonic())
            self._trainers[worker].stopped = self._trainers[worker].gone = True

    @property
    def servers(self) -> int:
        """How many servers the run has, once known."""
        return len(self._terms.endpoints or ())

    @property
    def all_stay_together(self) -> bool:
        """Of a job that heals or is elastic: all train a pass to its end, or their attempt is over."""
        return self.config.attempt is not None or self.config.elastic is not None

    @property
    def workers(self) -> int:
        return self._terms.workers or 0

    @property
    def mode(self) -> str | None:
        """How the trainers work together, once known."""
        return self._terms.mode

    def members(self) -> list[int]:
        """The trainers that have registered with this attempt."""
        with self.changed:
            return sorted(set(self._trainers) - set(self.config.stopped))

    def stopped(self) -> list[int]:
        """The trainers that have said that they need the servers no more, in this attempt or an earlier one."""
        with self.changed:
            return sorted(worker for worker, trainer in self._trainers.items() if trainer.stopped)

    def silent(self) -> list[int]:
        """Registered trainers that have fallen silent, without a word that they end."""
        with self.changed:
            there = [w for w, trainer in self._trainers.items() if not (trainer.stopped or trainer.ended)]
            return self.lost_among(there) if self._over is None else []

    def joining(self) -> list[int]:
        """Those that came late and are not let in yet."""
        with self.changed:
            return sorted(self._joining)

    def retired(self) -> list[int]:
        """The retired trainers that have not been started again, or have not come yet."""
        with self.changed:
            return sorted(trainer.worker for trainer in self._trainers.values() if trainer.retired)

    def awaited(self) -> list[int]:
        """Trainers that have not come to this attempt yet, and that the others wait for."""
        with self.changed:
            return sorted(set(range(self.workers)) - self._vacant - self._trainers.keys())

    def overdue(self) -> list[int]:
        """Of those, the ones that have not come within the time for it."""
        with self.changed:
            return self.lost_among(self.awaited()) if self._over is None else []

    def furthest_fit(self) -> int:
        """The furthest call of `fit` that a trainer had begun when it came to this attempt."""
        with self.changed:
            return max((trainer.fits for trainer in self._trainers.values() if not trainer.late), default=0)

    def left(self) -> list[int]:
        """Trainers that have left an elastic job before its end, and whose numbers nobody has taken again."""
        with self.changed:
            return sorted(worker for worker, trainer in self._trainers.items() if trainer.gone and not trainer.stopped)

    def comes_late(self, worker: int) -> bool:
        with self.changed:
            return worker in self._joining

    def finished(self) -> bool:
        """All trainers have said stop, or never will; not where none has, nor left as if it were done.

        In a job that heals a silent trainer is killed and started again by its launcher, and needs its servers then.
        """
        with self.changed:
            done = {t.worker for t in self._trainers.values() if t.stopped or t.no_error}
            over = {t.worker for t in self._trainers.values() if t.gone or t.dropped}
            left = set(range(self.workers)) - done - over - self._vacant - self._joining
            if self.config.attempt is None:
                left -= set(self.lost_among(left))
            return bool(done) and not left

    def unfinished(self) -> list[str]:
        """In words, the trainers that did not come to their end in good order."""
        with self.changed:
            expected = set(range(self.workers)) - self._vacant - self._joining
            return [self.name(worker) for worker in sorted(expected) if not self._came_to_its_end(worker)]

    def left_out(self) -> list[str]:
        """In words, the trainers that the others went on without, and those that said they failed."""
        with self.changed:
            dropped = {
                worker for worker, trainer in self._trainers.items() if trainer.dropped or trainer.failure is not None
            }
            who = {worker: self._ended_before.get(worker, "never registered") for worker in self._never_came}
            who |= {worker: self._trainers[worker].about for worker in dropped}
            return [f"worker {worker} ({about})" for worker, about in sorted(who.items())]

    def is_over(self, incarnation: str) -> bool:
        """Whether this life of a trainer has ended: it sends no more, and what it holds is nobody's."""
        with self.changed:
            return self._over is not None or not any(
                trainer.incarnation == incarnation and not trainer.ended for trainer in self._trainers.values()
            )

    def to_dict(self) -> dict[str, Any]:
        with self.changed:
            now = time.monotonic()
            return {
                str(worker): {
                    **trainer.status,
                    "about": trainer.about,
                    "last_seen_s": round(now - trainer.last_seen, 3),
                    "state": self._state(trainer, now),
                }
                for worker, trainer in sorted(self._trainers.items())
            }

    # --- with `changed` held

    def in_rounds(self) -> frozenset[int]:
        """Whose contribution a round needs."""
        if self._in_rounds is None:
            self._in_rounds = frozenset(w for w in self.in_meetings() if not self._is(w, "resting"))
        return self._in_rounds

    def in_meetings(self) -> set[int]:
        """Whom a barrier waits for."""
        return (
            {w for w in range(self.workers) if not (self._is(w, "gone") or self._is(w, "dropped"))}
            - self._never_came
            - self._vacant
            - self._joining
        )

    def present(self) -> list[int]:
        """The trainers that are at work or about to be."""
        there = self.in_meetings() | self._joining
        return sorted(there - set(self.lost_among(there)) - {w for w in there if self._is(w, "stopped")})

    def first(self) -> int | None:
        """The lowest of the trainers that are left: what one does for all, it does.

        In a job that heals nobody goes on without one that is silent: it comes back, or a new attempt begins.
        """
        there = self.in_meetings()
        if self.config.attempt is None:
            there -= set(self.lost_among(there))
        return min(there, default=None)

    def lost_among(self, workers: Iterable[int]) -> list[int]:
        return [worker for worker in sorted(workers) if self._lost(worker)]

    def life_of(self, worker: int) -> str | None:
        """The present life of a trainer."""
        trainer = self._trainers.get(worker)
        return None if trainer is None else trainer.incarnation

    def is_leaving(self, worker: int) -> bool:
        """Whether it was asked to leave."""
        return self._is(worker, "leaving")

    def is_lost_for_good(self, worker: int) -> bool:
        """Whether it was left out, or ended too early; one that is only silent may come back."""
        trainer = self._trainers.get(worker)
        return trainer is not None and (trainer.dropped or trainer.failure is not None)

    def furthest_step(self) -> int:
        """The furthest step that any trainer has told us of."""
        steps = [trainer.status.get("step", 0) for trainer in self._trainers.values()]
        return max([step for step in steps if type(step) is int], default=0)

    def all_have_stopped(self) -> bool:
        """All trainers that were let in have come to their end; not where all of them were lost."""
        some = any(trainer.stopped for trainer in self._trainers.values())
        return some and all(self._is(worker, "stopped") for worker in self.in_meetings())

    def name(self, worker: int) -> str:
        """A trainer in the words of an error message."""
        trainer = self._trainers.get(worker)
        if trainer is None:
            how = self._ended_before.get(worker)
            return f"worker {worker} ({f'ended before it registered: {how}' if how else 'never registered'})"
        if trainer.failure is not None:
            return f"worker {worker} ({trainer.about}), which failed: {trainer.failure}"
        silent = time.monotonic() - trainer.last_seen
        return f"worker {worker} ({trainer.about}, last heard of {silent:.1f} s ago)"

    def _lost(self, worker: int) -> bool:
        trainer, now = self._trainers.get(worker), time.monotonic()
        if self._over is not None:
            return True  # to this attempt
        if trainer is not None:
            return trainer.failure is not None or now - trainer.last_seen > self.config.timeout
        late = self._first is not None and now - self._first > self.config.join_timeout
        return late or worker in self._ended_before

    def _came_to_its_end(self, worker: int) -> bool:
        trainer = self._trainers.get(worker)
        if trainer is None:
            return False
        leased = self.leased and not trainer.share_missing
        others_have_its_data = leased or trainer.retired or self.config.elastic is not None
        if others_have_its_data and (trainer.dropped or trainer.failure is not None):
            return True  # others have its data
        return trainer.stopped or (trainer.gone and trainer.failure is None and not trainer.dropped)

    def _at_work(self, except_for: int) -> bool:
        # Trainers killed together fall silent within a heartbeat: half the time-out tells them from those at work.
        silent_since = time.monotonic() - self.config.timeout / 2
        return any(
            not trainer.ended and trainer.last_seen > silent_since
            for worker, trainer in self._trainers.items()
            if worker != except_for
        )

    def _is(self, worker: int, state: str) -> bool:
        trainer = self._trainers.get(worker)
        return trainer is not None and bool(getattr(trainer, state))

    def _state(self, trainer: Member, now: float) -> str:
        if trainer.failure is not None and not trainer.dropped:
            return "lost"  # also where it has said stop
        for state in ("dropped", "gone", "stopped"):
            if getattr(trainer, state):
                return state
        if now - trainer.last_seen > self.config.timeout:
            return "lost"
        return "resting" if trainer.resting else "present"
