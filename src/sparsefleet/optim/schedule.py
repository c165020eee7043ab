"""Schedules: what the learning rate is multiplied with at each step of a table. The first update is step 1.

One class per schedule; `SCHEDULES` is what names in checkpoints and on the wire stand for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import Any, ClassVar

from sparsefleet.core.errors import ConfigError


def _require(ok: bool, schedule: Schedule, rule: str) -> None:
    if not ok:
        raise ConfigError(f"{schedule}: {rule}")


@dataclass(frozen=True)
class Schedule(ABC):
    name: ClassVar[str]

    @abstractmethod
    def factor(self, step: int) -> float:
        """What the learning rate is multiplied with at the given step (first: 1)."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data; `schedule.from_dict` is the inverse."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        plain = {k: v.to_dict() if isinstance(v, Schedule) else v for k, v in values.items()}
        return {"name": self.name, **plain}


@dataclass(frozen=True)
class Constant(Schedule):
    """No change."""

    name: ClassVar[str] = "constant"

    def factor(self, step: int) -> float:
        return 1.0


@dataclass(frozen=True)
class ExponentialDecay(Schedule):
    """decay_rate ** (updates so far / decay_steps)."""

    decay_steps: int
    """Updates after which the rate has been multiplied by `decay_rate` once."""
    decay_rate: float
    """Above 0; 1 or below to decay."""
    staircase: bool = False
    """Whole powers only: the rate falls every `decay_steps` updates, not at each."""

    name: ClassVar[str] = "exponential_decay"

    def __post_init__(self) -> None:
        _require(self.decay_steps >= 1, self, "decay_steps must be 1 or above")
        _require(0 < self.decay_rate < float("inf"), self, "decay_rate must be above 0")

    def factor(self, step: int) -> float:
        done = step - 1
        power = done // self.decay_steps if self.staircase else done / self.decay_steps
        return float(self.decay_rate**power)


@dataclass(frozen=True)
class InverseTimeDecay(Schedule):
    """1 / (1 + decay_rate * updates so far / decay_steps)."""

    decay_steps: int
    decay_rate: float
    """0 or above."""
    staircase: bool = False
    """Whole multiples of `decay_steps` only."""

    name: ClassVar[str] = "inverse_time_decay"

    def __post_init__(self) -> None:
        _require(self.decay_steps >= 1, self, "decay_steps must be 1 or above")
        _require(0 <= self.decay_rate < float("inf"), self, "decay_rate must be 0 or above")

    def factor(self, step: int) -> float:
        done = step - 1
        times = done // self.decay_steps if self.staircase else done / self.decay_steps
        return 1.0 / (1.0 + self.decay_rate * times)


@dataclass(frozen=True)
class PolynomialDecay(Schedule):
    """From 1 down to `end_factor` over `decay_steps` updates, then level."""

    decay_steps: int
    end_factor: float = 0.0
    """0 to 1."""
    power: float = 1.0
    """1 is a straight line; above it, the rate falls faster at first."""

    name: ClassVar[str] = "polynomial_decay"

    def __post_init__(self) -> None:
        _require(self.decay_steps >= 1, self, "decay_steps must be 1 or above")
        _require(0 <= self.end_factor <= 1, self, "end_factor must be 0 to 1")
        _require(0 < self.power < float("inf"), self, "power must be above 0")

    def factor(self, step: int) -> float:
        left = 1.0 - min(step - 1, self.decay_steps) / self.decay_steps
        return float(self.end_factor + (1.0 - self.end_factor) * left**self.power)


@dataclass(frozen=True)
class LinearWarmup(Schedule):
    """step / steps for the first `steps` updates; then `after`, which counts its own steps from 1."""

    steps: int
    after: Schedule = field(default_factory=Constant)

    name: ClassVar[str] = "linear_warmup"

    def __post_init__(self) -> None:
        _require(self.steps >= 1, self, "steps must be 1 or above")

    def factor(self, step: int) -> float:
        return step / self.steps if step <= self.steps else self.after.factor(step - self.steps)


@dataclass(frozen=True)
class OnPlateau(Schedule):
    """`base`, lowered while training goes on where a metric has stopped getting better (`Validation`).

    Two of them are equal where their bases are: drops are what has happened, not a setting.
    """

    base: Schedule = field(default_factory=Constant)
    drops: tuple[tuple[int, float], ...] = field(default=(), compare=False)
    """(step, factor): after this step of the table `base` is multiplied with the factor, not with the one before."""

    name: ClassVar[str] = "on_plateau"

    def __post_init__(self) -> None:
        try:
            drops = tuple((int(step), float(factor)) for step, factor in self.drops)
        except (TypeError, ValueError):
            raise ConfigError(f"drops={self.drops!r:.80} must be pairs of a step and a factor") from None
        rising = all(one[0] <= other[0] for one, other in pairwise(drops))
        _require(rising and all(step >= 0 and 0 < factor <= 1 for step, factor in drops), self,
                 "drops must be in the order of their steps, with factors above 0 and at most 1")  # fmt: skip
        object.__setattr__(self, "drops", drops)

    @property
    def lowered_to(self) -> float:
        """What `base` is multiplied with by now."""
        return self.drops[-1][1] if self.drops else 1.0

    def lowered(self, step: int, factor: float) -> OnPlateau:
        """From the step after this one on, `base` is multiplied with the factor."""
        return OnPlateau(self.base, (*self.drops, (step, factor)))

    def factor(self, step: int) -> float:
        rate = self.base.factor(step)
        for after, factor in reversed(self.drops):
            if step > after:
                return rate * factor
        return rate


SCHEDULES: Mapping[str, type[Schedule]] = {
    kind.name: kind for kind in (Constant, ExponentialDecay, InverseTimeDecay, PolynomialDecay, LinearWarmup, OnPlateau)
}


def from_dict(data: Mapping[str, Any]) -> Schedule:
    """The schedule that `to_dict` described."""
    if not isinstance(data, Mapping) or data.get("name") not in SCHEDULES:
        given = data.get("name") if isinstance(data, Mapping) else data
        raise ConfigError(f"schedule {given!r} does not exist; choose {', '.join(SCHEDULES)}")
    settings = {k: from_dict(v) if k in ("after", "base") else v for k, v in data.items() if k != "name"}
    try:
        return SCHEDULES[data["name"]](**settings)
    except TypeError as error:
        raise ConfigError(f"schedule {data['name']!r}: a setting is missing, surplus or mistyped: {error}") from error
