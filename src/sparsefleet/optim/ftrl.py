"""FTRL-Proximal (McMahan et al. 2013): per-value rates and, through l1, values that are exactly 0.

State: z (the adjusted sum of gradients) and n (the sum of squares). The rate of a value is
learning_rate / (beta + sqrt(n)). A row's first values count as where it stands, not as a gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sparsefleet.core.errors import ConfigError
from sparsefleet.optim.base import UpdateRule


@dataclass(frozen=True)
class FTRL(UpdateRule):
    l1: float = 0.0
    """Values whose |z| does not exceed this are 0."""
    l2: float = 0.0
    """Pulls values towards 0."""
    beta: float = 1.0
    """Keeps the first rates in bounds."""

    name: ClassVar[str] = "ftrl"
    kind: ClassVar[int] = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("learning_rate", self.learning_rate > 0, "above 0, for the rule divides by it")
        self.require("l1", self.l1 >= 0, "0 or above")
        self.require("l2", self.l2 >= 0, "0 or above")
        self.require("beta", self.beta >= 0, "0 or above")
        if self.exact:
            raise ConfigError(
                "ftrl cannot be exact: it makes values of sums of their gradients, with l1 and l2 in full each time, "
                "so steps without a gradient have nothing to catch up; leave exact out"
            )

    def state_width(self, dim: int) -> int:
        return 2 * dim

    def hyperparameters(self) -> tuple[float, ...]:
        return self.l1, self.l2, self.beta
