"""Adam, lazy on rows: a row's moments move only when it gets a gradient; bias correction counts table steps.

With exact=True a row's moments, and the row by them, move at every step, as in `torch.optim.Adam` on a dense table.

Epsilon stands where `torch.optim.Adam` has it, for sparse rows too: sqrt(v) / sqrt(1 - beta2^t) + epsilon.
(`torch.optim.SparseAdam` adds it to sqrt(v) before the correction: in the first steps its epsilon weighs up
to 1 / sqrt(1 - beta2) = 32 times as much. The two agree but for that.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sparsefleet.optim.base import A_DIVISOR, SMALLEST, UpdateRule


@dataclass(frozen=True)
class Adam(UpdateRule):
    beta1: float = 0.9
    """How much of the mean of gradients is kept at each update."""
    beta2: float = 0.999
    """How much of the mean of squared gradients is kept at each update."""
    epsilon: float = 1e-8
    """Added to the root of the corrected second moment."""
    weight_decay: float = 0.0
    """Added to the gradient, times the value (L2, not AdamW)."""

    name: ClassVar[str] = "adam"
    kind: ClassVar[int] = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("beta1", 0 <= self.beta1 < 1, "0 or above and below 1")
        self.require("beta2", 0 <= self.beta2 < 1, "0 or above and below 1")
        self.require("epsilon", self.epsilon >= SMALLEST, A_DIVISOR)
        self.require("weight_decay", self.weight_decay >= 0, "0 or above")

    def state_width(self, dim: int) -> int:
        return 2 * dim

    def moves_idle_rows(self) -> bool:
        return True  # by momentum, without any weight decay too

    def hyperparameters(self) -> tuple[float, ...]:
        return self.beta1, self.beta2, self.epsilon, self.weight_decay
