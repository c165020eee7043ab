"""Judge: what a run does at the end of an epoch with its validation data. All trainers of a job decide alike."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

from sparsefleet.communicator import Communicator
from sparsefleet.core.errors import ConfigError
from sparsefleet.optim.schedule import OnPlateau
from sparsefleet.store.base import ParameterStore
from sparsefleet.train.run import Run
from sparsefleet.train.validation import Standing, Validation

logger = logging.getLogger("sparsefleet.train")

Score = Callable[[], Mapping[str, float]]
"""Metrics of the validation data, over all trainers of the job."""


class Judge:
    def __init__(
        self, run: Run, policy: Validation, score: Score | None, store: ParameterStore, communicator: Communicator
    ) -> None:
        """score None: there is no validation data; epochs are saved, and nothing is decided."""
        self._run, self._policy, self._score = run, policy, score
        self._store, self._communicator = store, communicator
        self.values: Mapping[str, float] | None = None
        """Of the last epoch."""
        self._of_best: dict[str, Mapping[str, float]] = {}
        """What the best epoch came to, on validation and test data, where this run has scored it."""
        if score is not None and policy.plateau_factor is not None:
            require_plateau(run)

    def begin(self, *, resumed: bool) -> None:
        """Of a run that is resumed: learning rates as they were; and the epoch that it had no time left to judge."""
        if not resumed:
            return
        run = self._run
        if run.standing is not None and run.standing.rate_factor < 1:
            if not isinstance(run.bound.parameters.dense_rule.schedule, OnPlateau):
                logger.warning(
                    "the run before had lowered its learning rates to %g of what they were; without --plateau-factor "
                    "(a schedule OnPlateau) this one has them whole",
                    run.standing.rate_factor,
                )
            self._lower_rates(run.standing.rate_factor)
        judged = 0 if run.standing is None else run.standing.judged
        if self._score is not None and run.between_epochs and judged < run.epochs_done:
            self.epoch_end()

    def join(self) -> None:
        """Of a run that the others are at: rules that are applied here have the rates that theirs have."""
        standing = self._run.standing
        if standing is not None and standing.rate_factor < 1:
            self._communicator.lower_rates(standing.rate_factor)

    def epoch_end(self) -> None:
        """Score the validation data, decide what follows, save."""
        if self._score is None:
            self._run.save_epoch()
            return
        self._run.status.resting("scoring")
        self.values = self._score()
        best = self._decide(self.values)
        if best:
            self._of_best = {"valid": self.values}
        self._run.tell_validated(self.values, best)
        self._run.save_epoch(anyway=best)

    def tested(self, values: Mapping[str, float]) -> None:
        """The test data has been scored, after the same epoch."""
        standing = self._run.standing
        if self._score is not None and standing is not None and standing.best_epoch == self._run.epochs_done:
            self._of_best["test"] = values

    @property
    def stopped(self) -> str | None:
        """Why no further epoch should be trained; None: there is no reason."""
        standing, policy = self._run.standing, self._policy
        if self._score is None or standing is None or not standing.stops(policy):
            return None
        shown = "nothing" if standing.best is None else f"{standing.best:.5f} after epoch {standing.best_epoch}"
        return f"{policy.metric} has not got better for {standing.not_better} epoch(s); the best is {shown}"

    @property
    def best(self) -> Mapping[str, Any] | None:
        standing = self._run.standing
        if self._score is None or standing is None or standing.best is None:
            return None
        return {**standing.marks(), **self._of_best}

    def _decide(self, values: Mapping[str, float]) -> bool:
        """How the run stands now, and lower learning rates; whether this epoch is the best one so far."""
        run, policy, crew = self._run, self._policy, self._run.crew
        # Trainers make different numbers of steps; a checkpoint has those of the one that saves. And one that came late
        # does not know how the run stood.
        stood = None if run.standing is None else run.standing.to_dict()
        told = crew.reduce(
            f"judged epoch {run.epochs_done}", {"member": crew.index, "step": run.progress.step, "standing": stood}
        )
        step = int(min(told, key=lambda part: int(part["member"]))["step"])
        known = [Standing.from_dict(part["standing"]) for part in told if part["standing"]]
        before = max(known, key=lambda one: one.judged, default=Standing(policy.metric))
        if before.metric != policy.metric:
            logger.warning("validation goes by %s now, by %s before: it has no best yet", policy.metric, before.metric)
            before = Standing(policy.metric, before.judged, rate_factor=before.rate_factor)
        value, epoch = policy.value_of(values), run.epochs_done
        if math.isnan(value):
            logger.warning("%s of the validation data is not a number: epoch %d is not the best", policy.metric, epoch)
        run.standing = now = before.after(policy, value, epoch, step)
        if now.rate_factor != before.rate_factor:
            self._lower_rates(now.rate_factor)
            if crew.index == crew.first():
                logger.warning(
                    "%s has not got better for %d epoch(s): from now on learning rates are %g of what they were at the "
                    "beginning",
                    policy.metric,
                    policy.plateau_patience,
                    now.rate_factor,
                )
        return now.best_epoch == epoch

    def _lower_rates(self, factor: float) -> None:
        """All trainers call it, while nobody trains."""
        self._run.crew.only_first(f"rates {factor:g}", lambda: self._store.lower_rates(factor))
        self._communicator.lower_rates(factor)


def require_plateau(run: Run) -> None:
    """Refuse rules whose rate cannot be lowered while training goes on."""
    if not isinstance(run.bound.parameters.dense_rule.schedule, OnPlateau):
        rule = run.bound.parameters.dense_rule
        raise ConfigError(
            f"plateau_factor lowers learning rates while training goes on; for that the optimizer's schedule must be "
            f"OnPlateau: {type(rule).__name__}({rule.learning_rate:g}, schedule=optim.schedule.OnPlateau())"
        )
