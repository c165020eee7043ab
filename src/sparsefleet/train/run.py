"""Run: one call of `Trainer.fit`: its threads, its progress, its saves, its watchers."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from sparsefleet.checkpoint import point_latest, prune, step_path
from sparsefleet.communicator import Communicator
from sparsefleet.core.batch import Batch
from sparsefleet.core.errors import ConfigError, StoreError
from sparsefleet.data.base import Epoch, Reader
from sparsefleet.metrics import ClickMetrics
from sparsefleet.metrics.clicks import NUM_THRESHOLDS, SLIDE_STEPS
from sparsefleet.models import registry
from sparsefleet.nn.precision import computing_in
from sparsefleet.store.base import RunFacts
from sparsefleet.train.fetch import FetchHandler, check_names, fetch_values
from sparsefleet.train.job import Job
from sparsefleet.train.loop import run_threads
from sparsefleet.train.moment import RunMoment
from sparsefleet.train.profile import Profiler, StepProfile
from sparsefleet.train.progress import Progress
from sparsefleet.train.replica import Replica
from sparsefleet.train.reporting.base import Reporter
from sparsefleet.train.saving import SavePolicy, TrainingState, joint_facts, random_state_text
from sparsefleet.train.session import Session
from sparsefleet.train.status import StatusReports

logger = logging.getLogger("sparsefleet.train")

INTERRUPTED_SECONDS = 10.0
"""Trainers that are interrupted together end their steps within so much of each other."""


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

    def __post_init__(self) -> None:
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
    profile: StepProfile | None = None
    """Where the time of this trainer's steps went, if asked for."""

    @property
    def samples_per_s(self) -> float:
        return self.rows / self.seconds if self.seconds else 0.0


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
        session: Session,
        data: Reader,
        epochs: int,
        config: RunConfig,
        job: Job,
        *,
        state: TrainingState,
        start_of: Callable[[int], TrainingState],
        save: SavePolicy | None,
        reporters: Sequence[Reporter],
        fetch: Sequence[FetchHandler],
    ) -> None:
        self.session, self.data, self.config, self.save_policy, self.job = session, data, config, save, job
        self._start_of = start_of
        """Where a trainer of the job stood when this run began."""
        self.reporters, self.handlers = tuple(reporters), tuple(fetch)
        self.progress = Progress(epochs, config.num_thresholds, config.slide_steps)
        self.progress.step = self._first_step = state.step
        self._profiler = Profiler(config.threads) if config.profile else None
        if state.metrics:
            self.progress.metrics = ClickMetrics.from_dict(state.metrics)
        self.status = StatusReports(session.store, self.progress)
        self.everyone: ClickMetrics | None = None
        """Of a job of several trainers: metrics over all of them, at the last epoch's end."""
        self.lost: list[str] = []
        """Trainers that the others went on without."""
        self.checkpoint: str | None = None
        self.moment = RunMoment(session.store, self.progress, self.state, data.settled)
        """This run's part in checkpoints, its own and those of the job's other trainers."""
        # Resumed within an epoch, it is under way: a checkpoint from before the first step must not begin it anew.
        self._at = _Place(state.epoch, under_way=bool(state.position) or state.finished, stepped=state.finished)
        self._nothing_left = state.finished
        self._saving = threading.Lock()
        self._caller = threading.current_thread()
        self._saved: TrainingState | None = None
        self._untold: deque[tuple[str, int]] = deque()
        self._parameters = dict(session.model.named_parameters())
        for handler in self.handlers:
            check_names(handler.fetch_list, self.progress.snapshot(None).values(), self._parameters)

    @property
    def epochs_done(self) -> int:
        return self._at.epoch

    @contextmanager
    def taking_part(self, communicator: Communicator) -> Iterator[None]:
        """Training goes on inside: checkpoints of all trainers of the job know where this one stands."""
        self.moment.communicator = communicator
        with self.session.store.attending(self.moment):
            try:
                yield
            except KeyboardInterrupt:
                self.interrupted()
                raise
        self.moment.communicator = None  # it is about to be closed, with nothing left to send

    def epoch(self, number: int, communicator: Communicator) -> None:
        """Train on what is left of one pass over the data."""
        progress, threads = self.progress, self.config.threads
        progress.epoch = number
        self.session.model.train()
        gate = self.moment.gate
        self.status.staleness = communicator.staleness
        lanes = communicator.begin_epoch(number, threads)
        replicas = [
            Replica(copy, self.session.block, lane, self.config.precision)
            for copy, lane in zip(self.session.copies(threads), lanes, strict=True)
        ]
        place = self._at = _Place(number, under_way=True, stepped=self._nothing_left)

        def step(index: int, batch: Batch) -> None:
            outcome = replicas[index].step(batch)
            self.data.consumed(batch)
            place.stepped = True
            count = progress.add(batch, outcome)
            for handler in self.handlers:
                handler.after_step(count, self.fetch)
            due = self.save_policy is not None and self.save_policy.due(count)
            if due and self.session.store.first_trainer() == self.job.index:
                self.save()

        def leave(index: int, error: BaseException | None) -> None:
            if error is not None:
                lanes[index].give_up(error)
                return
            with gate.step():  # the others' steps may be applied for want of ours: not while somebody saves
                lanes[index].leave()

        progress.start_clock()
        try:
            self.data.set_epoch(number)  # a shuffling reader's order is a function of it
            with Epoch([]) if self._nothing_left else self.data.epoch(threads) as epoch:
                if progress.done_before is None:
                    progress.done_before = number + (self.data.progress() or 0.0)
                begin = self._profiler.begin_thread if self._profiler else lambda: None
                run_threads(epoch, step, gate, self.tick, leave=leave, begin=begin)
            for index in range(len(epoch.streams), threads):
                leave(index, None)
            self._nothing_left = False
            communicator.flush()
        finally:
            progress.stop_clock()
            self._tell_saved()
            self.status.resting("waiting for the others")
        self._at = _Place(number + 1, under_way=False)  # a checkpoint from here resumes with the next one
        if self.job.trainers > 1:
            self.meet(number, communicator)
        for reporter in self.reporters:
            reporter.epoch_end(progress.snapshot(share=1.0, metrics=self.everyone))
        if self.save_policy and self.save_policy.every_epoch:
            self.save_once(f"saved epoch {self.epochs_done}")

    def meet(self, number: int, communicator: Communicator) -> None:
        """All trainers have come to the end of an epoch."""
        store = self.session.store
        parts = store.reduce(f"epoch {number}", {"trainer": self.job.index, "metrics": self.progress.metrics.to_dict()})
        self.everyone = merged(part["metrics"] for part in parts)
        self.job.first = min(part["trainer"] for part in parts)
        for trainer in store.lost_trainers():
            if trainer not in self.lost:
                self.lost.append(trainer)
                logger.warning("went on without %s: rows that it had not trained yet are missing", trainer)
        communicator.flush()  # what others sent after our last step belongs to the model that is scored and saved

    def tick(self) -> None:
        self._tell_saved()
        self.status.tick()
        for reporter in self.reporters:
            reporter.tick(lambda: self.progress.snapshot(self.data.progress()))
        for handler in self.handlers:
            handler.tick(self.fetch)

    def fetch(self, names: Sequence[str]) -> list[Any]:
        return fetch_values(names, self.progress.snapshot(self.data.progress()).values(), self._parameters)

    def interrupted(self) -> None:
        """The user wants to stop: save, if asked to. Of several trainers all must have been interrupted."""
        if self.save_policy is None or not self.save_policy.on_interrupt:
            return
        quiet = self.moment.gate.quiet
        if self.job.trainers > 1:
            mine = {"trainer": self.job.index, "quiet": quiet}
            try:
                parts = self.session.store.reduce("interrupted", mine, INTERRUPTED_SECONDS)
            except StoreError as error:
                logger.warning("not saved, since the other trainers go on or are gone")
                logger.debug("%s", error)
                return
            quiet = all(part["quiet"] for part in parts)
            self.job.first = min(part["trainer"] for part in parts)
        if not quiet:
            logger.warning("a training thread is still within a step: not saved; the last checkpoint stands")
        elif self.job.trainers == 1:
            self.save()
        else:
            self.save_once("interrupted, saved")

    def save_once(self, name: str) -> None:
        """All trainers have come here: the first of those left saves, the others wait."""
        saved = False
        while not saved:
            if self.job.index == self.job.first:
                self.save()
            mine = {"trainer": self.job.index, "saved": self.job.index == self.job.first}
            parts = self.session.store.reduce(name, mine)
            saved = any(part["saved"] for part in parts)
            self.job.first = min(part["trainer"] for part in parts)  # else the one that was to save is lost

    def save(self) -> None:
        """A checkpoint of this moment, by the policy. From any thread; one of training only at the end of its step."""
        policy = self.save_policy
        assert policy is not None
        self.status.resting("saving")
        with self._standing_still():
            if self.job.trainers == 1 and self.state() == self._saved:
                return
            step = self.progress.step
            self.checkpoint = path = str(step_path(policy.folder, step))
            self._save_to(path)
            point_latest(path)
            prune(policy.folder, policy.keep)
            self._untold.append((path, step))
        if threading.current_thread() is self._caller:
            self._tell_saved()

    def save_to(self, path: str, *, drop_state: bool = False) -> None:
        """A checkpoint of this moment: of the parameters, and of where every trainer stands."""
        with self._standing_still():
            self._save_to(path, drop_state=drop_state)

    @contextmanager
    def _standing_still(self) -> Iterator[None]:
        """One save at a time; as far as this trainer is concerned, of one moment."""
        with self.moment.gate.aside(), self._saving:
            try:
                self.moment.pause()
                yield
            finally:
                self.moment.resume()

    def _save_to(self, path: str, *, drop_state: bool = False) -> None:
        self.session.store.save_together(path, self.moment, self.facts, drop_state=drop_state)

    def state(self) -> TrainingState:
        """Where this run stands."""
        at = self._at
        position = self.data.position() if at.under_way else {}
        # After an epoch's last batch its position is empty, as before the first one.
        finished = at.under_way and at.stepped and not position
        return TrainingState(
            step=self.progress.step,
            epoch=at.epoch + finished,
            position=position,
            metrics=self.progress.metrics.to_dict(),
            random_state=random_state_text(),
        )

    def facts(self, reports: Mapping[int, Mapping[str, Any]]) -> RunFacts:
        """What a checkpoint should know besides the parameters, from what every trainer reports of itself."""
        states = {trainer: TrainingState(**report) for trainer, report in reports.items()}
        self._saved = states[self.job.index]
        epoch = min(state.epoch for state in states.values())
        for trainer in self.session.store.not_begun():
            start = self._start_of(trainer)
            if trainer not in states and start.epoch == epoch and not start.finished:
                states[trainer] = start  # its rows of this epoch are still to come, not lost
        return replace(
            joint_facts(states, self.job.index, self.job.trainers),
            schema=self.data.schema.to_dict(),
            model=registry.describe(self.session.model),
            buffers=self.session.buffers(),
        )

    def _tell_saved(self) -> None:
        """Training threads save; reporters are told by the thread that called `fit` alone."""
        while self._untold:
            path, step = self._untold.popleft()
            for reporter in self.reporters:
                reporter.saved(path, step)

    def result(self, test: Mapping[str, float] | None) -> FitResult:
        self.status.resting("done")
        return FitResult(
            rows=self.progress.rows,
            steps=self.progress.step,
            seconds=self.progress.seconds,
            train=(self.everyone or self.progress.metrics).values(),
            test=test,
            skipped=self.data.skipped(),
            checkpoint=self.checkpoint,
            lost=tuple(self.lost),
            profile=self._profiler.result(self.progress.step - self._first_step) if self._profiler else None,
        )


def merged(parts: Iterable[Mapping[str, Any]]) -> ClickMetrics:
    """The metrics of all trainers, from those of each."""
    first, *others = map(ClickMetrics.from_dict, parts)
    for other in others:
        first.merge(other)
    return first
