"""Adagrad: each value has its own rate, which falls with the sum of its squared gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sparsefleet.optim.base import A_DIVISOR, SMALLEST, UpdateRule


@dataclass(frozen=True)
class Adagrad(UpdateRule):
    epsilon: float = 1e-10
    """Added to the root of the sum, against division by 0."""
    initial_accumulator: float = 0.0
    """What the sum of squares starts from."""
    weight_decay: float = 0.0
    """Added to the gradient, times the value (L2)."""

    name: ClassVar[str] = "adagrad"
    kind: ClassVar[int] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("epsilon", self.epsilon >= SMALLEST, A_DIVISOR)
        self.require("initial_accumulator", self.initial_accumulator >= 0, "0 or above")
        self.require("weight_decay", self.weight_decay >= 0, "0 or above")

    def state_width(self, dim: int) -> int:
        return dim

    def hyperparameters(self) -> tuple[float, ...]:
        return self.epsilon, self.weight_decay

    def initial_state(self) -> float:
        return self.initial_accumulator
