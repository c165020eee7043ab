"""Clipping by the global norm: one step's gradients, of all tables and the dense block together, are no longer than so.

As `torch.nn.utils.clip_grad_norm_` on the gradients of the loss: a row's gradient counts as the sum over the batch.
What weight decay adds within a rule is not part of the norm and not scaled: an optimizer's, not the loss's.
"""

from __future__ import annotations

import math

import numpy as np

from sparsefleet.communicator.base import StepGradients
from sparsefleet.core.batch import F32
from sparsefleet.core.keyed_rows import KeyedRows
from sparsefleet.kernels.float_mode import flushed

SMALL = 1e-6
"""Added to the norm before dividing, as torch does."""


def clipped(step: StepGradients, max_norm: float | None) -> StepGradients:
    """The step, scaled down where the norm of all its gradients exceeds `max_norm`; None: as it is."""
    if max_norm is None:
        return step
    with flushed():
        norm = math.sqrt(_squares(step.dense) + sum(_squares(rows.rows) for rows in step.sparse.values()))
        if norm + SMALL <= max_norm:
            return step
        factor = np.float32(max_norm / (norm + SMALL))
        return StepGradients(
            {name: KeyedRows(rows.keys, rows.rows * factor, rows.counts) for name, rows in step.sparse.items()},
            step.dense * factor,
        )


def _squares(gradients: F32) -> float:
    return float(np.square(gradients).sum(dtype=np.float64))
