"""SGD: values -= rate * gradient. No state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sparsefleet.optim.base import UpdateRule

MOST = 5e-4
"""The most that one sample's gradient bears: however small the batch, a dense value far from the usual comes with its
whole weight. Measured: docs/defaults.md."""


@dataclass(frozen=True)
class SGD(UpdateRule):
    learning_rate: float = MOST
    """Gradients are sums over the batch: what one of more than 600 rows bears, `usual_rate` says."""
    weight_decay: float = 0.0
    """Added to the gradient, times the value (L2)."""

    name: ClassVar[str] = "sgd"
    kind: ClassVar[int] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("weight_decay", self.weight_decay >= 0, "0 or above")

    def state_width(self, dim: int) -> int:
        return 0

    def hyperparameters(self) -> tuple[float, ...]:
        return (self.weight_decay,)
