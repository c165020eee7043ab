"""fluid.optimizer: the update rules under Fluid's names."""

from __future__ import annotations

from typing import Any

from sparsefleet.core.errors import ConfigError
from sparsefleet.optim import FTRL as Ftrl
from sparsefleet.optim import SGD, Adagrad, Adam, RowwiseAdagrad

AdamOptimizer, AdagradOptimizer, SGDOptimizer, FtrlOptimizer = Adam, Adagrad, SGD, Ftrl

__all__ = [
    "SGD",
    "Adagrad",
    "AdagradOptimizer",
    "Adam",
    "AdamOptimizer",
    "Ftrl",
    "FtrlOptimizer",
    "RowwiseAdagrad",
    "SGDOptimizer",
]


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    raise ConfigError(f"fluid.optimizer.{name} is not here; choose {', '.join(__all__)}")


def __dir__() -> list[str]:
    return __all__
