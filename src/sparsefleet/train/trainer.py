"""Trainer: fit, evaluate, predict. One trainer is one job on one store; the same calls whatever the store is."""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from sparsefleet.communicator import Communicator, DirectCommunicator
from sparsefleet.core.batch import F32, U64, Batch
from sparsefleet.core.errors import CheckpointError, ConfigError
from sparsefleet.core.memory import keep_freed_memory
from sparsefleet.data.base import Reader
from sparsefleet.metrics import ClickMetrics
from sparsefleet.metrics.clicks import NUM_THRESHOLDS, SLIDE_STEPS
from sparsefleet.optim.base import UpdateRule
from sparsefleet.store.base import ParameterStore, Pending, RunFacts
from sparsefleet.train.fetch import FetchHandler, PrintFetched, check_names, fetch_values
from sparsefleet.train.gate import Gate
from sparsefleet.train.job import Job, LocalJob
from sparsefleet.train.loop import run_threads
from sparsefleet.train.replica import Scorer
from sparsefleet.train.reporting.base import Reporter
from sparsefleet.train.run import FitResult, Run, RunConfig, merged
from sparsefleet.train.saving import SavePolicy, TrainingState, lost_within_epoch, restore_random_state
from sparsefleet.train.session import DENSE, Session

logger = logging.getLogger("sparsefleet.train")


