"""Trainer: fit, evaluate, predict. One trainer is one job on one store; the same calls whatever the store is."""

from __future__ import annotations

import itertools
import json
import logging
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, overload

import torch
from torch import nn

from sparsefleet.checkpoint import Checkpoint, chosen, latest, locate, same_place, to_go_on_from
from sparsefleet.communicator import Communicator, DirectCommunicator
from sparsefleet.core.batch import F32, U64, Batch
from sparsefleet.core.errors import CheckpointError, ConfigError, Disagreement, StoreError
from sparsefleet.core.memory import keep_freed_memory
from sparsefleet.core.places import CPUPlace
from sparsefleet.crew import Crew, PassLender
from sparsefleet.data.base import Reader
from sparsefleet.data.leased import LeasedDataset
from sparsefleet.metrics import ClickMetrics, Metric, MetricSet
from sparsefleet.metrics.base import PROBABILITY, Outputs
from sparsefleet.metrics.clicks import NUM_THRESHOLDS, SLIDE_STEPS
from sparsefleet.optim.base import UpdateRule
from sparsefleet.store.base import ParameterStore, Pending, RunFacts
from sparsefleet.store.shards import facts_of
from sparsefleet.train.binding import BoundModel, PartialLoad, SharedModel
from sparsefleet.train.fetch import FetchHandler, PrintSteps
from sparsefleet.train.fetcher import Fetcher
from sparsefleet.train.fleet_calls import FleetCalls, one_count, optimizer_of_process
from sparsefleet.train.gate import Gate
from sparsefleet.train.given_data import TrainedOn, differing_keys, threads_for
from sparsefleet.train.healing import Before, Cut
from sparsefleet.train.judging import Judge
from sparsefleet.train.replica import Scorer
from sparsefleet.train.reporting.base import Reporter
from sparsefleet.train.reporting.console import console_reporter
from sparsefleet.train.run import FitResult, Run, RunConfig
from sparsefleet.train.save_policy import SavePolicy
from sparsefleet.train.threads import STEP_SECONDS, run_threads
from sparsefleet.train.training_state import TrainingState, lost_within_epoch, restore_random_state
from sparsefleet.train.validation import Validation
from sparsefleet.train.workplace import BringsWorkplace, LocalWorkplace, Workplace

logger = logging.getLogger("sparsefleet.train")

AUTO = "auto"
"""For `resume`: go on from what the run's folder has, or begin."""


