"""Fit: one call of `Trainer.fit`: what it begins with, its epochs, and in a job that heals its attempts."""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import nn

from sparsefleet.checkpoint import locate, same_place, to_go_on_from
from sparsefleet.core.errors import ConfigError, Disagreement, Rejoin, StoreError
from sparsefleet.core.memory import keep_freed_memory
from sparsefleet.crew import Crew
from sparsefleet.data.base import Reader
from sparsefleet.data.leased import LeasedDataset
from sparsefleet.metrics import ClickMetrics, MetricSet
from sparsefleet.store.base import RunFacts
from sparsefleet.train.evaluation import Evaluation
from sparsefleet.train.fetch import FetchHandler
from sparsefleet.train.given_data import TrainedOn
from sparsefleet.train.healing import Before, Cut
from sparsefleet.train.judging import Judge
from sparsefleet.train.model_in_store import ModelInStore
from sparsefleet.train.reporting.base import Reporter
from sparsefleet.train.run import FitResult, Run, RunConfig
from sparsefleet.train.save_policy import SavePolicy
from sparsefleet.train.threads import STEP_SECONDS, intra_op_threads_kept
from sparsefleet.train.training_state import UNTIL, VALIDATION, TrainingState, lost_within_epoch, restore_random_state
from sparsefleet.train.validation import Validation
from sparsefleet.train.workplace import Workplace

logger = logging.getLogger("sparsefleet.train")

AUTO = "auto"
"""For `resume`: go on from what the run's folder has, or begin."""


@dataclass(frozen=True)
class FitRequest:
    """What a call of `fit` asks for; refuses what does not go together."""

    model: nn.Module
    data: Reader
    epochs: int
    test: Reader | None
    valid: Reader | None
    validation: Validation | None
    save: SavePolicy | None
    resume: str | None
    start_from: str | None
    fresh_optimizer: bool
    fetch: Sequence[FetchHandler]
    reporters: Sequence[Reporter]

    def __post_init__(self) -> None:
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
        if self.validation is not None and self.valid is None:
            raise ConfigError("fit(validation=…) says what to do with validation data: give valid=, too")
        if self.epochs < 0:
            raise ConfigError(f"epochs={self.epochs} must be 0 or above")


@dataclass
class Trained:
    """How far a trainer has come, over all its calls of `fit`."""

    step: int = 0
    epoch: int = 0
    run: Run | None = None
    """The present one, or the last."""
    passed: bool = False
    """The last call of `fit` was passed over: the others are past it, and past what the script does after it."""

    def take(self, facts: RunFacts, crew: Crew, *, leased: bool = False) -> TrainingState:
        """Go on from where a checkpoint's run stood."""
        state = TrainingState.from_facts(facts, crew.index, crew.size, leased=leased)
        restore_random_state(state.random_state)
        if crew.index == 0 and (lost := lost_within_epoch(facts)):
            logger.warning(
                "worker %s had been lost within epoch %d when this checkpoint was saved: what it had not trained of "
                "that epoch is left out; from the next epoch on it has its share again",
                ", ".join(map(str, lost)),
                state.epoch + 1,
            )
        self.step, self.epoch = state.step, state.epoch
        return state


