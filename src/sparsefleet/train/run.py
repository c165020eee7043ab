"""Run: the training of one call of `Trainer.fit`, or of one attempt of it: threads, progress, saves, watchers."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from sparsefleet.communicator import Communicator
from sparsefleet.core.batch import F32, U64, Batch
from sparsefleet.core.errors import ConfigError, DataError, StoreError
from sparsefleet.crew import PassLender, Reports
from sparsefleet.data.base import Epoch, Reader
from sparsefleet.data.leased import LeasedDataset
from sparsefleet.metrics import Metric, MetricSet, check_metrics
from sparsefleet.metrics.clicks import NUM_THRESHOLDS, SLIDE_STEPS
from sparsefleet.models import registry
from sparsefleet.nn.own_pass import BringsPass
from sparsefleet.nn.precision import computing_in
from sparsefleet.store.base import Pending, RunFacts
from sparsefleet.train.binding import BoundModel
from sparsefleet.train.cut_member import RunCutMember
from sparsefleet.train.fetch import FetchHandler
from sparsefleet.train.fetcher import Fetcher
from sparsefleet.train.healing import HEAL, Before, cut_record
from sparsefleet.train.job_cuts import JobCuts
from sparsefleet.train.profile import Profiler, StepProfile
from sparsefleet.train.progress import QUICK, LossWindow, Progress, Snapshot
from sparsefleet.train.replica import Replica
from sparsefleet.train.reporting.base import Reporter
from sparsefleet.train.save_policy import SavePolicy
from sparsefleet.train.saver import Saver
from sparsefleet.train.status import StatusReports
from sparsefleet.train.threads import run_threads
from sparsefleet.train.training_state import (
    UNTIL,
    VALIDATION,
    TrainingState,
    joint_facts,
    leased_facts,
    random_state_text,
)
from sparsefleet.train.validation import Standing
from sparsefleet.train.workplace import Workplace

logger = logging.getLogger("sparsefleet.train")

INTERRUPTED_SECONDS = 10.0
"""Trainers that are interrupted together end their steps within so much of each other."""
LEAVE_SECONDS = 5.0
"""A training thread may take so long to leave, once its last step is over: it waits for answers of servers."""


@dataclass(frozen=True)
class RunConfig:
    threads: int = 1
    """Training threads, each with a copy of the model and a stream of the reader."""
    precision: str = "float32"
    """What the dense network computes in: float32 or bf16."""
    num_thresholds: int = NUM_THRESHOLDS
    """Buckets of the AUC histograms, less one."""
    slide_steps: int = SLIDE_STEPS
    """Batches in the sliding-window AUC."""
    profile: bool = False
    """Measure where the time of steps goes."""
    metrics: tuple[Metric, ...] = ()
    """The user's own, besides those of clicks; copied for each run."""

    @property
    def training_metrics(self) -> tuple[Metric, ...]:
        """Those that count in training too, not only where data is scored."""
        return tuple(metric for metric in self.metrics if metric.in_training)

    def __post_init__(self) -> None:
        check_metrics(self.metrics)
        if self.threads < 1:
            raise ConfigError(f"threads={self.threads} must be 1 or above")
        computing_in(self.precision)  # refuses an unknown one, and tells what this machine makes of it


@dataclass(frozen=True)
class FitResult:
    rows: int
    """Rows trained by this call."""
    steps: int
    """Steps of the whole training so far, over resumes."""
    seconds: float
    """Time spent training, without evaluation and saving."""
    train: Mapping[str, float]
    """Metrics over all rows, each predicted before it was trained on."""
    test: Mapping[str, float] | None
    skipped: Mapping[str, int]
    """Bad rows passed over, per reason."""
    checkpoint: str | None
    """The last checkpoint written."""
    lost: tuple[str, ...] = ()
    """Trainers of the job that died and that the others went on without."""
    epoch_samples: int | None = None
    """Of leased data: samples that all trainers together have read in the last epoch of this call, those of trainers
    that left and those passed over included."""
    profile: StepProfile | None = None
    """Where the time of this trainer's steps went, if asked for."""
    valid: Mapping[str, float] | None = None
    """Metrics of the validation data after the last epoch."""
    best: Mapping[str, Any] | None = None
    """Of the best epoch on validation data: its `epoch`, `step`, `metric` and `value`, and where this call has trained
    it, its metrics on both sets, `valid` and `test`."""
    stopped: str | None = None
    """Why training ended before all epochs were done."""

    @property
    def samples_per_s(self) -> float:
        return self.rows / self.seconds if self.seconds else 0.0


