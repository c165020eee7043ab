"""Trainer: fit, evaluate, predict. One trainer is one job on one store; the same calls whatever the store is."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import Literal, overload

from torch import nn

from sparsefleet.communicator import Communicator, DirectCommunicator
from sparsefleet.core.batch import F32, Batch
from sparsefleet.core.errors import ConfigError, Rejoin
from sparsefleet.core.places import CPUPlace
from sparsefleet.core.process_role import PROCESS_ROLE
from sparsefleet.crew import Crew
from sparsefleet.data.base import Reader
from sparsefleet.metrics import Metric, MetricSet
from sparsefleet.metrics.base import PROBABILITY, Outputs
from sparsefleet.metrics.clicks import NUM_THRESHOLDS, SLIDE_STEPS
from sparsefleet.optim.base import UpdateRule
from sparsefleet.store.base import ParameterStore, RunFacts
from sparsefleet.train.binding import PartialLoad
from sparsefleet.train.evaluation import Evaluation
from sparsefleet.train.fetch import FetchHandler, PrintSteps
from sparsefleet.train.fitting import AUTO, Fit, FitRequest, Trained
from sparsefleet.train.fleet_calls import FleetCalls, one_count, optimizer_of_process
from sparsefleet.train.given_data import threads_for
from sparsefleet.train.loaded_to_score import forget, loaded_to_score
from sparsefleet.train.model_in_store import ModelInStore
from sparsefleet.train.reporting.base import Reporter
from sparsefleet.train.reporting.console import console_reporter
from sparsefleet.train.run import FitResult, Run, RunConfig
from sparsefleet.train.save_policy import SavePolicy
from sparsefleet.train.training_state import TrainingState
from sparsefleet.train.validation import Validation
from sparsefleet.train.workplace import BringsWorkplace, LocalWorkplace, Workplace

logger = logging.getLogger("sparsefleet.train")


class Trainer(FleetCalls):
    def __init__(
        self,
        optimizer: UpdateRule | BringsWorkplace | CPUPlace | None = None,
        *,
        threads: int | None = None,
        precision: str = "float32",
        seed: int = 0,
        store: ParameterStore | None = None,
        communicator: Callable[[ParameterStore], Communicator] = DirectCommunicator,
        reporters: Sequence[Reporter] | None = None,
        num_thresholds: int = NUM_THRESHOLDS,
        slide_steps: int = SLIDE_STEPS,
        profile: bool = False,
        metrics: Sequence[Metric] = (),
        quiet: bool = False,
    ) -> None:
        """`optimizer`: for the dense parameters, and for every table that has no rule of its own; or what
        `fleet.distributed_optimizer` made of it: then store and communicator are the job's. `threads`: of training; by
        default what the dataset says (`set_thread`), else 1. `profile`: measure where the time of steps goes, for
        `FitResult.profile`. `metrics`: your own, besides AUC and the like; they are copied.
        `reporters`: who is told how training goes; None: `console_reporter()`, unless `quiet`. As in FleetX,
        `Trainer(CPUPlace())` takes the optimizer of this process, and prints the loss of each step.
        """
        self.workplace: Workplace
        self._prints_steps = isinstance(optimizer, CPUPlace)
        if isinstance(optimizer, CPUPlace):
            optimizer = optimizer_of_process(self)
        if isinstance(optimizer, BringsWorkplace):
            if store is not None or communicator is not DirectCommunicator:
                raise ConfigError("a distributed optimizer brings its own store and communicator; give no others")
            self.workplace = optimizer.workplace_for(self)
        else:
            self.workplace = LocalWorkplace(optimizer, store, communicator)
        self._threads = threads
        self._called_with: int | None = None
        """Threads that the present call of Fluid's shape asks for (`thread=`)."""
        self.config = RunConfig(
            1 if threads is None else threads, precision, num_thresholds, slide_steps, profile, tuple(metrics)
        )
        if not 0 <= seed < 2**64:
            raise ConfigError(f"seed={seed} must be 0 to 2**64 - 1")
        self.seed = seed
        if quiet and reporters:
            raise ConfigError("quiet=True and reporters=[…]: who is to be told? Leave one of them out")
        self.quiet = quiet
        self.reporters: Sequence[Reporter] | None = None if reporters is None else tuple(reporters)
        """None: a console reporter for each run, unless it is to be quiet."""
        self.work_done = False
        """Whether the last call that trained or scored came to its end: a script that ends then has not failed."""
        self._models = ModelInStore(self.workplace, seed)
        self._evaluation = Evaluation(self.workplace, self._models, threads)
        self._trained = Trained()
        self._fitting = False

    def _reporters_for(self, quiet: bool) -> Sequence[Reporter]:
        if self.reporters is not None:
            return self.reporters
        return () if quiet else (console_reporter(),)

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
        valid: Reader | None = None,
        validation: Validation | None = None,
        save: SavePolicy | None = None,
        resume: str | None = None,
        start_from: str | None = None,
        fresh_optimizer: bool = False,
        fetch: Sequence[FetchHandler] = (),
        quiet: bool | None = None,
        epoch: int | None = None,
    ) -> FitResult:
        """Train for `epochs` passes over the data (`epoch=` means the same), scoring `test` after each.

        `valid` is scored after each epoch too; by it the best checkpoint is marked and, as `validation` says, learning
        rates are lowered and training stops.

        Shows on standard error how it goes, unless `quiet` (None: as the trainer) or the trainer has reporters.
        Called again, it goes on with the parameters, the optimizers' state and the count of steps; metrics start anew.
        With `resume`, `epochs` counts from the training's beginning: what is still missing of them is trained.
        resume="auto": goes on from the newest checkpoint of `save`'s folder, or begins where there is none.
        With `start_from`, a new run begins with what fits of a checkpoint, as `load(partial=True)` takes it, with new
        data and all epochs; with `fresh_optimizer`, without the optimizers' state.
        """
        epochs = one_count(epochs, epoch)
        self.work_done = False
        quiet = self.quiet if quiet is None else quiet
        if self._prints_steps and not quiet:
            fetch = [*fetch, PrintSteps(self.crew.index)]
        self._fitting = True
        try:
            request = FitRequest(
                model,
                data,
                epochs,
                test=test,
                valid=valid,
                validation=validation,
                save=save,
                resume=resume,
                start_from=start_from,
                fresh_optimizer=fresh_optimizer,
                fetch=fetch,
                reporters=self._reporters_for(quiet),
            )
            self.config = replace(self.config, threads=threads_for(data, self._threads, self._called_with or 1))
            if start_from or resume not in (None, AUTO):
                forget(model)  # all that it was filled with is replaced
            self._take_over(model)
            result = Fit(request, self.config, self.workplace, self._models, self._evaluation, self._trained).run()
            self.work_done = True
            return result
        except BaseException as error:
            if not (isinstance(error, Rejoin) and self.workplace.healing is not None):  # that one starts again
                self.crew.give_up(error)
            raise
        finally:
            self._fitting = False

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
        self.work_done = False
        self._take_over(model)
        config = self.config if self._called_with is None else replace(self.config, threads=self._called_with)
        values = self._evaluation.everywhere(config, model, data, fetch)
        self.work_done = not self._fitting  # within a fit it is the fit that must come to its end
        return values

    def measure(self, model: nn.Module, data: Reader, *, fetch: Sequence[FetchHandler] = ()) -> MetricSet:
        """The sums behind `evaluate`, which can be merged with those of other processes."""
        self._take_over(model)
        return self._evaluation.here(self.config, model, data, fetch)

    def predict(self, model: nn.Module, data: Reader) -> Generator[tuple[Batch, F32]]:
        """Every batch with its click probabilities, in the order of the input."""
        for batch, outputs in self.predict_outputs(model, data):
            yield batch, outputs[PROBABILITY]

    def predict_outputs(self, model: nn.Module, data: Reader) -> Generator[tuple[Batch, Outputs]]:
        """Every batch with all outputs by name, as metrics get them: of several labels the probability of each."""
        self._take_over(model)
        yield from self._evaluation.outputs(self.config, model, data)

    # -- parameters ----------------------------------------------------------------------------------------------

    def restore(self, model: nn.Module, path: str) -> TrainingState:
        """Load tables and dense parameters from a checkpoint; returns where that run stood."""
        return self._trained.take(self.load(model, path), self.crew)

    @overload
    def load(
        self, model: nn.Module, path: str, *, values_only: bool = ..., partial: Literal[False] = ...
    ) -> RunFacts: ...
    @overload
    def load(self, model: nn.Module, path: str, *, values_only: bool = ..., partial: Literal[True]) -> PartialLoad: ...
    def load(
        self, model: nn.Module, path: str, *, values_only: bool = False, partial: bool = False
    ) -> RunFacts | PartialLoad:
        """Fill the model's tables and parameters from a checkpoint or a run's newest one.

        `partial`: into another network. Tables and parameters of the same name and shape are taken, the others begin
        afresh; a table goes on with another optimizer where that is what it has. The log says what became of each, and
        so does the result. `values_only`: optimizers start afresh. In a job of several trainers all call it, before the
        first of them trains. Refused for another model than the one in training, whose rows it would replace.
        """
        if self.in_training not in (None, model):
            raise ConfigError(
                f"load {path}: this trainer trains another model, and would go on with its dense parameters and the "
                "rows of the checkpoint. Load into the model in training, or give the other one a trainer of its own: "
                "sf.Trainer().load(model, path, values_only=True) to score it, sf.Trainer(optimizer) to train it"
            )
        loaded = self._models.load(model, path, values_only=values_only, partial=partial)
        self._models.filled_after = self.workplace.fits
        forget(model)
        return loaded

    def _take_over(self, model: nn.Module) -> None:
        """Of a model that another trainer has filled to score it (`loaded_to_score`): fill it here, rows and all."""
        loaded = loaded_to_score(model)
        if loaded is None or loaded.trainer is self:
            return
        if PROCESS_ROLE.part_of_job:
            raise ConfigError(
                f"load_persistables of {loaded.path} has filled this model to be scored by this process alone: the "
                "job's servers have none of its rows. To train it, or to score it together, call load_persistables "
                "after optimizer.minimize(…) and fleet.init_worker(), in every trainer; or start the servers from it, "
                "fleet.init_server(path), and leave load_persistables out"
            )
        self.load(model, loaded.path)

    @property
    def in_training(self) -> nn.Module | None:
        """The model of the run, or of the last one; None: nothing was trained yet."""
        return None if self._trained.run is None else self._trained.run.bound.model

    @property
    def own_model(self) -> nn.Module | None:
        """The model whose dense parameters are in the store: it is trained, or was loaded or scored first."""
        return self._models.model

    def save(self, path: str, *, drop_state: bool = False) -> None:
        """Write a checkpoint of the parameters as they are now, and of where the run stands, or the last one.

        One trainer of a job calls it, whatever the others do meanwhile. From any thread; while training goes on, from
        a fetch handler for example. drop_state: without optimizer state, for scoring only.
        """
        if not self.passes("save", path):
            self._last_run().saver.save_to(path, drop_state=drop_state)

    def passes(self, what: str, path: str) -> bool:
        """Whether this process was started again, and the job is past what the script does here: then it says so."""
        if self._trained.passed:
            logger.warning(
                "%s: the others are past this place of the script, and the parameters are those of a later one: "
                "nothing is written to %s",
                what,
                path,
            )
        return self._trained.passed

    def trained_model(self) -> nn.Module:
        """The model of the run, or of the last one: what `save` saves."""
        return self._last_run().bound.model

    def _last_run(self) -> Run:
        if self._trained.run is None:
            raise ConfigError("there is nothing to save yet: call fit first")
        return self._trained.run
