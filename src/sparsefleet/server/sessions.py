"""Sessions: which trainers there are, who was heard of when, who left, who is lost.

A trainer's states:
    expected    its number is below `workers`, and it has not registered yet
    present     registered; heard of within the time-out
    resting     present, but out of the rounds (no more rows) until it joins or all have left
    stopped     has said that it needs the servers no more (`stop`)
    gone        has closed its store; the number is free for another
    lost        silent for longer than the time-out, or never registered in time; or it, or its launcher, has told us
                that it ended too early
    dropped     lost, and by policy left out for good: its calls are refused from then on

A trainer that is killed or cut off is lost, and the policy says what becomes of the others. One that fails by an error
of its own (a bad row, a loss that is no number) breaks the job, whatever the policy is: all that the others still ask
for is refused, with its reason.

In a job that heals (`ServerConfig.attempt`), nobody goes on without a lost trainer: whoever waits for it is told to
rejoin, and a new attempt begins, with sessions of its own. Within an attempt a number is taken once.

A number may be taken again by another life of a trainer. Where none of the others is at work any more, that is a new
job: everybody is expected again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from sparsefleet.core.errors import Rejoin, StoreError
from sparsefleet.server.config import ServerConfig
from sparsefleet.server.members import Member, Registration

log = logging.getLogger(__name__)

MAX_WORKERS = 65536


class Sessions:
    """`changed` guards everything here, and is notified whenever someone who waits for trainers should look again."""

    def __init__(self, config: ServerConfig, server_id: str) -> None:
        self.config, self.server_id = config, server_id
        self.changed = threading.Condition()
        self.on_new_life: list[Callable[[int | None], None]] = []
        """Called with `changed` held when a number is taken again: forget that trainer, or (None) a whole job."""
        self.on_late: list[Callable[[int], None]] = []
        """Called with `changed` held when a trainer comes while the others are at work."""
        self.on_loss: list[Callable[[int], None]] = []
        """Called with `changed` held when a trainer is lost for good: it has failed, has ended, or is left out."""
        self.on_change: list[Callable[[], None]] = []
        """Called with `changed` held when a trainer comes, goes, rests or is lost, where somebody told us of it."""
        self._in_rounds: frozenset[int] | None = None
        """What `in_rounds` found, until someone comes or goes."""
        self._endpoints, self._mode = config.endpoints, config.mode
        elastic = config.elastic
        self._workers = config.workers if elastic is None else elastic.most
        """Numbers that trainers may have."""
        self._vacant = set() if elastic is None else set(range(config.workers or 0, elastic.most))
        """Of a job whose trainers come and go: numbers that nobody has, and that nobody waits for."""
        self._joining: set[int] = set()
        """Trainers that came while the others were at work, and that are not let in yet: nobody waits for them."""
        self._numbers: dict[str, int] = {}
        """By life of a trainer that asked for a number, the one it was given."""
        self.leased = False
        """Training data is handed out in pieces: what a lost trainer had not trained, others do."""
        self._scaled = (0, 0)
        """How often somebody has asked for another number of trainers, and for how many."""
        self._trainers: dict[int, Member] = {}
        self.last_checkpoint: str | None = config.start
        self._first: float | None = None
        self._never_came: set[int] = set()
        self._ended_before: dict[int, str] = {}
        """Those that ended before they registered, and how."""
        self._broken: str | None = None
        """Why the job cannot go on."""
        self._broken_at: float | None = None
        self._over: str | None = None
        """Why this attempt of the job is over: everybody is told to rejoin."""
        for worker in config.stopped:
            self._trainers[worker] = Member(worker, "", "of an earlier attempt", time.monotonic())
            self._trainers[worker].stopped = self._trainers[worker].gone = True
        self._looked = self._awake_since = time.monotonic()
        """When `leave_out_silent` was called last, and since when it has been again and again."""

    @property
    def servers(self) -> int:
        """How many servers the run has, once known."""
        return len(self._endpoints or ())

    @property
    def workers(self) -> int:
        return self._workers or 0

    def register(self, incarnation: str, joining: Registration) -> None:
        """Take a trainer in, or say why not; what differs between processes is named on both sides."""
        worker, about = joining.worker, joining.about
        with self.changed:
            self._agree_on_attempt(joining)
            self._agree(joining)
            present = self._trainers.get(worker)
            again = present is not None and present.incarnation != incarnation and not present.retired
            if self.config.attempt is not None and again:
                raise Rejoin(f"worker {worker} has been in attempt {self.config.attempt} before: it joins the next one")
            if present is not None and present.incarnation != incarnation and not present.ended:
                silent = time.monotonic() - present.last_seen
                if silent <= self.config.timeout:
                    raise StoreError(
                        f"worker {worker} ({about}) is refused: {present.about} has that number and was heard of "
                        f"{silent:.1f} s ago. Give each trainer a number of its own; one that died is forgotten after "
                        f"{self.config.timeout:g} s"
                    )
            if present is None or present.incarnation != incarnation:
                late = self._comes_late(worker)
                if present is not None or self._job_is_over(worker):
                    self._make_way(worker)
                self._trainers[worker] = Member(worker, incarnation, about, time.monotonic())
                self._vacant.discard(worker)
                if late:
                    self._joining.add(worker)
                    self._trainers[worker].resting = self._trainers[worker].late = True
                    for look in self.on_late:
                        look(worker)
                self._never_came.discard(worker)
                self._ended_before.pop(worker, None)
                log.info("worker %d registered: %s", worker, about)
            self._trainers[worker].last_seen = time.monotonic()
            self._first = self._first or time.monotonic()
            self._endpoints, self._workers = joining.servers, joining.workers  # agreed on above
            self._mode = joining.mode or self._mode
            self._tell_all()

    # --- trainers that come and go

    def _comes_late(self, worker: int) -> bool:
        """With `changed` held: whether this number's trainer was not there, or not waited for, until now."""
        present = self._trainers.get(worker)
        if present is not None and present.retired:
            return True
        return self.config.elastic is not None and (
            worker in self._vacant or (present is not None and self._at_work(except_for=worker))
        )

    def retire(self, worker: int) -> str | None:
        """In a job that heals: this trainer is lost, and the others go on with its data. Its life, if it had come."""
        with self.changed:
            trainer = self._trainers.get(worker)
            if trainer is None:
                return None
            if not trainer.retired:
                trainer.dropped = trainer.retired = True
                self._lost_for_good(worker)
                self._tell_all()
            return trainer.incarnation

    def retired(self) -> list[int]:
        """Those of them that have not been started again, or have not come yet."""
        with self.changed:
            return sorted(trainer.worker for trainer in self._trainers.values() if trainer.retired)

    def note_leased(self, worker: int, incarnation: str) -> None:
        """Training data is handed out in pieces, by server 0: what a lost trainer has not trained is not missing."""
        with self.changed:
            self.check(worker, incarnation)
            self.leased = True

    def comes_late(self, worker: int) -> bool:
        with self.changed:
            return worker in self._joining

    def give_number(self, incarnation: str) -> int:
        """A number for a trainer that comes without one."""
        with self.changed:
            elastic = self.config.elastic
            if elastic is None:
                raise StoreError(
                    "a trainer came without a number (PADDLE_TRAINER_ID), but this job's trainers do not come and go: "
                    "start it with --elastic MIN:MAX"
                )
            if incarnation not in self._numbers:
                given = set(self._numbers.values()) - self._trainers.keys()
                ended = {worker for worker, trainer in self._trainers.items() if trainer.ended}
                free = sorted((self._vacant | ended) - given - self._joining)
                if not free:
                    raise StoreError(f"there are {elastic.most} trainers, and this job ({elastic}) takes no more")
                self._numbers[incarnation] = free[0]
            return self._numbers[incarnation]

    def let_in(self, worker: int, incarnation: str) -> None:
        """With `changed` held: from now on the others wait for this trainer, but for rounds."""
        trainer = self.check(worker, incarnation)
        self._joining.discard(worker)
        trainer.resting = trainer.resting and self._mode == "sync"  # there it enters the rounds by itself
        self._tell_all()

    def let_all_in(self, worker: int, incarnation: str) -> None:
        with self.changed:
            self.let_in(worker, incarnation)

    def present(self) -> list[int]:
        """With `changed` held: the trainers that are at work or about to be."""
        there = self.in_meetings() | self._joining
        return sorted(there - set(self.lost_among(there)) - {w for w in there if self._is(w, "stopped")})

    def scale(self, workers: int) -> dict[str, Any]:
        """Somebody wants so many trainers. Those that are too many, the highest numbers, leave when they have trained
        what they hold; more are for who starts processes to start."""
        with self.changed:
            elastic = self.config.elastic
            if elastic is None:
                raise StoreError("trainers of this job do not come and go: start it with --elastic MIN:MAX")
            if not elastic.least <= workers <= elastic.most:
                raise StoreError(f"workers={workers}: this job takes {elastic.least} to {elastic.most} trainers")
            before, self._scaled = self.present(), (self._scaled[0] + 1, workers)
            for worker in before:
                self._trainers[worker].leaving = worker in before[workers:] if worker in self._trainers else False
            return {"present": before, "leaving": before[workers:]}

    def scaled_to(self) -> dict[str, Any] | None:
        """For who starts processes: how many trainers are wanted, by the how-manieth request, and which there are."""
        with self.changed:
            request, workers = self._scaled
            return {"request": request, "workers": workers, "present": self.present()} if request else None

    def is_leaving(self, worker: int) -> bool:
        """With `changed` held."""
        return self._is(worker, "leaving")

    def furthest_step(self) -> int:
        """With `changed` held: the furthest that any trainer has told us of."""
        steps = [trainer.status.get("step", 0) for trainer in self._trainers.values()]
        return max([step for step in steps if type(step) is int], default=0)

    def all_have_stopped(self) -> bool:
        """With `changed` held: all trainers that were let in have come to their end."""
        there = self.in_meetings()
        return bool(self._trainers) and all(self._is(worker, "stopped") for worker in there)

    def _agree_on_attempt(self, joining: Registration) -> None:
        if self._over is not None:
            raise Rejoin(self._over)
        if joining.attempt != self.config.attempt:
            if joining.attempt is None or self.config.attempt is None:
                raise StoreError(
                    f"worker {joining.worker} ({joining.about}) and this server disagree on whether the job heals "
                    "after a loss: start all processes of a job with the same launcher"
                )
            raise Rejoin(f"this server is in attempt {self.config.attempt} of the job, not in {joining.attempt}")

    def end_attempt(self, why: str) -> None:
        """Everybody is told to rejoin from now on, also those that wait for others here."""
        with self.changed:
            self._over = why
            self._tell_all()

    @property
    def mode(self) -> str | None:
        """How the trainers work together, once known."""
        return self._mode

    def life_of(self, worker: int) -> str | None:
        """With `changed` held: the present life of a trainer."""
        trainer = self._trainers.get(worker)
        return None if trainer is None else trainer.incarnation

    def members(self) -> list[int]:
        """The trainers that have registered with this attempt."""
        with self.changed:
            return sorted(set(self._trainers) - set(self.config.stopped))

    def stopped(self) -> list[int]:
        """The trainers that have said that they need the servers no more, in this attempt or an earlier one."""
        with self.changed:
            return sorted(worker for worker, trainer in self._trainers.items() if trainer.stopped)

    def note_stopped(self, worker: int) -> None:
        """A trainer that has come to its end was killed before it could tell us so; another server heard it."""
        with self.changed:
            if (trainer := self._trainers.get(worker)) is not None and not trainer.stopped:
                trainer.stopped, trainer.failure = True, None
                self._tell_all()

    def silent(self) -> list[int]:
        """Registered trainers that have fallen silent, without a word that they end."""
        with self.changed:
            there = [w for w, trainer in self._trainers.items() if not (trainer.stopped or trainer.ended)]
            return self.lost_among(there) if self._over is None else []

    def _job_is_over(self, worker: int) -> bool:
        """Whether the job is broken, nobody of it is left, and one comes again that failed before it registered."""
        if self._broken is None or worker not in self._ended_before:
            return False
        return all(trainer.ended for trainer in self._trainers.values())

    def _make_way(self, worker: int) -> None:
        """Forget a trainer whose number is taken again; if nobody that it worked with is left, forget them all."""
        at_work = self._at_work(except_for=worker)
        if not at_work:
            self._trainers, self._never_came, self._ended_before, self._first = {}, set(), {}, None
            self._mode, self._broken, self._broken_at = self.config.mode, None, None
        for forget in self.on_new_life:
            forget(worker if at_work else None)

    def _at_work(self, except_for: int) -> bool:
        # Trainers killed together fall silent within a heartbeat: half the time-out tells them from those at work.
        silent_since = time.monotonic() - self.config.timeout / 2
        return any(
            not trainer.ended and trainer.last_seen > silent_since
            for worker, trainer in self._trainers.items()
            if worker != except_for
        )

    def _agree(self, joining: Registration) -> None:
        who, servers, workers = f"worker {joining.worker} ({joining.about})", joining.servers, joining.workers
        if joining.index != self.config.index:
            raise StoreError(
                f"{who} takes this for server {joining.index}, but it is server {self.config.index}: "
                "the server lists differ in order"
            )
        if joining.index >= len(servers):
            raise StoreError(f"{who} lists {len(servers)} servers; this is number {joining.index}")
        if self._endpoints is not None and servers != self._endpoints:
            raise StoreError(
                f"server lists differ: {who} has {', '.join(servers)}; this server has {', '.join(self._endpoints)}"
            )
        if self._workers is not None and workers != self._workers:
            raise StoreError(f"worker counts differ: {who} says {workers}; this server has {self._workers}")
        if not 0 <= joining.worker < workers <= MAX_WORKERS:
            raise StoreError(f"{who}: with {workers} workers, numbers are 0 to {workers - 1}")
        # A new job may have another mode than the one before it, unless this server was started for one.
        if self._at_work(except_for=joining.worker) or self.config.mode:
            self._agree_on_mode(who, joining.mode)

    def _agree_on_mode(self, who: str, mode: str | None) -> None:
        if mode is not None and self._mode is not None and mode != self._mode:
            raise StoreError(
                f"modes differ: {who} trains in mode {mode}; this server and its other trainers in {self._mode}. "
                "Start every process of a job with the same mode"
            )

    def check(self, worker: int, incarnation: str) -> Member:
        """The trainer that calls; a call is a sign of life."""
        if self._over is not None:
            raise Rejoin(self._over)
        trainer = self._trainers.get(worker)
        if trainer is None or trainer.incarnation != incarnation:
            if self.config.attempt is not None:
                raise Rejoin(f"worker {worker} speaks for another attempt of the job: this is {self.config.attempt}")
            other = f" ({trainer.about} has that number now)" if trainer is not None else ""
            raise StoreError(f"worker {worker} is not registered here{other}: the server or the trainer was replaced")
        if trainer.dropped:
            why = trainer.failure or f"it was silent for more than {self.config.timeout:g} s"
            raise StoreError(f"the others went on without worker {worker}: {why}")
        trainer.last_seen = time.monotonic()
        return trainer

    @property
    def broken(self) -> str | None:
        """Why the job cannot go on; None where it can."""
        return self._broken

    def check_job(self) -> None:
        """Refuse what only makes sense in a job that goes on. With `changed` held or not."""
        if self._over is not None:
            raise Rejoin(self._over)
        if self._broken is not None:
            raise StoreError(self._broken)

    def heartbeat(self, worker: int, incarnation: str, status: dict[str, Any]) -> None:
        with self.changed:
            self.check(worker, incarnation).status = status

    def leave(self, worker: int, incarnation: str, for_good: bool) -> None:
        with self.changed:
            trainer = self.check(worker, incarnation)
            trainer.resting = True
            trainer.gone = trainer.gone or for_good
            self._in_rounds = None
            if not self.in_rounds() and not any(each.late for each in self._trainers.values()):
                # The rounds are over: the next ones are everybody's again.
                for each in self._trainers.values():
                    each.resting = False
            self._tell_all()

    def fail(self, worker: int, incarnation: str, reason: str, *, own_error: bool, no_error: bool = False) -> None:
        """The trainer ends too early and says so: it is lost, and nobody need wait to find out."""
        with self.changed:
            trainer = self.check(worker, incarnation)
            trainer.failure, trainer.no_error = reason, no_error
            trainer.resting = False  # it has not run out of rows: rounds are not to go on without it unnoticed
            self._lost_for_good(worker)
            if own_error:
                self.break_job(f"worker {worker} ({trainer.about}) failed: {reason}")
            self._tell_all()

    def ended(self, worker: int, how: str, failed: bool) -> bool:
        """Its launcher has seen the trainer's process end badly. Returns whether the others go on.

        failed: with an exit status, not by a signal. A trainer that was registered then would have told us of an error
        of its own.
        """
        with self.changed:
            if not 0 <= worker < (self.workers or MAX_WORKERS):
                raise StoreError(f"worker {worker} has ended ({how}), but there are {self.workers} workers")
            trainer = self._trainers.get(worker)
            if trainer is None:
                self._ended_before[worker] = how
                if failed:
                    self.break_job(self.name(worker))
            elif not trainer.ended and not trainer.stopped:
                trainer.failure, trainer.resting = how, False
                self._lost_for_good(worker)
            log.warning("worker %d has ended: %s", worker, how)
            self._tell_all()
            return self._broken is None and self.config.lost_trainer == "drop"

    def break_job(self, why: str) -> None:
        """With `changed` held: nobody goes on."""
        if self._broken is None:
            self._broken_at = time.monotonic()
            self._broken = f"the job has ended: {why}. {self._advice('Once that is mended, start')}"
            self._tell_all()

    def join(self, worker: int, incarnation: str) -> None:
        """Take a resting trainer into the rounds again."""
        with self.changed:
            self.check(worker, incarnation)
            self.come_back(worker)

    def come_back(self, worker: int) -> None:
        """With `changed` held: a contribution of a resting trainer takes it into the rounds again."""
        if self._trainers[worker].resting:
            self._trainers[worker].resting = False
            self._tell_all()

    def stop(self, worker: int, incarnation: str) -> None:
        with self.changed:
            self.check(worker, incarnation).stopped = True
            self._tell_all()

    def finished(self) -> bool:
        """All trainers have said stop, or never will; not where none has, nor left as if it were done."""
        with self.changed:
            done = {t.worker for t in self._trainers.values() if t.stopped or t.no_error}
            over = {t.worker for t in self._trainers.values() if t.gone or t.dropped}
            left = set(range(self.workers)) - done - over - self._vacant - self._joining
            return bool(done) and left <= set(self.lost_among(left))

    def unfinished(self) -> list[str]:
        """In words, the trainers that did not come to their end in good order."""
        with self.changed:
            expected = set(range(self.workers)) - self._vacant - self._joining
            return [self.name(worker) for worker in sorted(expected) if not self._came_to_its_end(worker)]

    def _came_to_its_end(self, worker: int) -> bool:
        trainer = self._trainers.get(worker)
        if trainer is None:
            return False
        others_have_its_data = self.leased or trainer.retired or self.config.elastic is not None
        if others_have_its_data and (trainer.dropped or trainer.failure is not None):
            return True  # others have its data
        return trainer.stopped or (trainer.gone and trainer.failure is None and not trainer.dropped)

    def abandoned(self) -> bool:
        """There were trainers, and all of them have been silent for too long."""
        after, now = self.config.abandoned_after, time.monotonic()
        with self.changed:
            seen = [trainer.last_seen for trainer in self._trainers.values()]
            if self._broken_at is not None:  # maybe before anybody came
                seen.append(self._broken_at)
            return after is not None and bool(seen) and all(now - moment > after for moment in seen)

    def is_over(self, incarnation: str) -> bool:
        """Whether this life of a trainer has ended: it sends no more, and what it holds is nobody's."""
        with self.changed:
            return self._over is not None or not any(
                trainer.incarnation == incarnation and not trainer.ended for trainer in self._trainers.values()
            )

    def left_out(self) -> list[str]:
        """In words, the trainers that the others went on without, and those that said they failed."""
        with self.changed:
            dropped = {
                worker for worker, trainer in self._trainers.items() if trainer.dropped or trainer.failure is not None
            }
            who = {worker: self._ended_before.get(worker, "never registered") for worker in self._never_came}
            who |= {worker: self._trainers[worker].about for worker in dropped}
            return [f"worker {worker} ({about})" for worker, about in sorted(who.items())]

    def leave_out_silent(self, what: str, workers: Iterable[int]) -> None:
        """Where lost trainers are left out: leave out those that nobody waits for, but that cost something.

        For calling now and then. If this process has slept meanwhile, trainers get their time-out again: their signs of
        life may wait to be read.
        """
        now = time.monotonic()
        with self.changed:
            if now - self._looked > max(1.0, self.config.timeout / 4):
                self._awake_since = now
            self._looked = now
            keeps = self.config.lost_trainer == "error" or self.config.attempt is not None
            if keeps or now - self._awake_since <= self.config.timeout:
                return
            lost = [w for w in self.lost_among(workers) if w in self._trainers and not self._came_to_its_end(w)]
            if lost:
                self.go_on_without(what, lost)

    # --- with `changed` held

    def _tell_all(self) -> None:
        """Somebody has come, gone, rested or been lost: whoever waits for trainers looks again."""
        self._in_rounds = None
        for look in self.on_change:
            look()
        self.changed.notify_all()

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

    def first(self) -> int | None:
        """The lowest of the trainers that are left: what one does for all, it does."""
        there = self.in_meetings()
        return min(there - set(self.lost_among(there)), default=None)

    def lost_among(self, workers: Iterable[int]) -> list[int]:
        return [worker for worker in sorted(workers) if self._lost(worker)]

    def _lost(self, worker: int) -> bool:
        trainer, now = self._trainers.get(worker), time.monotonic()
        if self._over is not None:
            return True  # to this attempt
        if trainer is not None:
            return trainer.failure is not None or now - trainer.last_seen > self.config.timeout
        late = self._first is not None and now - self._first > self.config.join_timeout
        return late or worker in self._ended_before

    def go_on_without(self, what: str, lost: Iterable[int]) -> StoreError | None:
        """Leave trainers out that are lost to `what`; or, where the others are not to go on, the error that says so."""
        lost = list(lost)
        if self._broken is not None:
            return StoreError(f"{what}: {self._broken}")
        if self._over is not None:
            return Rejoin(f"{what}: {self._over}")
        if self.config.attempt is not None:
            names = ", ".join(self.name(worker) for worker in lost)
            return Rejoin(f"{what}: lost {names}; the job goes on with a new attempt")
        if self.config.lost_trainer == "error":
            return self.missing_error(what, lost)
        if (elastic := self.config.elastic) is not None:
            left = self.in_meetings() - set(lost)
            if len(left) < elastic.least:
                names = ", ".join(self.name(worker) for worker in lost)
                self.break_job(f"lost {names}, so that {len(left)} trainers are left, and it needs {elastic.least}")
                return StoreError(f"{what}: {self._broken}")
        for worker in lost:
            log.warning("going on without %s", self.name(worker))
            if worker in self._trainers:
                self._trainers[worker].dropped = True
                self._lost_for_good(worker)
            else:
                self._never_came.add(worker)
        self._tell_all()
        return None

    def _lost_for_good(self, worker: int) -> None:
        for forget in self.on_loss:
            forget(worker)

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

    def missing_error(self, what: str, lost: Iterable[int]) -> StoreError:
        names = ", ".join(self.name(worker) for worker in lost)
        lost_them = f"{what}: lost {names}; the time-out is {self.config.timeout:g} s."
        if self.config.lost_trainer == "drop":  # and still it is an error
            return StoreError(
                f"{lost_them} This needs all trainers, also where lost ones are left out of all else. "
                f"{self._advice('Start')}"
            )
        return StoreError(
            f"{lost_them} To go on without lost trainers, set the strategy's lost_trainer='drop' (sparsefleet train: "
            f"--lost-trainer drop); {self._advice('or start')}"
        )

    def late_error(self, what: str, worker: int) -> StoreError:
        return StoreError(
            f"{what}: worker {worker} comes too late: the others have been there, with an earlier life of it if it was "
            f"started again. {self._advice('Start all trainers of')}"
        )

    def _advice(self, start: str) -> str:
        """A path ends it: people copy it, and programs look for it."""
        saved = self.last_checkpoint
        return (
            f"{start} the job again{f' and resume from {saved}' if saved else ' (no checkpoint was saved in this run)'}"
        )

    def _is(self, worker: int, state: str) -> bool:
        trainer = self._trainers.get(worker)
        return trainer is not None and bool(getattr(trainer, state))

    # ---

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

    def _state(self, trainer: Member, now: float) -> str:
        if trainer.failure is not None and not trainer.dropped:
            return "lost"  # also where it has said stop
        for state in ("dropped", "gone", "stopped"):
            if getattr(trainer, state):
                return state
        if now - trainer.last_seen > self.config.timeout:
            return "lost"
        return "resting" if trainer.resting else "present"