def _inputs_of(data: Reader) -> dict[str, Any] | None:
    inputs = data.inputs()
    return None if inputs is None else inputs.to_dict()


@dataclass
class _Place:
    """Where a run stands between saves."""

    epoch: int
    """Epochs that are done."""
    under_way: bool
    """Another one has begun."""
    stepped: bool = False
    """At least one batch of it has been trained on."""


class Run:
    def __init__(
        self,
        bound: BoundModel,
        data: Reader,
        epochs: int,
        config: RunConfig,
        workplace: Workplace,
        *,
        state: TrainingState,
        start_of: Callable[[int], TrainingState],
        save: SavePolicy | None,
        reporters: Sequence[Reporter],
        fetch: Sequence[FetchHandler],
        before: Before | None = None,
    ) -> None:
        """`start_of`: where a trainer of the job, by its number, stood when this run began.

        `before`: in a job that heals, what this call of `fit` had done before.
        """
        self._before = before or Before()
        self.bound, self.data, self.config, self.save_policy = bound, data, config, save
        self.crew, self._start_of = workplace.crew, start_of
        self.leased = data if isinstance(data, LeasedDataset) else None
        """Data that all trainers read together; None: each has its own share."""
        self._resumed = (state.epoch, state.position)
        self._looks = [(reporter, LossWindow()) for reporter in reporters]
        self._handlers = [(handler, LossWindow()) for handler in fetch]
        self.progress = Progress(epochs, config.num_thresholds, config.slide_steps, config.training_metrics)
        self.progress.step = self._first_step = state.step
        self._profiler = Profiler(config.threads) if config.profile else None
        if state.metrics:
            self.progress.metrics = MetricSet.together([state.metrics], config.training_metrics)
        self.status = StatusReports(self.crew, self.progress)
        self.status.share = data.progress
        self.status.again = self._before.again
        self.everyone: MetricSet | None = None
        """Of a job of several trainers: metrics over all of them, at the last epoch's end."""
        self.lost: list[str] = []
        """Trainers that the others went on without."""
        self.member = RunCutMember(workplace.store, self.progress, self.state, data.settled)
        """This run's part in cuts, its own and those of the job's other trainers."""
        self.saver = Saver(workplace.store, self.crew, self.member, self.facts, save, self._note_saved)
        healing = workplace.healing
        self.cuts = JobCuts(self.saver, healing) if healing is not None else None
        """What the job goes back to if one of its processes is lost."""
        # Resumed within an epoch, it is under way: a checkpoint from before the first step must not begin it anew.
        self._at = _Place(state.epoch, under_way=bool(state.position) or state.finished, stepped=state.finished)
        self._met = state.epoch
        """Epochs at whose end all trainers have met."""
        self._nothing_left = state.finished
        self._epoch_samples: int | None = None
        self.standing = Standing.from_dict(state.validation) if state.validation else None
        """How the run stands by its validation data."""
        self.ended: Mapping[str, Any] | None = None
        """What this call of `fit` has come to (`FitResult`), once all trainers have nothing left to do in it."""
        self._looked_at_classes = False
        self._caller = threading.current_thread()
        self._untold: deque[tuple[str, int]] = deque()
        self._description = registry.describe(bound.model)  # now: a model that cannot be described is not trained
        wanted = [name for handler, _ in self._handlers for name in handler.fetch_list]

        def pull(table: str, keys: U64) -> Pending[F32]:
            return workplace.store.pull(table, keys, create=False)

        self._fetcher = Fetcher(bound, pull, config.precision, wanted, self._numbers(LossWindow(), None))

    @property
    def fit(self) -> int:
        """Which call of `fit` this is (`Workplace.fits`)."""
        return self._before.fit

    @property
    def epochs_done(self) -> int:
        return self._at.epoch

    @property
    def between_epochs(self) -> bool:
        return not self._at.under_way

    @contextmanager
    def taking_part(self, communicator: Communicator) -> Iterator[None]:
        """Training goes on inside: checkpoints of all trainers of the job know where this one stands."""
        self.member.communicator = communicator
        with self.crew.attending(self.member):
            try:
                yield
                if self.save_policy is not None and self.save_policy.every_epoch:
                    self.saver.check_last()
            except KeyboardInterrupt:
                self.interrupted()
                raise
            finally:
                self.saver.settle()  # whatever has happened: what was named is worth to be written
                self._tell_saved()
        self.member.communicator = None  # it is about to be closed, with nothing left to send

    def epoch(self, number: int, communicator: Communicator) -> None:
        """Train on what is left of one pass over the data."""
        progress = self.progress
        progress.epoch = number
        self.bound.model.train()
        self.status.staleness = communicator.staleness
        told: dict[str, Any] = {UNTIL: self.progress.epochs}
        if self.standing is not None:
            told[VALIDATION] = self.standing.to_dict()
        lender = None if self.leased is None else self.crew.lender(self._pass_name(number), told=told)
        """Of leased data, who lends it; None: this process reads all that it was given."""
        if self.leased is not None:
            self.leased.lend_by(lender)
        place = self._at = _Place(number, under_way=True, stepped=self._nothing_left)
        progress.start_clock()
        try:
            self.data.set_epoch(number)  # a shuffling reader's order is a function of it
            self._lap(number, place, communicator, carries_marks=lender is not None)
            while lender is not None and (lender.leaves or self._end_lap(lender)):  # what a lost trainer has left
                if lender.leaves:
                    self.crew.leave_job()
                self._lap(number, place, communicator, carries_marks=True)
            if lender is not None:
                self._count_samples(lender)
        finally:
            progress.stop_clock()
            if self.leased is not None:
                self.leased.lend_by(None)
            self._tell_saved()
            self.status.resting("waiting for the others")
        self._at = _Place(number + 1, under_way=False)  # a checkpoint from here resumes with the next one
        if self.crew.size > 1:
            self.meet(number, communicator)
        self._met = number + 1
        self._warn_of_one_class()
        for reporter, window in self._looks:
            reporter.epoch_end(progress.snapshot(share=1.0, metrics=self.everyone, window=window))

    def _lap(self, number: int, place: _Place, communicator: Communicator, *, carries_marks: bool) -> None:
        """Train on all that the reader gives; of leased data, until there is no piece left to take."""
        progress, threads, gate, fetcher = self.progress, self.config.threads, self.member.gate, self._fetcher
        lanes = communicator.begin_epoch(number, threads)
        self.crew.caught_up()
        replicas = [
            Replica(copy, self.bound.block, lane, self.config.precision)
            for copy, lane in zip(self.bound.copies(threads), lanes, strict=True)
        ]

        def step(index: int, batch: Batch) -> None:
            marks = batch.marks if carries_marks else ()
            outcome = replicas[index].step(batch, marks, epoch.streams[index].coming)
            self.data.consumed(batch)
            place.stepped = True
            count = progress.add(batch, outcome)
            if self._handlers:
                fetcher.seen(batch, outcome.outputs)
                with gate.aside():  # a handler may save, and who waits for its turn must not hold that up
                    for handler, window in self._handlers:
                        handler.after_step(count, partial(self.fetch, window))
            if self.save_policy is not None and self.save_policy.due(count) and self._is_first():
                self.save()
            if self.cuts is not None and self.cuts.due() and self._is_first():
                self.cuts.take()

        def leave(index: int, error: BaseException | None) -> None:
            if error is not None:
                lanes[index].give_up(error)
                return
            with gate.step():  # leaving can complete a round and apply other threads' gradients: never during a cut
                lanes[index].leave()

        with Epoch([]) if self._nothing_left else self.data.epoch(threads) as epoch:
            if progress.done_before is None:
                progress.done_before = number + (self.data.progress() or 0.0)
            begin = self._profiler.begin_thread if self._profiler else lambda: None
            run_threads(epoch, step, gate, self.tick, leave=leave, begin=begin)
        for index in range(len(epoch.streams), threads):
            leave(index, None)
        self._nothing_left = False
        communicator.flush()

    def _end_lap(self, lender: PassLender) -> int:
        with self._waiting_for_others():
            return lender.end_lap()

    @contextmanager
    def _waiting_for_others(self) -> Iterator[None]:
        """They may train on for long, with larger shares or pieces: the job's cuts do not wait for them."""
        if self.cuts is None or self.crew.size == 1:
            yield
            return
        with self.cuts.while_waiting(self._is_first):
            yield

    def _is_first(self) -> bool:
        return self.crew.first() == self.crew.index

    def _pass_name(self, epoch: int) -> str:
        """Of leased data, the same in all trainers."""
        return f"fit {self.fit}, epoch {epoch + 1}"

    def _count_samples(self, lender: PassLender) -> None:
        standing = lender.state()
        if standing is None or not standing.progress:
            return
        self._epoch_samples = sum(int(samples) for _, samples, *_ in standing.progress)
        if not self._epoch_samples:
            raise DataError("there are no samples in the files that all trainers were given")

    def save_epoch(self, *, anyway: bool = False) -> None:
        """An epoch is done, and judged: save, where the policy says so or where it must be kept (`anyway`)."""
        if self.save_policy and (self.save_policy.every_epoch or anyway):
            self.crew.only_first(f"saved epoch {self.epochs_done}", self.save)

    def end(self, **figures: Any) -> None:
        """Nothing is left to do. In a job that heals, the cut that is taken now says what this call came to: whoever
        is started again from it is past this call, as all others are."""
        self.ended = {**figures, "epoch_samples": self._epoch_samples, "checkpoint": self.saver.checkpoint}
        self.cut_together("the end")

    def ended_before(self, metrics: Mapping[str, Any], ended: Mapping[str, Any]) -> FitResult:
        """As the cut at its end says."""
        self.everyone = MetricSet.together([metrics], self.config.training_metrics)
        figures = dict(ended)
        samples, checkpoint = figures.pop("epoch_samples", None), figures.pop("checkpoint", None)
        return replace(self.result(**figures), epoch_samples=samples, checkpoint=checkpoint)

    def cut_together(self, name: str) -> None:
        """In a job that heals: all trainers are here, and the first of them writes a cut."""
        cuts = self.cuts
        if cuts is not None:
            self.crew.only_first(f"cut: {name}", partial(cuts.take, wait=True))

    def meet(self, number: int, communicator: Communicator) -> None:
        """All trainers have come to the end of an epoch."""
        mine = {"metrics": self.progress.metrics.to_dict(), "statistics": self.bound.statistics()}
        with self._waiting_for_others():
            parts = self.crew.reduce(f"epoch {number}", mine)
        self.bound.agree_on([part["statistics"] for part in parts])
        self.everyone = MetricSet.together((part["metrics"] for part in parts), self.config.training_metrics)
        for trainer in self.crew.lost():
            if trainer not in self.lost:
                self.lost.append(trainer)
                logger.warning(
                    "went on without %s: %s",
                    trainer,
                    "others train its pieces" if self._lent else "samples that it had not trained yet are missing",
                )
        communicator.flush()  # what others sent after our last step belongs to the model that is scored and saved

    def _warn_of_one_class(self) -> None:
        """Once. A model with a pass of its own (word2vec's) has labels of its own too."""
        if self._looked_at_classes or isinstance(self.bound.model, BringsPass) or not self._is_first():
            return
        self._looked_at_classes = True
        found = (self.everyone or self.progress.metrics).only_classes(self.data.schema.label)
        for name, (only, rows) in found.items():
            logger.warning(
                "all %s training rows that have the label %r have %d there: the model can only learn to say that, and "
                "there is no AUC; look whether that is the right column, and whether rows of label %d were left out",
                f"{rows:,}",
                name,
                only,
                1 - only,
            )

    def tick(self) -> None:
        self.saver.check()
        self._tell_saved()
        self.status.tick()
        for reporter, window in self._looks:
            reporter.tick(partial(self.snapshot, window))
        for handler, window in self._handlers:
            handler.tick(partial(self.fetch, window))

    def snapshot(self, window: LossWindow) -> Snapshot:
        return self.progress.snapshot(self.data.progress(), window=window)

    def fetch(self, window: LossWindow, names: Sequence[str]) -> list[Any]:
        return self._fetcher.values(names, partial(self._numbers, window))

    def _numbers(self, window: LossWindow, names: Sequence[str] | None) -> Mapping[str, float]:
        """Those of the run and of its metrics, or at least the named ones: an AUC takes longer than all others."""
        if names is not None and QUICK.issuperset(names):
            return self.progress.quick_numbers(window)
        metrics = self.progress.metrics.values()
        return {**metrics, **self.snapshot(window).values()}

    def interrupted(self) -> None:
        """The user wants to stop: save, if asked to. Of several trainers all must have been interrupted."""
        if self.save_policy is None or not self.save_policy.on_interrupt:
            return
        # Not only a look: a thread that was between two steps, or with a handler, comes in once more to leave.
        quiet = self.member.gate.wait_until_quiet(LEAVE_SECONDS)
        if self.crew.size > 1:
            try:
                parts = self.crew.reduce("interrupted", {"quiet": quiet}, INTERRUPTED_SECONDS)
            except StoreError as error:
                logger.warning("not saved, since the other trainers go on or are gone")
                logger.debug("%s", error)
                return
            quiet = all(part["quiet"] for part in parts)
        if quiet:
            self.crew.only_first("interrupted, saved", partial(self.save, wait=True))
        else:
            logger.warning("a training thread is still within a step: not saved; the last checkpoint stands")

    def save(self, *, wait: bool = False) -> None:
        """A checkpoint of this moment, by the policy; see `Saver.save`."""
        self.status.resting("saving")
        self.saver.save(wait=wait)
        if threading.current_thread() is self._caller:
            self._tell_saved()

    def state(self) -> TrainingState:
        """Where this run stands."""
        at = self._at
        lent = self._lent
        position = self.data.position() if at.under_way and not lent else {}
        # After an epoch's last batch its position is empty, as before the first one.
        finished = at.under_way and at.stepped and not position and not lent
        return TrainingState(
            step=self.progress.step,
            epoch=at.epoch + finished,
            position=position,
            metrics=self.progress.metrics.to_dict(),
            random_state=random_state_text(),
            validation={} if self.standing is None else self.standing.to_dict(),
            rows=self._before.rows + self.progress.rows,
        )

    def facts(self, reports: Reports) -> RunFacts:
        """What a checkpoint should know besides the parameters, from what every trainer reports of itself."""
        states = {trainer: TrainingState(**report) for trainer, report in reports.items()}
        joint = self._leased_facts(states) if self._lent else self._shared_out_facts(states)
        stands = joint.extra["training"].get(VALIDATION)
        if stands and (standing := Standing.from_dict(stands)).best is not None:
            joint = replace(joint, extra={**joint.extra, "best": standing.marks()})
        if self.cuts is not None:
            rows = {trainer: state.rows for trainer, state in states.items()}
            record = cut_record(self._before.fit, rows, self.progress.epochs, self.ended)
            joint = replace(joint, extra={**joint.extra, "training": {**joint.extra["training"], HEAL: record}})
        return replace(
            joint,
            schema=self.data.schema.to_dict(),
            inputs=_inputs_of(self.data),
            model=self._description,
            buffers=self.bound.buffers(),
        )

    def _shared_out_facts(self, states: dict[int, TrainingState]) -> RunFacts:
        """Every trainer has its own share of the data, and its own position in it."""
        for trainer in self.crew.not_begun():
            start = self._start_of(trainer)
            # Its samples of this epoch are still to come, not lost, even where all others are through with theirs: they
            # wait for it at the epoch's end.
            if trainer not in states and start.epoch == self._met:
                states[trainer] = replace(start, epoch=start.epoch + start.finished)
        return joint_facts(states, self.crew.index, self.crew.size, self.config.training_metrics)

    def _leased_facts(self, states: dict[int, TrainingState]) -> RunFacts:
        """There is one position, of all trainers: what server 0 knows of the pieces."""
        assert self.leased is not None
        epoch = min(state.epoch for state in states.values())
        lender = self.crew.lender(self._pass_name(epoch))
        assert lender is not None
        standing = lender.state()
        position: Mapping[str, Any] = {}
        if standing is None:  # nobody has begun it
            position = self._resumed[1] if epoch == self._resumed[0] else {}
        elif standing.left:
            position = self.leased.position_at(standing.progress, lender)
        else:  # done, though somebody may not know it yet
            states = {trainer: replace(state, epoch=max(state.epoch, epoch + 1)) for trainer, state in states.items()}
        return leased_facts(states, self.crew.index, position, self.config.training_metrics)

    @property
    def _lent(self) -> bool:
        return self.leased is not None and self.crew.lender("") is not None

    def _note_saved(self, path: str, step: int) -> None:
        self._untold.append((path, step))

    def _tell_saved(self) -> None:
        """Training threads save; reporters are told by the thread that called `fit` alone."""
        while self._untold:
            path, step = self._untold.popleft()
            for reporter, _ in self._looks:
                reporter.saved(path, step)

    def tell_validated(self, values: Mapping[str, float], best: bool) -> None:
        for reporter, _ in self._looks:
            reporter.validated(self.progress.step, values, best)

    def result(
        self,
        test: Mapping[str, float] | None,
        valid: Mapping[str, float] | None = None,
        best: Mapping[str, Any] | None = None,
        stopped: str | None = None,
    ) -> FitResult:
        self.status.resting("done")
        return FitResult(
            rows=self._before.rows + self.progress.rows,
            steps=self.progress.step,
            seconds=self._before.seconds + self.progress.seconds,
            train=(self.everyone or self.progress.metrics).values(),
            test=test,
            skipped=self.data.skipped(),
            checkpoint=self.saver.checkpoint,
            lost=tuple(self.lost),
            epoch_samples=self._epoch_samples,
            profile=self._profiler.result(self.progress.step - self._first_step) if self._profiler else None,
            valid=valid,
            best=best,
            stopped=stopped,
        )
