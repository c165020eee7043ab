"""UpdateRule: how a gradient changes a row. One rule serves sparse rows and dense blocks alike.

Legend: U rows, D values a row, S = rule.state_width(D) floats of optimizer state a row.

A rule is a frozen dataclass of its hyperparameters. Its arithmetic is a native kernel (with a NumPy twin),
chosen by `kind`, fed with `rate(step)` and `hyperparameters()`. `step` counts the updates that a table has
applied, this one included (first: 1).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

from sparsefleet.core.errors import ConfigError
from sparsefleet.core.process_role import PROCESS_ROLE
from sparsefleet.optim.schedule import Constant, Schedule

SMALLEST = 2.0**-126
"""Float32 arithmetic takes whatever is smaller for 0 (native/include/sparsefleet/float_mode.h)."""
A_DIVISOR = "above 0, and at least 1.2e-38: arithmetic takes less for 0"


@dataclass(frozen=True)
class UpdateRule(ABC):
    learning_rate: float = 1e-4
    """Step size before the schedule."""
    schedule: Schedule = field(default_factory=Constant, kw_only=True)
    """How the step size changes with the table's step."""
    exact: bool = field(default=False, kw_only=True)
    """Tables: each step moves every row, also those that its batch did not touch, by weight decay and by Adam's
    momentum, as a dense optimizer does (rows are caught up when they are wanted). False: only the rows it touched."""

    name: ClassVar[str]
    """What command lines, checkpoints and the wire call it."""
    kind: ClassVar[int]
    """What the native kernel calls it; the numbers are in native/include/sparsefleet/rules.h."""

    def __post_init__(self) -> None:
        self.require("learning_rate", self.learning_rate >= 0, "0 or above")
        if not isinstance(self.exact, bool):
            raise ConfigError(f"{self.name}: exact={self.exact!r} must be True or False")

    def require(self, setting: str, ok: bool, allowed: str) -> None:
        """Refuse a setting that is out of its range, or not a finite number."""
        value = getattr(self, setting)
        if not ok or not math.isfinite(value):
            raise ConfigError(f"{self.name}: {setting}={value} must be {allowed}")

    @abstractmethod
    def state_width(self, dim: int) -> int:
        """Floats of state that belong to a row of `dim` values."""

    @abstractmethod
    def hyperparameters(self) -> tuple[float, ...]:
        """The rule's constants in the order its kernel reads them, without the learning rate; at most 6."""

    def initial_state(self) -> float:
        """What every float of state starts from."""
        return 0.0

    def for_dense(self) -> UpdateRule:
        """The rule to use on a dense block, seen as one long row; its steps move all of it anyway."""
        return replace(self, exact=False) if self.exact else self

    def moves_idle_rows(self) -> bool:
        """Whether a step moves a row that it has no gradient for, where the rule is exact."""
        return getattr(self, "weight_decay", 0.0) > 0

    def rate(self, step: int) -> float:
        return self.learning_rate * self.schedule.factor(step)

    def minimize(self, loss: Any) -> None:
        """As in Fluid: this rule trains the model of this loss, `model.loss`. With a Trainer there is no need of it."""
        PROCESS_ROLE.minimize(self, loss)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for manifests and the wire; `optim.from_dict` is the inverse."""
        settings = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("schedule", "exact")}
        if self.exact:  # told only where it is so: whoever does not know of it reads all else as before
            settings["exact"] = True
        return {"name": self.name, **settings, "schedule": self.schedule.to_dict()}