class Fit:
    def __init__(
        self,
        request: FitRequest,
        config: RunConfig,
        workplace: Workplace,
        models: ModelInStore,
        evaluation: Evaluation,
        trained: Trained,
    ) -> None:
        self._asked, self._config, self._workplace = request, config, workplace
        self._models, self._evaluation, self._trained = models, evaluation, trained
        workplace.fits += 1
        workplace.evaluations = 0
        self._number = workplace.fits
        self._begun = self._stepped = False
        self._as_before: tuple[TrainedOn, Run | None] | None = None
        """What was known of the model's samples, and the run before: a call that fails without a step leaves them."""

    @property
    def _crew(self) -> Crew:
        return self._workplace.crew

    def run(self) -> FitResult:
        keep_freed_memory()
        asked, trained, epochs = self._asked, self._trained, self._asked.epochs
        at, resume, auto = (trained.step, trained.epoch), asked.resume, asked.resume == AUTO
        done = 0 if asked.start_from else trained.epoch  # a run that begins anew counts its epochs anew
        until = epochs if resume and not auto else epochs + done
        before = Before(self._number)
        try:
            while True:
                try:
                    cut, healing = self._cut(), self._workplace.healing
                    if healing is not None and self._begins_with(cut) and not self._crew.late:
                        healing.caught_up()  # all others of this attempt begin this call too
                    # Not once a cut of this call is there: a trainer that is started again would ask alone.
                    if auto and self._before_all_cuts(cut):
                        resume = newest_of(asked.save, self._crew)
                        until = epochs if resume else epochs + done
                    return self._attempt(until, resume, before)
                except StoreError as error:
                    before = self._go_back(error, before, at, resumes=resume is not None)
        except BaseException:
            if self._as_before is not None and not self._stepped:
                self._models.trained_on, trained.run = self._as_before
            raise
        finally:
            if self._begun:
                if self._stepped:
                    self._models.trained_on.learn(asked.data)  # what Python hands in is known once it was read
                for reporter in asked.reporters:
                    reporter.close()

    def _attempt(self, until: int, resume: str | None, before: Before) -> FitResult:
        """Train until so many epochs are done. Only a job that heals calls it more than once: see `_go_back`."""
        asked, trained, models, crew = self._asked, self._trained, self._models, self._crew
        model, data, test, valid = asked.model, asked.data, asked.test, asked.valid
        healing, cut = self._workplace.healing, self._cut()
        if cut is not None and cut.fit > self._number:
            return self._passed_over(cut, until)
        if cut is not None and cut.fit == self._number:
            # Not as reckoned here: a call before, which this process has passed over, may have stopped early.
            until = cut.until
            if cut.ended is not None:
                return self._ended_before(cut, cut.ended, before)
        trained.passed = False
        bound = models.bind(model)
        facts: RunFacts | None = None
        entry = crew.enter()
        if entry is not None and entry.fit >= self._number:
            if not isinstance(data, LeasedDataset):
                raise ConfigError(
                    "this trainer came while the others were at work, and there is no data left for it: in an elastic "
                    "job give every trainer all files, with open_reader(…, leased=True)"
                )
            if entry.fit > self._number:
                return self._not_there(entry.step, until)
            self._workplace.evaluations = entry.evaluations
            until = int(entry.told.get(UNTIL, until))
        elif cut is not None and cut.fit == self._number:
            facts = cut.facts  # the servers have begun from it
        elif resume and self._before_all_cuts(cut):
            facts = models.load_to_resume(model, data, resume)
        elif asked.start_from:
            models.load_to_begin_with(model, data, asked.start_from, fresh_optimizer=asked.fresh_optimizer)
            trained.step = trained.epoch = 0
        leased = isinstance(data, LeasedDataset)
        if facts is None:
            state = TrainingState(step=trained.step, epoch=trained.epoch)
        else:
            state = trained.take(facts, crew, leased=leased)
        joined = entry is not None and entry.fit == self._number
        if entry is not None and joined:
            stands = entry.told.get(VALIDATION, {})
            state = TrainingState(step=entry.step, epoch=entry.epoch, position=entry.position, validation=stands)

        def rows_of(trainer: int) -> int:
            """Samples of this call that it had trained by the cut."""
            return cut.rows.get(str(trainer), 0) if cut is not None and cut.fit == self._number else 0

        if healing is not None and entry is None:
            healing.caught_up()
            before = replace(before, rows=rows_of(crew.index))

        def start_of(trainer: int) -> TrainingState:
            if facts is None:
                return state
            return replace(TrainingState.from_facts(facts, trainer, crew.size, leased=leased), rows=rows_of(trainer))

        models.trained_on.check_to_train_on(data, tell=crew.index == 0)
        trained_on = TrainedOn.by(data)
        for what, other in (("the test data", test), ("the validation data", valid)):
            if other is not None:
                trained_on.check(other, what)  # now, not after an epoch
        policy = asked.validation or Validation()
        if valid is not None:
            policy = policy.decided(self._config.metrics)
        data.seek(state.position)
        crew.begin_run(leased=leased)
        run = Run(
            bound,
            data,
            until,
            self._config,
            self._workplace,
            state=state,
            start_of=start_of,
            save=asked.save,
            reporters=asked.reporters,
            fetch=asked.fetch,
            before=before,
        )
        if self._as_before is None:
            # Of a call that has loaded a checkpoint, the run before would not know what `save` writes.
            loaded = facts is not None or asked.start_from is not None
            self._as_before = copy.copy(models.trained_on), None if loaded else trained.run
        models.trained_on.learn(data)  # not before: what is refused has taught the model nothing
        trained.run = run
        self._begin(until)
        scored = None
        score = partial(self._evaluation.everywhere, self._config, model)
        try:
            with intra_op_threads_kept(), self._workplace.communicator() as communicator:
                communicator.start(bound.parameters, state.step)
                judge = Judge(
                    run,
                    policy,
                    None if valid is None else partial(score, valid),
                    self._workplace.store,
                    communicator,
                )
                with run.taking_part(communicator):
                    if joined:
                        judge.join()
                    elif facts is None:
                        run.cut_together("the beginning")
                    judge.begin(resumed=facts is not None)
                    if facts is not None and not facts.positions and cut is not None and cut.fit == self._number:
                        self._save_as_asked(run, until)
                    for number in range(state.epoch, until):
                        if judge.stopped:
                            break
                        run.epoch(number, communicator)
                        judge.epoch_end()
                        if test is not None:
                            run.status.resting("scoring")
                            scored = score(test)
                            judge.tested(scored)
                            for reporter in asked.reporters:
                                reporter.evaluated(run.progress.step, scored)
                    if test is not None and scored is None:  # every epoch was done before
                        scored = score(test)
                    run.end(test=scored, valid=judge.values, best=judge.best, stopped=judge.stopped)
        finally:
            self._stepped |= run.progress.step > state.step
            trained.step, trained.epoch = run.progress.step, run.epochs_done
        return run.result(scored, judge.values, judge.best, judge.stopped)

    def _save_as_asked(self, run: Run, until: int) -> None:
        """This attempt began from a cut at the end of an epoch, perhaps from before that was saved. (With validation
        data the judge has seen to it.)"""
        if self._asked.valid is None and run.epochs_done > until - self._asked.epochs:
            run.save_epoch()

    def _begin(self, until: int) -> None:
        if self._begun:
            return
        self._begun = True
        for reporter in self._asked.reporters:
            reporter.start({"epochs": until, "threads": self._config.threads, "precision": self._config.precision})

    def _go_back(self, error: StoreError, before: Before, at: tuple[int, int], *, resumes: bool) -> Before:
        """In a job that heals: join the next attempt, so that `_attempt` goes on from its cut. Else raise."""
        trained, healing = self._trained, self._workplace.healing
        run = trained.run if trained.run is not None and trained.run.fit == self._number else None
        if healing is None or isinstance(error, Disagreement):
            raise error
        since = time.monotonic()
        logger.warning("this attempt of the job is over: %s", error)
        # Filled by the script right before this call, the store is so no longer: this trainer will have to start again,
        # and nobody is to think that it is within the call.
        healing.rejoin(error, self._number - (self._models.filled_after == self._number - 1))
        self._models.unbind()
        if run is not None:
            run.member.gate.wait_until_quiet(STEP_SECONDS)  # a late answer must not fall into the next attempt
        healing = self._workplace.healing  # of the attempt that it has joined
        assert healing is not None
        cut = self._cut()
        mine = cut is not None and cut.fit == self._number
        if cut is None and not resumes and (trained.step, trained.epoch) != at:
            raise StoreError(f"no cut had been written that this run could go back to. {error}") from error
        if not mine and not self._begins_again(cut):
            healing.start_again()
            raise Rejoin(
                f"attempt {healing.attempt} of the job begins from {healing.cut or 'the beginning'}, which lies before "
                f"call {self._number} of fit: this process cannot go back there, and is to be started again. {error}"
            ) from error
        rows = before.rows + (run.progress.rows if run is not None else 0)
        kept = cut.rows.get(str(self._crew.index), 0) if cut is not None and mine else 0
        again = max(0, rows - kept)
        logger.warning(
            "attempt %d begins from %s, after %.1f s: %d samples are trained again here",
            healing.attempt,
            cut.path if cut is not None else "the beginning",
            time.monotonic() - since,
            again,
        )
        self._workplace.evaluations = 0
        trained.run, trained.step, trained.epoch = None, *at
        seconds = before.seconds + (run.progress.seconds if run is not None else 0.0)
        return replace(before, seconds=seconds, again=before.again + again)

    def _cut(self) -> Cut | None:
        """What the present attempt of the job began from."""
        healing = self._workplace.healing
        return None if healing is None else Cut.open(healing.cut)

    def _before_all_cuts(self, cut: Cut | None) -> bool:
        """Whether this attempt of the job began before this call, which then begins as the script asks for it."""
        return cut is None or cut.fit < self._number

    def _begins_again(self, cut: Cut | None) -> bool:
        """Whether this call can begin anew from a cut that is none of its own, or (None) from the job's beginning."""
        if self._models.filled_after == self._number - 1:
            return False  # by the script, which is past that
        return self._begins_with(cut)

    def _begins_with(self, cut: Cut | None) -> bool:
        """Whether an attempt that began from this cut goes on with the beginning of this call."""
        return self._number == 1 if cut is None else cut.begins(self._number)

    def _ended_before(self, cut: Cut, ended: Mapping[str, Any], before: Before) -> FitResult:
        """All trainers had come to the end of this call when a process was lost: what it came to is in the cut.

        Nobody is met in it: others may be at the beginning of the next call.
        """
        logger.warning("call %d of fit had come to its end when this attempt of the job began", self._number)
        asked, trained, crew, healing = self._asked, self._trained, self._crew, self._workplace.healing
        assert healing is not None
        bound = self._models.bind(asked.model)
        bound.refresh()
        state = trained.take(cut.facts, crew)
        run = Run(
            bound,
            asked.data,
            cut.until,
            self._config,
            self._workplace,
            state=state,
            start_of=lambda trainer: replace(
                TrainingState.from_facts(cut.facts, trainer, crew.size), rows=cut.rows.get(str(trainer), 0)
            ),
            save=asked.save,
            reporters=asked.reporters,
            fetch=asked.fetch,
            before=replace(before, rows=cut.rows.get(str(crew.index), 0)),
        )
        trained.run, trained.passed = run, crew.late
        healing.catch_up(self._number)
        return run.ended_before(cut.facts.extra["training"]["metrics"], ended)

    def _passed_over(self, cut: Cut, until: int) -> FitResult:
        """This process was started again, and the job is past this call of `fit`."""
        logger.warning("call %d of fit was done before this trainer was started again: passed over", self._number)
        return self._not_there(cut.facts.step, until)

    def _not_there(self, step: int, until: int) -> FitResult:
        """Of a call of `fit` that the others are past."""
        self._trained.step, self._trained.epoch, self._trained.passed = step, until, True
        nothing = MetricSet(ClickMetrics(self._config.num_thresholds), self._config.metrics).values()
        return FitResult(0, step, 0.0, nothing, None, {}, None)


def newest_of(save: SavePolicy | None, crew: Crew) -> str | None:
    """What resume="auto" goes on from, the same for all trainers of the job; None: there is nothing yet."""
    if save is None:
        raise ConfigError('resume="auto" goes on from the checkpoints of save=SavePolicy(folder): give one')
    found = to_go_on_from(save.folder)
    told = crew.reduce("resume auto", {"member": crew.index, "path": found and str(found)})
    # Before the others have come nobody trains, and nobody can have saved: what the first one saw is what there is.
    path = min(told, key=lambda part: int(part["member"]))["path"]
    if any(part["path"] != path for part in told):
        seen = "; ".join(f"worker {part['member']}: {part['path'] or 'none'}" for part in told)
        raise ConfigError(
            f"trainers see different checkpoints in {save.folder} ({seen}): the folder must be one that all share"
        )
    return None if path is None else str(path)
