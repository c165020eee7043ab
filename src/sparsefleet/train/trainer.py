"""Trainer: fit, evaluate, predict. One trainer is one job on one store; the same calls whatever the store is."""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from sparsefleet.checkpoint import Checkpoint, latest
from sparsefleet.communicator import Communicator, DirectCommunicator
from sparsefleet.core.batch import F32, U64, Batch
from sparsefleet.core.errors import CheckpointError, ConfigError
from sparsefleet.core.memory import keep_freed_memory
from sparsefleet.crew import Crew
from sparsefleet.data.base import Reader
from sparsefleet.metrics import ClickMetrics, Metric, MetricSet
from sparsefleet.metrics.clicks import NUM_THRESHOLDS, SLIDE_STEPS
from sparsefleet.optim.base import UpdateRule
from sparsefleet.store.base import ParameterStore, Pending, RunFacts
from sparsefleet.store.shards import facts_of
from sparsefleet.train.binding import BoundModel, SharedModel
from sparsefleet.train.fetch import FetchHandler, PrintFetched, check_names, fetch_values
from sparsefleet.train.gate import Gate
from sparsefleet.train.given_data import TrainedOn, threads_for
from sparsefleet.train.replica import Scorer
from sparsefleet.train.reporting.base import Reporter
from sparsefleet.train.run import FitResult, Run, RunConfig
from sparsefleet.train.save_policy import SavePolicy
from sparsefleet.train.threads import run_threads
from sparsefleet.train.training_state import TrainingState, lost_within_epoch, restore_random_state
from sparsefleet.train.workplace import BringsWorkplace, LocalWorkplace, Workplace

logger = logging.getLogger("sparsefleet.train")