@dataclass(frozen=True)
class _Asked:
    """What a call of `fit` asks for besides model, data and epochs."""

    test: Reader | None
    valid: Reader | None
    validation: Validation
    save: SavePolicy | None
    resume: str | None
    start_from: str | None
    fresh_optimizer: bool
    fetch: Sequence[FetchHandler]
    reporters: Sequence[Reporter]

    def check(self) -> None:
        if self.resume not in (None, AUTO) and self.start_from:
            raise ConfigError(
                f"resume={self.resume!r} goes on with a run, start_from={self.start_from!r} begins a new one: give one "
                'of them (resume="auto" may stand beside start_from)'
            )
        if self.fresh_optimizer and not self.start_from:
            raise ConfigError("fresh_optimizer=True is for start_from: without it optimizers begin afresh anyway")
        if self.start_from and self.save is not None:
            begun = locate(self.start_from)
            if any(same_place(self.save.folder, place) for place in (begun, begun.parent)):
                raise ConfigError(
                    f"start_from={self.start_from!r} begins a new run, save={self.save.folder!r} holds the old one: "
                    "one's checkpoints would be taken for the other's; save to another folder"
                )


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
        self._trained_on = TrainedOn()
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
        self._bound: BoundModel | None = None
        self._step = self._epoch = 0
        """Trained so far, over all calls of `fit`."""
        self._run: Run | None = None
        self._evaluations = 0
        self._fitting = False
        self._fits = 0
        """Calls of `fit` so far."""

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
            asked = _Asked(
                test,
                valid,
                validation or Validation(),
                save,
                resume,
                start_from,
                fresh_optimizer,
                fetch,
                self._reporters_for(quiet),
            )
            asked.check()
            if validation is not None and valid is None:
                raise ConfigError("fit(validation=…) says what to do with validation data: give valid=, too")
            result = self._fit(model, data, epochs, asked)
            self.work_done = True
            return result
        except BaseException as error:
            self.crew.give_up(error)
            raise
        finally:
            self._fitting = False

    def _fit(self, model: nn.Module, data: Reader, epochs: int, asked: _Asked) -> FitResult:
        if epochs < 0:
            raise ConfigError(f"epochs={epochs} must be 0 or above")
        self.config = replace(self.config, threads=threads_for(data, self._threads))
        keep_freed_memory()
        self._fits += 1
        at, begun, auto = (self._step, self._epoch), False, asked.resume == AUTO
        until = epochs if asked.resume and not auto else epochs + self._epoch

        def begin() -> None:
            nonlocal begun
            if not begun:
                begun = True
                for reporter in asked.reporters:
                    reporter.start(
                        {"epochs": until, "threads": self.config.threads, "precision": self.config.precision}
                    )

        before = Before(self._fits)
        try:
            while True:
                try:
                    # Not once a cut is there: a trainer that is started again would ask alone.
                    if auto and (self.workplace.healing is None or Cut.open(self.workplace.healing.cut) is None):
                        asked = replace(asked, resume=self._newest_of(asked.save))
                        until = epochs if asked.resume else epochs + at[1]
                    return self._fit_attempt(model, data, until, asked, before=before, begin=begin)
                except StoreError as error:
                    before = self._go_back(error, before, at, resumes=asked.resume is not None)
        finally:
            if begun:
                self._trained_on.learn("the model", data.inputs())  # what Python hands in is known once it was read
                for reporter in asked.reporters:
                    reporter.close()

    def _fit_attempt(
        self,
        model: nn.Module,
        data: Reader,
        until: int,
        asked: _Asked,
        *,
        before: Before,
        begin: Callable[[], None],
    ) -> FitResult:
        """Train until so many epochs are done. Only a job that heals calls it more than once: see `_go_back`."""
        test, valid = asked.test, asked.valid
        healing = self.workplace.healing
        cut = None if healing is None else Cut.open(healing.cut)
        if cut is not None and cut.fit > self._fits:
            return self._passed_over(cut, until)
        bound = self._bind(model)
        facts: RunFacts | None = None
        entry = self.crew.enter()
        if entry is not None and entry.fit >= self._fits:
            if not isinstance(data, LeasedDataset):
                raise ConfigError(
                    "this trainer came while the others were at work, and there is no data left for it: in an elastic "
                    "job give every trainer all files, with open_reader(…, leased=True)"
                )
            if entry.fit > self._fits:
                return self._not_there(entry.step, until)
            self._evaluations = entry.evaluations
        elif cut is not None and cut.fit == self._fits:
            facts = cut.facts  # the servers have begun from it
        elif asked.resume and cut is None:
            facts = self._facts_to_resume(model, data, asked.resume)
        elif asked.start_from:
            self._begin_with(model, data, asked.start_from, asked.fresh_optimizer)
        leased = isinstance(data, LeasedDataset)
        state = TrainingState(step=self._step, epoch=self._epoch) if facts is None else self._take_state(facts, leased)
        if entry is not None and entry.fit == self._fits:
            state = TrainingState(step=entry.step, epoch=entry.epoch, position=entry.position)
        began = facts is not None or (entry is not None and entry.fit == self._fits)
        if healing is not None and entry is None:
            healing.caught_up()
            rows = cut.rows.get(str(self.crew.index), 0) if cut is not None and cut.fit == self._fits else 0
            before = replace(before, rows=rows)

        def start_of(trainer: int) -> TrainingState:
            return state if facts is None else TrainingState.from_facts(facts, trainer, self.crew.size, leased=leased)

        self._trained_on.check(data)
        self._trained_on.learn("the model", data.inputs())
        for other in filter(None, (test, valid)):
            self._trained_on.check(other)  # now, not after an epoch
        data.seek(state.position)
        run = Run(
            bound,
            data,
            until,
            self.config,
            self.workplace,
            state=state,
            start_of=start_of,
            save=asked.save,
            reporters=asked.reporters,
            fetch=asked.fetch,
            before=before,
        )
        self._run = run
        begin()
        scored = None
        try:
            with _intra_op_threads_kept(), self.workplace.communicator() as communicator:
                communicator.start(bound.parameters, state.step)
                score = None if valid is None else partial(self.evaluate_everywhere, model, valid)
                judge = Judge(run, asked.validation, score, self.store, communicator)
                with run.taking_part(communicator):
                    if not began:
                        run.cut_together("the beginning")
                    judge.begin(resumed=facts is not None)
                    for number in range(state.epoch, until):
                        if judge.stopped:
                            break
                        run.epoch(number, communicator)
                        judge.epoch_end()
                        if test is not None:
                            run.status.resting("scoring")
                            scored = self.evaluate_everywhere(model, test)
                            judge.tested(scored)
                            for reporter in asked.reporters:
                                reporter.evaluated(run.progress.step, scored)
                    run.cut_together("the end")
            if test is not None and scored is None:  # every epoch was done before
                scored = self.evaluate_everywhere(model, test)
        finally:
            self._step, self._epoch = run.progress.step, run.epochs_done
        return run.result(scored, judge.values, judge.best, judge.stopped)

    def _go_back(self, error: StoreError, before: Before, at: tuple[int, int], *, resumes: bool) -> Before:
        """In a job that heals: join the next attempt, so that `_fit_attempt` goes on from its cut. Else raise."""
        healing = self.workplace.healing
        run = self._run if self._run is not None and self._run.fit == self._fits else None
        if healing is None or isinstance(error, Disagreement):
            raise error
        since = time.monotonic()
        logger.warning("this attempt of the job is over: %s", error)
        healing.rejoin(error)
        if run is not None:
            run.member.gate.wait_until_quiet(STEP_SECONDS)  # a late answer must not fall into the next attempt
        healing = self.workplace.healing  # of the attempt that it has joined
        assert healing is not None
        cut = Cut.open(healing.cut)
        mine = cut is not None and cut.fit == self._fits
        if not mine and not resumes and (self._step, self._epoch) != at:
            raise StoreError(f"no cut had been written that this run could go back to. {error}") from error
        rows = before.rows + (run.progress.rows if run is not None else 0)
        kept = cut.rows.get(str(self.crew.index), 0) if cut is not None and mine else 0
        again = max(0, rows - kept)
        logger.warning(
            "attempt %d begins from %s, after %.1f s: %d samples are trained again here",
            healing.attempt,
            cut.path if cut is not None else "the beginning",
            time.monotonic() - since,
            again,
        )
        self._run, self._bound, self._evaluations = None, None, 0
        self._step, self._epoch = at
        seconds = before.seconds + (run.progress.seconds if run is not None else 0.0)
        return replace(before, seconds=seconds, again=before.again + again)

    def _passed_over(self, cut: Cut, until: int) -> FitResult:
        """This process was started again, and the job is past this call of `fit`."""
        logger.warning("call %d of fit was done before this trainer was started again: passed over", self._fits)
        return self._not_there(cut.facts.step, until)

    def _not_there(self, step: int, until: int) -> FitResult:
        """Of a call of `fit` that the others are past."""
        self._step, self._epoch = step, until
        nothing = MetricSet(ClickMetrics(self.config.num_thresholds), self.config.metrics).values()
        return FitResult(0, self._step, 0.0, nothing, None, {}, None)

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
        self._evaluations += 1
        name = f"evaluation {self._evaluations}"
        shared = self._to_score(model)
        self.crew.barrier(name)  # whoever still trains changes what the others would score
        lender = self.crew.lender(name) if isinstance(data, LeasedDataset) else None
        with shared.scored():
            mine = (
                self._measure_leased(model, data, lender, fetch) if lender else self.measure(model, data, fetch=fetch)
            )
        values = MetricSet.together(self.crew.reduce(name, mine.to_dict()), self.config.metrics).values()
        self.work_done = not self._fitting  # within a fit it is the fit that must come to its end
        return values

    def _measure_leased(
        self, model: nn.Module, data: Reader, lender: PassLender, fetch: Sequence[FetchHandler]
    ) -> MetricSet:
        """Score pieces of data that all trainers read together, until all of them are scored."""
        assert isinstance(data, LeasedDataset)
        data.seek({})
        data.lend_by(lender)
        try:
            parts = [self._measure(model, data, fetch).to_dict()]
            lender.all_done()
            while lender.end_lap():  # what a lost trainer has left
                parts.append(self._measure(model, data, fetch).to_dict())
                lender.all_done()
        finally:
            data.lend_by(None)
        return MetricSet.together(parts, self.config.metrics)

    def measure(self, model: nn.Module, data: Reader, *, fetch: Sequence[FetchHandler] = ()) -> MetricSet:
        """The sums behind `evaluate`, which can be merged with those of other processes."""
        data.seek({})
        return self._measure(model, data, fetch)

    def _measure(self, model: nn.Module, data: Reader, fetch: Sequence[FetchHandler]) -> MetricSet:
        shared = self._to_score(model)
        self._trained_on.check(data)
        threads = threads_for(data, self._threads, self.config.threads)
        metrics = MetricSet(ClickMetrics(self.config.num_thresholds), self.config.metrics)
        wanted = [name for handler in fetch for name in handler.fetch_list]
        fetcher = Fetcher(shared, self._pull_existing, self.config.precision, wanted, metrics.values())
        batches = itertools.count(1)

        def look(names: Sequence[str]) -> list[Any]:
            return fetcher.values(names, lambda _: metrics.values())

        def tick() -> None:
            for handler in fetch:
                handler.tick(look)

        with _evaluating(model), _intra_op_threads_kept(), data.epoch(threads) as epoch:
            copies = shared.copies(len(epoch.streams))
            scorers = [Scorer(copy, self._pull_existing, self.config.precision) for copy in copies]

            def score(index: int, batch: Batch) -> None:
                outputs = scorers[index].outputs(batch)
                metrics.update(batch, outputs)
                fetcher.seen(batch, outputs)
                data.consumed(batch)
                count = next(batches)
                for handler in fetch:
                    handler.after_step(count, look)

            run_threads(epoch, score, Gate(), tick)
        return metrics

    def predict(self, model: nn.Module, data: Reader) -> Generator[tuple[Batch, F32]]:
        """Every batch with its click probabilities, in the order of the input."""
        for batch, outputs in self.predict_outputs(model, data):
            yield batch, outputs[PROBABILITY]

    def predict_outputs(self, model: nn.Module, data: Reader) -> Generator[tuple[Batch, Outputs]]:
        """Every batch with all outputs by name, as metrics get them: of several labels the probability of each."""
        self._to_score(model)
        self._trained_on.check(data)
        data.seek({})
        with _evaluating(model), data.epoch(1) as epoch:
            scorer = Scorer(model, self._pull_existing, self.config.precision)
            for batch in epoch.streams[0]:
                yield batch, scorer.outputs(batch)
                data.consumed(batch)

    # -- parameters ----------------------------------------------------------------------------------------------

    def restore(self, model: nn.Module, path: str) -> TrainingState:
        """Load tables and dense parameters from a checkpoint; returns where that run stood."""
        return self._take_state(self.load(model, path))

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
        first of them trains.
        """
        bound = self._bind(model)
        checkpoint = Checkpoint.open(latest(path))  # before anyone can save: all must mean the same one
        location = str(checkpoint.location)
        how = {"values_only": values_only, "partial": partial}
        self.crew.only_first(f"load {location}", lambda: self._load(location, how))
        bound.refresh()
        facts = facts_of(checkpoint)
        self._trained_on.learn_saved(location, facts.inputs)
        if not partial:
            bound.load_buffers(facts.buffers)
            return facts
        result = bound.partial_load(checkpoint, values_only=values_only)
        if self.crew.index == 0:
            for line in str(result).splitlines():
                logger.warning("%s", line)
        return result

    def _load(self, location: str, how: Mapping[str, bool]) -> None:
        self.store.load(location, **how)

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

    def _begin_with(self, model: nn.Module, data: Reader, path: str, fresh_optimizer: bool) -> None:
        """A new run, with what fits of a checkpoint. Refuses one whose keys mean something else."""
        location = str(chosen(path)[0])  # the best one, where there is one
        saved = Checkpoint.open(location).manifest.schema
        problems, hints = differing_keys(saved or {}, json.loads(json.dumps(data.schema.to_dict())))
        if problems:
            raise CheckpointError(
                f"{location} has rows by other keys than these samples would have: {'; '.join(problems)}. Read the "
                "samples with its schema, to which slots may be added"
            )
        for hint in hints if self.crew.index == 0 else ():
            logger.warning("%s: %s", location, hint)
        self.load(model, location, values_only=fresh_optimizer, partial=True)
        self._step = self._epoch = 0

    def _newest_of(self, save: SavePolicy | None) -> str | None:
        """What resume="auto" goes on from, the same for all trainers of the job; None: there is nothing yet."""
        if save is None:
            raise ConfigError('resume="auto" goes on from the checkpoints of save=SavePolicy(folder): give one')
        found = to_go_on_from(save.folder)
        told = self.crew.reduce("resume auto", {"member": self.crew.index, "path": found and str(found)})
        # Before the others have come nobody trains, and nobody can have saved: what the first one saw is what there is.
        path = min(told, key=lambda part: int(part["member"]))["path"]
        if any(part["path"] != path for part in told):
            seen = "; ".join(f"worker {part['member']}: {part['path'] or 'none'}" for part in told)
            raise ConfigError(
                f"trainers see different checkpoints in {save.folder} ({seen}): the folder must be one that all share"
            )
        return None if path is None else str(path)

    def _take_state(self, facts: RunFacts, leased: bool = False) -> TrainingState:
        state = TrainingState.from_facts(facts, self.crew.index, self.crew.size, leased=leased)
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
            work = self.workplace
            self._bound = BoundModel(model, self.store, work.rule, self.seed, work.kept_by_store)
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
