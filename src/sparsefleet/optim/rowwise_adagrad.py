"""Row-wise Adagrad: one accumulator for a whole row, of the mean of its squared gradients: little memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sparsefleet.optim.adagrad import Adagrad
from sparsefleet.optim.base import A_DIVISOR, SMALLEST, UpdateRule


@dataclass(frozen=True)
class RowwiseAdagrad(UpdateRule):
    epsilon: float = 1e-10
    """Added to the root of the accumulator, against division by 0."""
    initial_accumulator: float = 0.0
    """What the accumulator starts from."""
    weight_decay: float = 0.0
    """Added to the gradient, times the value (L2)."""

    name: ClassVar[str] = "rowwise_adagrad"
    kind: ClassVar[int] = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("epsilon", self.epsilon >= SMALLEST, A_DIVISOR)
        self.require("initial_accumulator", self.initial_accumulator >= 0, "0 or above")
        self.require("weight_decay", self.weight_decay >= 0, "0 or above")

    def state_width(self, dim: int) -> int:
        return 1

    def hyperparameters(self) -> tuple[float, ...]:
        return self.epsilon, self.weight_decay

    def initial_state(self) -> float:
        return self.initial_accumulator

    def for_dense(self) -> UpdateRule:
        """Plain Adagrad: a dense block has no rows, and one accumulator for all of it would be of no use."""
        return Adagrad(
            self.learning_rate,
            self.epsilon,
            self.initial_accumulator,
            self.weight_decay,
            schedule=self.schedule,
        )