class Trainer:
    def __init__(
        self,
        optimizer: UpdateRule | BringsWorkplace | None = None,
        *,
        threads: int | None = None,
        precision: str = "float32",
        seed: int = 0,
        store: ParameterStore | None = None,
        communicator: Callable[[ParameterStore], Communicator] = DirectCommunicator,
        reporters: Sequence[Reporter] = (),
        num_thresholds: int = NUM_THRESHOLDS,
        slide_steps: int = SLIDE_STEPS,
        profile: bool = False,
        metrics: Sequence[Metric] = (),
    ) -> None:
        """`optimizer`: for the dense parameters, and for every table that has no rule of its own; or what
        `fleet.distributed_optimizer` made of it: then store and communicator are the job's. `threads`: of training; by
        default what the dataset says (`set_thread`), else 1. `profile`: measure where the time of steps goes, for
        `FitResult.profile`. `metrics`: your own, besides AUC and the like; they are copied.
        """
        self.workplace: Workplace
        if isinstance(optimizer, BringsWorkplace):
            if store is not None or communicator is not DirectCommunicator:
                raise ConfigError("a distributed optimizer brings its own store and communicator; give no others")
            self.workplace = optimizer.workplace_for(self)
        else:
            self.workplace = LocalWorkplace(optimizer, store, communicator)
        self._threads = threads
        self._trained_on = TrainedOn()
        self.config = RunConfig(
            1 if threads is None else threads, precision, num_thresholds, slide_steps, profile, tuple(metrics)
        )
        if not 0 <= seed < 2**64:
            raise ConfigError(f"seed={seed} must be 0 to 2**64 - 1")
        self.seed = seed
        self.reporters = tuple(reporters)
        self._bound: BoundModel | None = None
        self._step = self._epoch = 0
        """Trained so far, over all calls of `fit`."""
        self._run: Run | None = None
        self._evaluations = 0

    @property
    def store(self) -> ParameterStore:
        return self.workplace.store

    @property
    def crew(self) -> Crew:
        """The trainers of the job; one process is a crew of one."""
        return self.workplace.crew

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
        crew = self.crew
        try:
            return self._fit(model, data, epochs, test, save, resume, fetch)
        except BaseException as error:
            crew.give_up(error)
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
        self.config = replace(self.config, threads=threads_for(data, self._threads))
        keep_freed_memory()
        bound = self._bind(model)
        facts = self._facts_to_resume(model, data, resume) if resume else None
        if facts is not None:
            state = self._take_state(facts)
        else:
            state = TrainingState(step=self._step, epoch=self._epoch)
            epochs += self._epoch

        def start_of(trainer: int) -> TrainingState:
            return state if facts is None else TrainingState.from_facts(facts, trainer, self.crew.size)

        self._trained_on.check(data)
        self._trained_on.learn("the model", data.inputs())
        if test is not None:
            self._trained_on.check(test)  # now, not after an epoch
        data.seek(state.position)
        run = Run(
            bound,
            data,
            epochs,
            self.config,
            self.workplace,
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
            with _intra_op_threads_kept(), self.workplace.communicator() as communicator:
                communicator.start(bound.parameters, state.step)
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
            self._step, self._epoch = run.progress.step, run.epochs_done
            self._trained_on.learn("the model", data.inputs())  # what Python hands in is known once it was read
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
        """Metrics of the model on all rows, from zero; nothing is changed.

        Another model than the trainer's own is scored with its own dense parameters and the trainer's rows.
        """
        return self.measure(model, data).values()

    def evaluate_everywhere(
        self, model: nn.Module, data: Reader, *, fetch: Sequence[FetchHandler] = ()
    ) -> dict[str, float]:
        """Metrics over the shares of all trainers of the job, exactly those of one process; all must call it."""
        self._evaluations += 1
        name = f"evaluation {self._evaluations}"
        shared = self._to_score(model)
        self.crew.barrier(name)  # whoever still trains changes what the others would score
        with shared.scored():
            mine = self.measure(model, data, fetch=fetch)
        return MetricSet.together(self.crew.reduce(name, mine.to_dict()), self.config.metrics).values()

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

    def measure(self, model: nn.Module, data: Reader, *, fetch: Sequence[FetchHandler] = ()) -> MetricSet:
        """The sums behind `evaluate`, which can be merged with those of other processes."""
        shared = self._to_score(model)
        self._trained_on.check(data)
        threads = threads_for(data, self._threads, self.config.threads)
        metrics = MetricSet(ClickMetrics(self.config.num_thresholds), self.config.metrics)
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
        with _evaluating(model), _intra_op_threads_kept(), data.epoch(threads) as epoch:
            copies = shared.copies(len(epoch.streams))
            scorers = [Scorer(copy, self._pull_existing, self.config.precision) for copy in copies]

            def score(index: int, batch: Batch) -> None:
                metrics.update(batch, scorers[index].outputs(batch))
                data.consumed(batch)
                count = next(batches)
                for handler in fetch:
                    handler.after_step(count, look)

            run_threads(epoch, score, Gate(), tick)
        return metrics

    def predict(self, model: nn.Module, data: Reader) -> Generator[tuple[Batch, F32]]:
        """Every batch with its click probabilities, in the order of the input."""
        self._to_score(model)
        self._trained_on.check(data)
        data.seek({})
        with _evaluating(model), data.epoch(1) as epoch:
            scorer = Scorer(model, self._pull_existing, self.config.precision)
            for batch in epoch.streams[0]:
                yield batch, scorer(batch)
                data.consumed(batch)

    # -- parameters ----------------------------------------------------------------------------------------------

    def restore(self, model: nn.Module, path: str) -> TrainingState:
        """Load tables and dense parameters from a checkpoint; returns where that run stood."""
        return self._take_state(self.load(model, path))

    def load(self, model: nn.Module, path: str, *, values_only: bool = False) -> RunFacts:
        """Fill the model's tables and parameters from a checkpoint or a run's newest one.

        In a job of several trainers all call it, before the first of them trains.
        """
        bound = self._bind(model)
        checkpoint = Checkpoint.open(latest(path))  # before anyone can save: all must mean the same one
        location = str(checkpoint.location)
        self.crew.only_first(f"load {location}", lambda: self._load(location, values_only))
        bound.refresh()
        facts = facts_of(checkpoint)
        self._trained_on.learn_saved(location, facts.inputs)
        bound.load_buffers(facts.buffers)
        return facts

    def _load(self, location: str, values_only: bool) -> None:
        self.store.load(location, values_only=values_only)

    def save(self, path: str, *, drop_state: bool = False) -> None:
        """Write a checkpoint of the parameters as they are now, and of where the run stands, or the last one.

        One trainer of a job calls it, whatever the others do meanwhile. From any thread; while training goes on, from
        a fetch handler for example. drop_state: without optimizer state, for scoring only.
        """
        if self._run is None:
            raise ConfigError("there is nothing to save yet: call fit first")
        self._run.saver.save_to(path, drop_state=drop_state)

    def trained_model(self) -> nn.Module:
        """The model of the run, or of the last one: what `save` saves."""
        if self._run is None:
            raise ConfigError("there is nothing to save yet: call fit first")
        return self._run.bound.model

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

    def _take_state(self, facts: RunFacts) -> TrainingState:
        state = TrainingState.from_facts(facts, self.crew.index, self.crew.size)
        restore_random_state(state.random_state)
        if self.crew.index == 0 and (lost := lost_within_epoch(facts)):
            logger.warning(
                "worker %s had been lost within epoch %d when this checkpoint was saved: what it had not trained of "
                "that epoch is left out; from the next epoch on it has its share again",
                ", ".join(map(str, lost)),
                state.epoch + 1,
            )
        self._step, self._epoch = state.step, state.epoch
        return state

    def _bind(self, model: nn.Module) -> BoundModel:
        """The one place where model, store and crew come together: the trainer's model is in the store from here on."""
        if self._bound is None or self._bound.model is not model:
            self._bound = BoundModel(model, self.store, self.workplace.rule, self.seed)
            self._trained_on.learn_saved("the checkpoint that the servers started from", self.store.start_inputs())
        return self._bound

    def _to_score(self, model: nn.Module) -> SharedModel:
        if self._bound is not None and self._bound.model is not model:
            return self._bound.other(model)
        return self._bind(model)

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
