"""Sessions: what happens to the trainers of a job. They come, go, rest, stop and get lost.

Then the others go on, or the job ends. `server/roster.py` tells the states that a trainer can be in.

A trainer that is killed or cut off is lost, and the policy says what becomes of the others. One that fails by an error
of its own (a bad sample, a loss that is no number) breaks the job, whatever the policy is: all that the others still
ask for is refused, with its reason.

In a job that heals (`ServerConfig.attempt`), nobody goes on without a lost trainer: whoever waits for it is told to
rejoin, and a new attempt begins, with sessions of its own. Within an attempt a number is taken once, but for that of a
trainer that was retired, or that has left an elastic job: whoever has it next comes late.

A number may be taken again by another life of a trainer. Where none of the others is at work any more, that is a new
job: everybody is expected again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

from sparsefleet.core.errors import Rejoin, StoreError
from sparsefleet.server.config import ServerConfig
from sparsefleet.server.job_terms import MAX_WORKERS
from sparsefleet.server.members import Member, Registration
from sparsefleet.server.roster import Roster

log = logging.getLogger(__name__)


class Sessions(Roster):
    """`changed` guards everything here too."""

    def __init__(self, config: ServerConfig) -> None:
        super().__init__(config)
        self.on_new_life: list[Callable[[int | None], None]] = []
        """Called with `changed` held when a number is taken again: forget that trainer, or (None) a whole job."""
        self.on_late: list[Callable[[int], None]] = []
        """Called with `changed` held when a trainer comes while the others are at work."""
        self.on_loss: list[Callable[[int], None]] = []
        """Called with `changed` held when a trainer is lost for good: it has failed, has ended, or is left out."""
        self.on_change: list[Callable[[], None]] = []
        """Called with `changed` held when a trainer comes, goes, rests or is lost, where somebody told us of it."""
        self._numbers: dict[str, int] = {}
        """By life of a trainer that asked for a number, the one it was given."""
        self._scaled = (0, 0)
        """How often somebody has asked for another number of trainers, and for how many."""
        self._too_many: set[int] = set()
        """Those that were asked to leave by the last request, also before they had come."""
        self.last_checkpoint: str | None = config.start
        self._broken: str | None = None
        """Why the job cannot go on."""
        self._broken_at: float | None = None
        self._looked = self._awake_since = time.monotonic()
        """When `leave_out_silent` was called last, and since when it has been again and again."""

    def register(self, incarnation: str, joining: Registration) -> None:
        """Take a trainer in, or say why not; what differs between processes is named on both sides."""
        worker, about = joining.worker, joining.about
        with self.changed:
            if self._over is not None:
                raise Rejoin(self._over)
            self._terms.check_attempt(joining)
            self._terms.check(joining, at_work=self._at_work(except_for=joining.worker))
            present = self._trainers.get(worker)
            again = present is not None and present.incarnation != incarnation
            if self.config.attempt is not None and again and not self._has_made_room(worker):
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
                self._trainers[worker] = Member(worker, incarnation, about, time.monotonic(), fits=joining.fits)
                # One that was lost before it could leave is started again, and leaves then.
                awaited = not late or (present is not None and present.retired)
                self._trainers[worker].leaving = awaited and worker in self._too_many
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
            self._terms.settle(joining)
            self._tell_all()

    def _comes_late(self, worker: int) -> bool:
        """With `changed` held: whether this number's trainer was not there, or not waited for, until now."""
        present = self._trainers.get(worker)
        if present is not None and self.config.attempt is not None:
            return True
        return self.config.elastic is not None and (
            worker in self._vacant or (present is not None and self._at_work(except_for=worker))
        )

    def _has_made_room(self, worker: int) -> bool:
        """With `changed` held, in a job that heals: whether another life of this trainer may join the same attempt."""
        present = self._trainers[worker]
        return present.retired or (present.gone and self.config.elastic is not None)

    def note_not_coming(self, worker: int) -> None:
        """In an elastic job that heals: this trainer had left when the attempt began. Nobody waits for it."""
        with self.changed:
            if self.config.elastic is not None and worker not in self._trainers and 0 <= worker < self.workers:
                self._vacant.add(worker)
                self._tell_all()

    def _job_is_over(self, worker: int) -> bool:
        """Whether the job is broken, nobody of it is left, and one comes again that failed before it registered."""
        if self._broken is None or worker not in self._ended_before:
            return False
        return all(trainer.ended for trainer in self._trainers.values())

    def _make_way(self, worker: int) -> None:
        """Forget a trainer whose number is taken again; if nobody that it worked with is left, forget them all."""
        at_work = self.config.attempt is not None or self._at_work(except_for=worker)  # an attempt is of one job
        if not at_work:
            self._trainers, self._never_came, self._ended_before, self._first = {}, set(), {}, None
            self._broken, self._broken_at, self.leased = None, None, None
            self._terms.new_job()
        for forget in self.on_new_life:
            forget(worker if at_work else None)

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

    def begin_run(self, worker: int, incarnation: str, leased: bool) -> None:
        """A call of `fit` begins. All its trainers say the same of its data: what a lost one has not trained of leased
        data is not missing; of a share of its own it is."""
        with self.changed:
            trainer = self.check(worker, incarnation)
            if not leased and self.config.attempt is not None and self.config.elastic is None:
                away = sorted(self._joining | {w for w, trainer in self._trainers.items() if trainer.retired})
                if away:
                    raise Rejoin(
                        f"{', '.join(map(self.name, away))} was lost and is not back, and this call of fit has a share "
                        "of the data that nobody else trains; the job goes on with a new attempt"
                    )
            if leased and self.leased is False:
                for each in self._trainers.values():
                    each.share_missing = each.share_missing or each.dropped or each.failure is not None
            self.leased, trainer.in_fit = leased, True

    def end_run(self) -> None:
        """With `changed` held: all trainers have come to the end of their call of `fit`."""
        # Where the first of them was lost meanwhile, they meet there once more.
        self.fits_ended += any(trainer.in_fit for trainer in self._trainers.values())
        for trainer in self._trainers.values():
            trainer.in_fit = None if trainer.in_fit is None else False

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

    def note_stopped(self, worker: int) -> None:
        """A trainer that has come to its end was killed before it could tell us so; another server heard it."""
        with self.changed:
            if (trainer := self._trainers.get(worker)) is not None and not trainer.stopped:
                trainer.stopped, trainer.failure = True, None
                self._tell_all()

    # --- trainers that come and go

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
                # One that was retired is started again, under its number.
                ended = {worker for worker, trainer in self._trainers.items() if trainer.ended and not trainer.retired}
                free = sorted((self._vacant | ended) - given - self._joining)
                if not free:
                    raise StoreError(f"there are {elastic.most} trainers, and this job ({elastic}) takes no more")
                self._numbers[incarnation] = free[0]
            return self._numbers[incarnation]

    def let_in(self, worker: int, incarnation: str) -> None:
        """With `changed` held: from now on the others wait for this trainer, but for rounds."""
        trainer = self.check(worker, incarnation)
        self._joining.discard(worker)
        trainer.resting = trainer.resting and self.mode == "sync"  # there it enters the rounds by itself
        self._tell_all()

    def let_all_in(self, worker: int, incarnation: str) -> None:
        with self.changed:
            self.let_in(worker, incarnation)

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
            self._too_many = set(before[workers:])
            for trainer in self._trainers.values():
                trainer.leaving = trainer.worker in self._too_many
            return {"present": before, "leaving": before[workers:]}

    def scaled_to(self) -> dict[str, Any] | None:
        """For who starts processes: how many trainers are wanted, by the how-manieth request, and which there are."""
        with self.changed:
            request, workers = self._scaled
            return {"request": request, "workers": workers, "present": self.present()} if request else None

    # --- trainers that are lost

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

    def retire(self, worker: int) -> str | None:
        """In a job that heals: this trainer is lost, and the others go on with its data. Its life, if it had come."""
        with self.changed:
            trainer = self._trainers.get(worker)
            if trainer is None:
                return None
            if not self.leased:
                raise StoreError(f"worker {worker} has a share of the data of its own: nobody can go on without it")
            joins = trainer.late and trainer.in_fit is None  # and has done nothing yet
            if not (trainer.in_fit or joins or trainer.retired):
                raise StoreError(
                    f"worker {worker} was outside of fit: nobody else does what its script does there, for all perhaps"
                )
            if not trainer.retired and not self.in_meetings() - {worker}:
                raise StoreError(
                    f"worker {worker} is the last that takes part: nobody else is there to go on with its data"
                )
            if not trainer.retired:
                trainer.dropped = trainer.retired = True
                self._lost_for_good(worker)
                self._tell_all()
            return trainer.incarnation

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
            came = worker in self._trainers or worker in self._ended_before
            why = "" if came else f": it has not come within {self.config.join_timeout:g} s (connect_timeout)"
            log.warning("going on without %s%s", self.name(worker), why)
            if worker in self._trainers:
                self._trainers[worker].dropped = True
                self._lost_for_good(worker)
            else:
                self._never_came.add(worker)
        self._tell_all()
        return None

    def break_job(self, why: str) -> None:
        """With `changed` held: nobody goes on."""
        if self._broken is None:
            self._broken_at = time.monotonic()
            self._broken = f"the job has ended: {why}. {self._advice('Once that is mended, start')}"
            self._tell_all()

    def end_attempt(self, why: str) -> None:
        """Everybody is told to rejoin from now on, also those that wait for others here."""
        with self.changed:
            self._over = why
            self._tell_all()

    def abandoned(self) -> bool:
        """There were trainers, and all of them have been silent for too long."""
        after, now = self.config.abandoned_after, time.monotonic()
        with self.changed:
            seen = [trainer.last_seen for trainer in self._trainers.values()]
            if self._broken_at is not None:  # maybe before anybody came
                seen.append(self._broken_at)
            return after is not None and bool(seen) and all(now - moment > after for moment in seen)

    def missing_error(self, what: str, lost: Iterable[int]) -> StoreError:
        names = ", ".join(self.name(worker) for worker in lost)
        lost_them = f"{what}: lost {names}; the time-out is {self.config.timeout:g} s."
        if any(worker not in self._trainers and worker not in self._ended_before for worker in lost):
            lost_them += (
                f" Who has not come yet is waited for {self.config.join_timeout:g} s from the first one on: raise "
                "connect_timeout of the strategy (sparsefleet train: --connect-timeout) on all processes where that is "
                "too short."
            )
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

    def _lost_for_good(self, worker: int) -> None:
        for forget in self.on_loss:
            forget(worker)

    def _tell_all(self) -> None:
        """Somebody has come, gone, rested or been lost: whoever waits for trainers looks again."""
        self._in_rounds = None
        for look in self.on_change:
            look()
        self.changed.notify_all()
