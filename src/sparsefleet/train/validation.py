"""Validation: is the model still getting better? What follows from it: the best checkpoint, lower rates, an early end.

After each epoch the validation data is scored, and `Standing` says how the run stands. Everything that is decided
is a function of it and of the policy; it is part of each checkpoint, so a resumed run decides as if never interrupted.
All trainers of a job see the same metrics, summed over all of them, and so decide alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from sparsefleet.core.errors import CheckpointError, ConfigError
from sparsefleet.metrics import ClickMetrics, Metric, MetricSet


@dataclass(frozen=True)
class Validation:
    """What `fit(valid=…)` does with the validation data."""

    metric: str = "auc"
    """What "better" goes by: a name that evaluation tells."""
    patience: int | None = None
    """Stop after so many epochs in a row that were not better than the best one; None: never."""
    min_delta: float = 0.0
    """An epoch is better where the metric is by more than this."""
    plateau_factor: float | None = None
    """Multiply learning rates by this after `plateau_patience` epochs in a row that were not better; None: never."""
    plateau_patience: int = 1
    min_factor: float = 1e-4
    """Learning rates never fall below this part of what they were at the beginning."""
    lower_is_better: bool | None = None
    """Which way is better, of a metric of one's own; None: as the metrics say (`Metric.less_is_better`)."""

    def __post_init__(self) -> None:
        if self.patience is not None and self.patience < 1:
            raise ConfigError(f"patience={self.patience} must be 1 or above, or None to train all epochs")
        if not 0 <= self.min_delta < math.inf:
            raise ConfigError(f"min_delta={self.min_delta} must be 0 or above")
        if self.plateau_factor is not None and not 0 < self.plateau_factor < 1:
            raise ConfigError(f"plateau_factor={self.plateau_factor} must be above 0 and below 1, such as 0.1")
        if self.plateau_patience < 1:
            raise ConfigError(f"plateau_patience={self.plateau_patience} must be 1 or above")
        if not 0 < self.min_factor <= 1:
            raise ConfigError(f"min_factor={self.min_factor} must be above 0 and at most 1")

    @property
    def lower(self) -> bool:
        """Whether less is better; of metrics that not every run has `decided` has said it."""
        return self.metric in ClickMetrics.less_is_better if self.lower_is_better is None else self.lower_is_better

    def better(self, value: float, than: float) -> bool:
        """A metric that is not a number is better than none."""
        if math.isnan(value) or math.isnan(than):
            return math.isnan(than) and not math.isnan(value)
        return than - value > self.min_delta if self.lower else value - than > self.min_delta

    def value_of(self, values: Mapping[str, float]) -> float:
        if self.metric not in values:
            raise ConfigError(
                f"the validation data has no metric {self.metric!r} to go by; it has {', '.join(values)}"
                " (--watch, Validation(metric=…))"
            )
        return float(values[self.metric])

    def decided(self, own: Sequence[Metric]) -> Validation:
        """The same, with which way is better. Refuses a metric that nothing measures, and one of which nobody says so,
        before an epoch is trained for it. own: those of the trainer.

        A metric that names no values before it has counted anything may still name this one: whether it does,
        `value_of` finds out after the first epoch.
        """
        if all(metric.values() for metric in own):
            self.value_of(MetricSet(ClickMetrics(), own).values())
        if self.lower_is_better is not None:
            return self
        known: list[tuple[Sequence[str], Sequence[str]]] = [(ClickMetrics.more_is_better, ClickMetrics.less_is_better)]
        known += [(metric.more_is_better, metric.less_is_better) for metric in own]
        for more, less in known:
            if self.metric in (*more, *less):
                return replace(self, lower_is_better=self.metric in less)
        raise ConfigError(
            f"validation cannot go by {self.metric!r}: nothing says that more of it is better, or less. Choose "
            f"{', '.join(name for ways in known for way in ways for name in way)} (--watch, Validation(metric=…)); of "
            "a metric of your own say it: Validation(metric=…, lower_is_better=False), or more_is_better and "
            "less_is_better of its class"
        )


@dataclass(frozen=True)
class Standing:
    """How a run stands by its validation data."""

    metric: str
    judged: int = 0
    """Epochs of the run that are judged; with gaps where a run had no validation data for a while."""
    best: float | None = None
    best_epoch: int = 0
    """From 1."""
    best_step: int = 0
    """Of the trainer that saves: its checkpoint is the best one."""
    not_better: int = 0
    """Epochs in a row since the best one."""
    since_drop: int = 0
    """Epochs in a row that were not better, since the best one or since rates were lowered."""
    rate_factor: float = 1.0
    """What learning rates are multiplied with by now."""

    def after(self, policy: Validation, value: float, epoch: int, step: int) -> Standing:
        """How it stands once an epoch (from 1) has come to this value."""
        than = math.nan if self.best is None else self.best
        if policy.better(value, than):
            return replace(self, judged=epoch, best=value, best_epoch=epoch, best_step=step, not_better=0, since_drop=0)
        now = replace(self, judged=epoch, not_better=self.not_better + 1, since_drop=self.since_drop + 1)
        if policy.plateau_factor is None or now.since_drop < policy.plateau_patience:
            return now
        lowest = max(policy.min_factor, self.rate_factor * policy.plateau_factor)
        return replace(now, since_drop=0, rate_factor=min(self.rate_factor, lowest))

    def stops(self, policy: Validation) -> bool:
        return policy.patience is not None and self.not_better >= policy.patience

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Standing:
        kinds = {"metric": str, "best": float | int | None, "rate_factor": float | int}
        try:
            for each in fields(Standing):
                if each.name in data and not isinstance(data[each.name], kinds.get(each.name, int)):
                    raise TypeError(f"{each.name}={data[each.name]!r}")
            return Standing(**data)
        except TypeError as error:
            raise CheckpointError(f"the checkpoint's record of validation is damaged: {error}") from error

    def marks(self) -> dict[str, Any]:
        """What a checkpoint says of the run's best one (`checkpoint/FORMAT.md`)."""
        return {"step": self.best_step, "epoch": self.best_epoch, "metric": self.metric, "value": self.best}
