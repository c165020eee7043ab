"""Run: one call of `Trainer.fit`: its threads, its progress, its saves, its watchers."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparsefleet.communicator import Communicator
from sparsefleet.core.batch import Batch
from sparsefleet.core.errors import ConfigError
from sparsefleet.data.base import Reader
from sparsefleet.metrics import ClickMetrics
from sparsefleet.metrics.clicks import NUM_THRESHOLDS, SLIDE_STEPS
from sparsefleet.models import registry
from sparsefleet.store.base import ParameterStore, RunFacts
from sparsefleet.train.fetch import FetchHandler, check_names, fetch_values
from sparsefleet.train.gate import Gate
from sparsefleet.train.job import Job
from sparsefleet.train.loop import run_threads
from sparsefleet.train.progress import Progress
from sparsefleet.train.replica import Replica, autocast
from sparsefleet.train.reporting.base import Reporter
from sparsefleet.train.saving import SavePolicy, TrainingState, random_state_text, save_checkpoint
from sparsefleet.train.session import Session
from sparsefleet.train.status import StatusReports

logger = logging.getLogger("sparsefleet.train")


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

    def __post_init__(self) -> None:
        if self.threads < 1:
            raise ConfigError(f"threads={self.threads} must be 1 or above")
        autocast(self.precision)  # refuses an unknown one


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
        save: SavePolicy | None,
        reporters: Sequence[Reporter],
        fetch: Sequence[FetchHandler],
    ) -> None:
        if save and save.every_steps and job.trainers > 1:
            raise ConfigError("every_steps saves one trainer's moment; with several trainers save per epoch")
        self.session, self.data, self.config, self.save_policy, self.job = session, data, config, save, job
        self.reporters, self.handlers = tuple(reporters), tuple(fetch)
        self.progress = Progress(epochs, config.num_thresholds, config.slide_steps)
        self.progress.step = state.step
        if state.metrics:
            self.progress.metrics = ClickMetrics.from_dict(state.metrics)
        self.status = StatusReports(session.store, self.progress)
        self.everyone: ClickMetrics | None = None
        """Of a job of several trainers: metrics over all of them, at the last epoch's end."""
        self.lost: list[str] = []
        """Trainers that the others went on without."""
        self.checkpoint: str | None = None
        self._at = _Place(state.epoch, under_way=False)
        self._gate = Gate()
        self._caller = threading.current_thread()
        self._saved: TrainingState | None = None
        self._untold: deque[tuple[str, int]] = deque()
        self._parameters = dict(session.model.named_parameters())
        for handler in self.handlers:
            check_names(handler.fetch_list, self.progress.snapshot(None).values(), self._parameters)

    @property
    def epochs_done(self) -> int:
        return self._at.epoch

    def epoch(self, number: int, communicator: Communicator) -> None:
        """Train on what is left of one pass over the data."""
        progress, threads = self.progress, self.config.threads
        progress.epoch = number
        self.session.model.train()
        gate = self._gate = Gate()
        self.status.staleness = communicator.staleness
        lanes = communicator.begin_epoch(number, threads)
        replicas = [
            Replica(copy, self.session.block, lane, self.config.precision)
            for copy, lane in zip(self.session.copies(threads), lanes, strict=True)
        ]
        place = self._at = _Place(number, under_way=True)

        def step(index: int, batch: Batch) -> None:
            outcome = replicas[index].step(batch)
            self.data.consumed(batch)
            place.stepped = True
            count = progress.add(batch, outcome)
            for handler in self.handlers:
                handler.after_step(count, self.fetch)
            if self.save_policy and self.save_policy.every_steps and count % self.save_policy.every_steps == 0:
                with gate.alone():
                    self.save(communicator)

        def leave(index: int, error: BaseException | None) -> None:
            lanes[index].leave() if error is None else lanes[index].give_up(error)

        progress.start_clock()
        try:
            self.data.set_epoch(number)  # a shuffling reader's order is a function of it
            with self.data.epoch(threads) as epoch:
                if not progress.done_before:
                    progress.done_before = number + (self.data.progress() or 0.0)
                run_threads(epoch, step, gate, self.tick, leave=leave)
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
            self.save_together(communicator)

    def meet(self, number: int, communicator: Communicator) -> None:
        """All trainers have come to the end of an epoch."""
        store = self.session.store
        self.everyone = merged_metrics(store, f"epoch {number}", self.progress.metrics)
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

    def interrupted(self, communicator: Communicator) -> None:
        """The user wants to stop: save, if asked to."""
        if self.save_policy is None or not self.save_policy.on_interrupt or self.job.trainers > 1:
            return  # of several trainers one cannot speak for all
        if not self._gate.quiet:
            logger.warning("a training thread is still within a step: not saved; the last checkpoint stands")
            return
        self.save(communicator)

    def save_together(self, communicator: Communicator) -> None:
        """All trainers have come to the end of an epoch: one saves for all, the others wait."""
        if self.job.index == 0:
            self.save(communicator)
        self.session.store.barrier(f"saved epoch {self.epochs_done}")

    def save(self, communicator: Communicator) -> None:
        """A checkpoint of this moment. Nobody is within a step: threads stand at the gate, or have ended."""
        assert self.save_policy is not None
        self.status.resting("saving")
        communicator.flush()
        state = self.state()
        if state == self._saved:
            return
        self.checkpoint = save_checkpoint(self.session.store, self.save_policy, self.facts(state))
        self._saved = state
        self._untold.append((self.checkpoint, state.step))
        if threading.current_thread() is self._caller:
            self._tell_saved()

    def state(self) -> TrainingState:
        """Where this run stands."""
        position = self.data.position() if self._at.under_way else {}
        # After an epoch's last batch its position is empty, as before the first one.
        finished = self._at.under_way and self._at.stepped and not position
        return TrainingState(
            step=self.progress.step,
            epoch=self._at.epoch + finished,
            position=position,
            metrics=(self.everyone or self.progress.metrics).to_dict(),
            random_state=random_state_text(),
        )

    def facts(self, state: TrainingState) -> RunFacts:
        """What a checkpoint should know of this run besides its parameters."""
        return RunFacts(
            step=state.step,
            schema=self.data.schema.to_dict(),
            model=registry.describe(self.session.model),
            positions={str(self.job.index): state.position} if state.position else {},
            extra={"training": state.to_dict()},
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
        )


def merged_metrics(store: ParameterStore, name: str, mine: ClickMetrics) -> ClickMetrics:
    """The metrics of all trainers, each handing in its own under this name."""
    everyone = ClickMetrics(len(mine.positive) - 1)
    for part in store.reduce(name, mine.to_dict()):
        everyone.merge(ClickMetrics.from_dict(part))
    return everyone
