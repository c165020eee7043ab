"""The norm of a step's gradients, of all tables and the dense block together, and gradients scaled by a factor.

Sums of squares are of float64, in the order of the arrays: so sums of several servers add up the same for all trainers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np

from sparsefleet.core.batch import F32
from sparsefleet.core.errors import SparseFleetError
from sparsefleet.core.keyed_rows import KeyedRows
from sparsefleet.kernels.float_mode import flushed

SMALL = 1e-6
"""Added to the norm before dividing, as torch does."""


def squares(gradients: Iterable[F32]) -> float:
    """The sum of the squares of all numbers."""
    with flushed():
        return math.fsum(float(np.square(each).sum(dtype=np.float64)) for each in gradients)


def clip_factor(total: float, max_norm: float) -> float:
    """What gradients with this sum of squares are multiplied by, as `torch.nn.utils.clip_grad_norm_` does."""
    if not math.isfinite(total):
        raise SparseFleetError(
            f"gradients are not finite (the sum of their squares is {total}), though the loss is: no norm to clip at. "
            "Look for a division by 0, a root or a logarithm in the model, or use a lower learning rate"
        )
    norm = math.sqrt(total)
    return 1.0 if norm + SMALL <= max_norm else max_norm / (norm + SMALL)


def scaled(gradients: F32, factor: float) -> F32:
    """The very array where the factor is 1."""
    if factor == 1.0:
        return gradients
    with flushed():
        return gradients * np.float32(factor)


def scaled_rows(sparse: Mapping[str, KeyedRows], factor: float) -> Mapping[str, KeyedRows]:
    if factor == 1.0:
        return sparse
    return {name: KeyedRows(each.keys, scaled(each.rows, factor), each.counts) for name, each in sparse.items()}
