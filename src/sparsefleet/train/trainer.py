"""Trainer: fit, evaluate, predict. One trainer is one job on one store; the same calls whatever the store is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from sparsefleet.communicator import Communicator, DirectCommunicator
from sparsefleet.core.batch import F32, U64, Batch
from sparsefleet.core.errors import ConfigError
from sparsefleet.data.base import Reader
from sparsefleet.metrics import ClickMetrics
from sparsefleet.metrics.clicks import NUM_THRESHOLDS, SLIDE_STEPS
from sparsefleet.optim.base import UpdateRule
from sparsefleet.store.base import ParameterStore, Pending, RunFacts
from sparsefleet.train.fetch import FetchHandler, PrintFetched
from sparsefleet.train.gate import Gate
from sparsefleet.train.job import Job, LocalJob
from sparsefleet.train.loop import run_threads
from sparsefleet.train.replica import Scorer
from sparsefleet.train.reporting.base import Reporter
from sparsefleet.train.run import FitResult, Run, RunConfig, merged_metrics
from sparsefleet.train.saving import SavePolicy, TrainingState, restore_random_state
from sparsefleet.train.session import DENSE, Session


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
    ) -> None:
        """`optimizer`: for the dense parameters, and for every table that has no rule of its own; or what
        `fleet.distributed_optimizer` made of it: then store and communicator are the job's.
        """
        if isinstance(optimizer, Job):
            if store is not None or communicator is not DirectCommunicator:
                raise ConfigError("a distributed optimizer brings its own store and communicator; give no others")
            self.job: Job = optimizer
            optimizer.trainer = self
        else:
            self.job = LocalJob(optimizer, store, communicator)
        self.config = RunConfig(threads, precision, num_thresholds, slide_steps)
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
        """Train for `epochs` passes over the data (with `resume`: those still missing), scoring `test` after each."""
        if epochs < 0:
            raise ConfigError(f"epochs={epochs} must be 0 or above")
        session = self._bind(model)
        state = self.restore(model, resume) if resume else TrainingState()
        data.seek(state.position)
        run = Run(
            session, data, epochs, self.config, self.job, state=state, save=save, reporters=self.reporters, fetch=fetch
        )
        self._run = run
        for reporter in self.reporters:
            reporter.start({"epochs": epochs, "threads": self.config.threads, "precision": self.config.precision})
        scored = None
        try:
            with _intra_op_threads_kept(), self.job.communicator() as communicator:
                communicator.start(session.parameters)
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

    def evaluate_everywhere(self, model: nn.Module, data: Reader) -> dict[str, float]:
        """Metrics over the shares of all trainers of the job, exactly those of one process; all must call it."""
        self._evaluations += 1
        name = f"evaluation {self._evaluations}"
        session = self._bind(model)
        self.store.barrier(name)  # whoever still trains changes what the others would score
        with session.dense_as_stored():
            mine = self.measure(model, data)
        return merged_metrics(self.store, name, mine).values()

    def infer_from_dataset(
        self,
        model: nn.Module,
        dataset: Reader,
        *,
        fetch_list: Sequence[str] = (),
        fetch_info: Sequence[str] | None = None,
    ) -> dict[str, float]:
        """Score the shares of all trainers of the job; prints the metrics named in `fetch_list`."""
        values = self.evaluate_everywhere(model, dataset)
        unknown = [name for name in fetch_list if name not in values]
        if unknown:
            raise ConfigError(f"cannot fetch {', '.join(map(repr, unknown))}; choose from {', '.join(values)}")
        for name, info in zip(fetch_list, fetch_info or fetch_list, strict=True):
            print(info, values[name], flush=True)
        return values

    def measure(self, model: nn.Module, data: Reader) -> ClickMetrics:
        """The sums behind `evaluate`, which can be merged with those of other processes."""
        session = self._bind(model)
        metrics = ClickMetrics(self.config.num_thresholds)
        data.seek({})
        with _evaluating(model), _intra_op_threads_kept(), data.epoch(self.config.threads) as epoch:
            copies = session.copies(len(epoch.streams))
            scorers = [Scorer(copy, self._pull_existing, self.config.precision) for copy in copies]

            def score(index: int, batch: Batch) -> None:
                metrics.update(scorers[index](batch), batch.labels)
                data.consumed(batch)

            run_threads(epoch, score, Gate(len(epoch.streams)), tick=lambda: None)
        return metrics

    def predict(self, model: nn.Module, data: Reader) -> Iterator[tuple[Batch, F32]]:
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
        state = TrainingState.from_facts(self.load(model, path), self.job.index, self.job.trainers)
        restore_random_state(state.random_state)
        return state

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
        """Write a checkpoint of the parameters as they are now, and of where the last run stands.

        drop_state: without optimizer state, for scoring only.
        """
        if self._run is None or self._session is None:
            raise ConfigError("there is nothing to save yet: call fit first")
        self.store.save(path, self._run.facts({}), drop_state=drop_state)

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