class Trainer:
    def __init__(
        self,
        optimizer: UpdateRule | Job | None = None,
        *,
        threads: int = 1,
        precision: str = "float32",
        seed: int = 0,
        store: ParameterStore | None = None,
        communicator: Callable[[ParameterStore], Communicator] = DirectCommunicator,
        reporters: Sequence[Reporter] = (),
        num_thresholds: int = NUM_THRESHOLDS,
        slide_steps: int = SLIDE_STEPS,
        profile: bool = False,
    ) -> None:
        """`optimizer`: for the dense parameters, and for every table that has no rule of its own; or what
        `fleet.distributed_optimizer` made of it: then store and communicator are the job's. `profile`: measure where
        the time of steps goes, for `FitResult.profile`.
        """
        if isinstance(optimizer, Job):
            if store is not None or communicator is not DirectCommunicator:
                raise ConfigError("a distributed optimizer brings its own store and communicator; give no others")
            self.job: Job = optimizer
            optimizer.trainer = self
        else:
            self.job = LocalJob(optimizer, store, communicator)
        self.config = RunConfig(threads, precision, num_thresholds, slide_steps, profile)
        if not 0 <= seed < 2**64:
            raise ConfigError(f"seed={seed} must be 0 to 2**64 - 1")
        self.seed = seed
        self.reporters = tuple(reporters)
        self._session: Session | None = None
        self._run: Run | None = None
        self._evaluations = 0

    @property
    def store(self) -> ParameterStore:
        return self.job.store()

    # -- training ------------------------------------------------------------------------------------------------

    def fit(
        self,
        model: nn.Module,
        data: Reader,
        epochs: int = 1,
        *,
        test: Reader | None = None,
        save: SavePolicy | None = None,
        resume: str | None = None,
        fetch: Sequence[FetchHandler] = (),
    ) -> FitResult:
        """Train for `epochs` passes over the data, scoring `test` after each.

        Called again, it goes on with the parameters, the optimizers' state and the count of steps; metrics start anew.
        With `resume`, `epochs` counts from the training's beginning: what is still missing of them is trained.
        """
        store = self.store
        try:
            return self._fit(model, data, epochs, test, save, resume, fetch)
        except BaseException as error:
            store.give_up(error)
            raise

    def _fit(
        self,
        model: nn.Module,
        data: Reader,
        epochs: int,
        test: Reader | None,
        save: SavePolicy | None,
        resume: str | None,
        fetch: Sequence[FetchHandler],
    ) -> FitResult:
        if epochs < 0:
            raise ConfigError(f"epochs={epochs} must be 0 or above")
        keep_freed_memory()
        session = self._bind(model)
        facts = self._facts_to_resume(model, data, resume) if resume else None
        if facts is not None:
            state = self._take_state(model, facts)
        else:
            state = TrainingState(step=session.step, epoch=session.epoch)
            epochs += session.epoch

        def start_of(trainer: int) -> TrainingState:
            return state if facts is None else TrainingState.from_facts(facts, trainer, self.job.trainers)

        data.seek(state.position)
        run = Run(
            session,
            data,
            epochs,
            self.config,
            self.job,
            state=state,
            start_of=start_of,
            save=save,
            reporters=self.reporters,
            fetch=fetch,
        )
        self._run = run
        for reporter in self.reporters:
            reporter.start({"epochs": epochs, "threads": self.config.threads, "precision": self.config.precision})
        scored = None
        try:
            with _intra_op_threads_kept(), self.job.communicator() as communicator:
                communicator.start(session.parameters, state.step)
                with run.taking_part(communicator):
                    for number in range(state.epoch, epochs):
                        run.epoch(number, communicator)
                        if test is not None:
                            run.status.resting("scoring")
                            scored = self.evaluate_everywhere(model, test)
                            for reporter in self.reporters:
                                reporter.evaluated(run.progress.step, scored)
            if test is not None and scored is None:  # every epoch was done before
                scored = self.evaluate_everywhere(model, test)
        finally:
            session.step, session.epoch = run.progress.step, run.epochs_done
            for reporter in self.reporters:
                reporter.close()
        return run.result(scored)

    def train_from_dataset(
        self,
        model: nn.Module,
        dataset: Reader,
        *,
        fetch_list: Sequence[str] = (),
        fetch_info: Sequence[str] | None = None,
        print_period: int = 100,
        fetch_handler: FetchHandler | None = None,
    ) -> FitResult:
        """One pass over the dataset, as users of Fleet know it; prints `fetch_list` every `print_period` batches."""
        handlers: list[FetchHandler] = [fetch_handler] if fetch_handler else []
        if fetch_list:
            handlers.append(PrintFetched(fetch_list, fetch_info, print_period))
        return self.fit(model, dataset, epochs=1, fetch=handlers)

    # -- scoring -------------------------------------------------------------------------------------------------

    def evaluate(self, model: nn.Module, data: Reader) -> dict[str, float]:
        """Metrics of the model on all rows, from zero; nothing is changed."""
        return self.measure(model, data).values()

    def evaluate_everywhere(
        self, model: nn.Module, data: Reader, *, fetch: Sequence[FetchHandler] = ()
    ) -> dict[str, float]:
        """Metrics over the shares of all trainers of the job, exactly those of one process; all must call it."""
        self._evaluations += 1
        name = f"evaluation {self._evaluations}"
        session = self._bind(model)
        self.store.barrier(name)  # whoever still trains changes what the others would score
        with session.dense_as_stored():
            mine = self.measure(model, data, fetch=fetch)
        return merged(self.store.reduce(name, mine.to_dict())).values()

    def infer_from_dataset(
        self,
        model: nn.Module,
        dataset: Reader,
        *,
        fetch_list: Sequence[str] = (),
        fetch_info: Sequence[str] | None = None,
        print_period: int = 100,
        fetch_handler: FetchHandler | None = None,
    ) -> dict[str, float]:
        """Score the shares of all trainers; prints `fetch_list` every `print_period` batches and at the end."""
        handlers: list[FetchHandler] = [fetch_handler] if fetch_handler else []
        if fetch_list:
            handlers.append(PrintFetched(fetch_list, fetch_info, print_period))
        values = self.evaluate_everywhere(model, dataset, fetch=handlers)
        if fetch_list:
            parameters = dict(model.named_parameters())
            PrintFetched(fetch_list, fetch_info, print_period).handler(fetch_values(fetch_list, values, parameters))
        return values

    def measure(self, model: nn.Module, data: Reader, *, fetch: Sequence[FetchHandler] = ()) -> ClickMetrics:
        """The sums behind `evaluate`, which can be merged with those of other processes."""
        session = self._bind(model)
        metrics = ClickMetrics(self.config.num_thresholds)
        parameters = dict(model.named_parameters())
        for handler in fetch:
            check_names(handler.fetch_list, metrics.values(), parameters)
        batches = itertools.count(1)

        def look(names: Sequence[str]) -> list[Any]:
            return fetch_values(names, metrics.values(), parameters)

        def tick() -> None:
            for handler in fetch:
                handler.tick(look)

        data.seek({})
        with _evaluating(model), _intra_op_threads_kept(), data.epoch(self.config.threads) as epoch:
            copies = session.copies(len(epoch.streams))
            scorers = [Scorer(copy, self._pull_existing, self.config.precision) for copy in copies]

            def score(index: int, batch: Batch) -> None:
                metrics.update(scorers[index](batch), batch.labels)
                data.consumed(batch)
                count = next(batches)
                for handler in fetch:
                    handler.after_step(count, look)

            run_threads(epoch, score, Gate(), tick)
        return metrics

    def predict(self, model: nn.Module, data: Reader) -> Generator[tuple[Batch, F32]]:
        """Every batch with its click probabilities, in the order of the input."""
        self._bind(model)
        data.seek({})
        with _evaluating(model), data.epoch(1) as epoch:
            scorer = Scorer(model, self._pull_existing, self.config.precision)
            for batch in epoch.streams[0]:
                yield batch, scorer(batch)
                data.consumed(batch)

    # -- parameters ----------------------------------------------------------------------------------------------

    def restore(self, model: nn.Module, path: str) -> TrainingState:
        """Load tables and dense parameters from a checkpoint; returns where that run stood."""
        return self._take_state(model, self.load(model, path))

    def load(self, model: nn.Module, path: str, *, values_only: bool = False) -> RunFacts:
        """Fill the model's tables and parameters from a checkpoint or a run's newest one.

        In a job of several trainers all call it, before the first of them trains.
        """
        session = self._bind(model)
        facts = self.job.load(path, values_only=values_only)
        self.store.pull_dense(DENSE, session.block.values).wait()
        session.load_buffers(facts.buffers)
        return facts

    def save(self, path: str, *, drop_state: bool = False) -> None:
        """Write a checkpoint of the parameters as they are now, and of where the run stands, or the last one.

        One trainer of a job calls it, whatever the others do meanwhile. From any thread; while training goes on, from
        a fetch handler for example. drop_state: without optimizer state, for scoring only.
        """
        if self._run is None:
            raise ConfigError("there is nothing to save yet: call fit first")
        self._run.save_to(path, drop_state=drop_state)

    def trained_model(self) -> nn.Module:
        """The model of the run, or of the last one: what `save` saves."""
        if self._run is None:
            raise ConfigError("there is nothing to save yet: call fit first")
        return self._run.session.model

    def _facts_to_resume(self, model: nn.Module, data: Reader, path: str) -> RunFacts:
        """Load the checkpoint; what it says of the run that it is of. Refuses one on other data."""
        facts = self.load(model, path)
        then, now = facts.schema or {}, json.loads(json.dumps(data.schema.to_dict()))
        differing = [name for name in {**then, **now} if then.get(name) != now.get(name)]
        if differing:
            details = "; ".join(
                f"{name} is {then.get(name)!r:.80} there, {now.get(name)!r:.80} here" for name in differing
            )
            raise CheckpointError(f"{path} was trained on rows of another schema: {details}")
        return facts

    def _take_state(self, model: nn.Module, facts: RunFacts) -> TrainingState:
        state = TrainingState.from_facts(facts, self.job.index, self.job.trainers)
        restore_random_state(state.random_state)
        if self.job.index == 0 and (lost := lost_within_epoch(facts)):
            logger.warning(
                "worker %s had been lost within epoch %d when this checkpoint was saved: what it had not trained of "
                "that epoch is left out; from the next epoch on it has its share again",
                ", ".join(map(str, lost)),
                state.epoch + 1,
            )
        session = self._bind(model)
        session.step, session.epoch = state.step, state.epoch
        return state

    def _bind(self, model: nn.Module) -> Session:
        if self._session is None or self._session.model is not model:
            self._session = Session(model, self.store, self.job.rule, self.seed)
        return self._session

    def _pull_existing(self, table: str, keys: U64) -> Pending[F32]:
        return self.store.pull(table, keys, create=False)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


@contextmanager
def _intra_op_threads_kept() -> Iterator[None]:
    """Training threads turn off torch's own threads, which changes this process-wide; the caller gets them back."""
    threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
