"""fluid.initializer: how rows of a table begin, for `SparseEmbedding(initializer=…)`."""

from __future__ import annotations

from sparsefleet.core.initializer import Constant, Initializer
from sparsefleet.core.initializer import Normal as _Normal
from sparsefleet.core.initializer import Uniform as _Uniform

__all__ = ["Constant", "Normal", "Uniform"]


def Uniform(low: float = -1.0, high: float = 1.0, seed: int = 0) -> Initializer:
    """Fluid's defaults: [-1, 1]. A table's values come from the trainer's seed, not from this one."""
    return _Uniform(low, high)


def Normal(loc: float = 0.0, scale: float = 1.0, seed: int = 0) -> Initializer:
    return _Normal(loc, scale)
