"""Clipping by the global norm: one step's gradients, of all tables and the dense block together, are no longer than so.

As `torch.nn.utils.clip_grad_norm_` on the gradients of the loss: a row's gradient counts as the sum over the batch.
What weight decay adds within a rule is not part of the norm and not scaled: an optimizer's, not the loss's.

Which gradients are one step's differs by mode. Sync: the sum over all trainers, whose norm only the servers can tell
(`Rounds.clip_factor`). Half-async: what the threads of a trainer have merged. Async and geo: each batch's, before it is
sent, merged with others, or applied to the trainer's own copy.
"""

from __future__ import annotations

from sparsefleet.communicator.base import StepGradients
from sparsefleet.store.norms import clip_factor, scaled, scaled_rows, squares


def clipped(step: StepGradients, max_norm: float | None) -> StepGradients:
    """The step, scaled down where the norm of all its gradients exceeds `max_norm`; None: as it is."""
    if max_norm is None:
        return step
    factor = clip_factor(squares([step.dense, *(rows.rows for rows in step.sparse.values())]), max_norm)
    if factor == 1.0:
        return step
    return StepGradients(scaled_rows(step.sparse, factor), scaled(step.dense, factor), step.marks)
