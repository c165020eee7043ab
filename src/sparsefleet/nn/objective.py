"""What a model's output means: its loss and its click probabilities.

A model may define `loss(output, labels) -> scalar` and `probabilities(output) -> [B]` itself. Otherwise an output of
shape [B, 2] is a pair of softmax logits, [B] or [B, 1] a logit, and the loss the cross-entropy summed over the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from sparsefleet.core.batch import F32
from sparsefleet.core.errors import ConfigError
from sparsefleet.kernels.rows import click_loss

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Probabilities = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Judged:
    """A batch's loss and predictions, and how to go backward from them."""

    loss: float
    probabilities: F32
    """[B]"""
    backward: Callable[[], None]


def judge(model: nn.Module, output: torch.Tensor, labels: F32) -> Judged:
    """Loss, probabilities and the way back, for a model in training."""
    own: Loss | None = getattr(model, "loss", None)
    if callable(own):
        loss = own(output, torch.from_numpy(labels))
        with torch.no_grad():
            probabilities = probabilities_of(model, output.detach())
        return Judged(loss.item(), probabilities, loss.backward)
    # Cross-entropy in one kernel: on a few hundred numbers torch's graph of small operations costs more than the sums.
    loss_sum, probabilities, gradient = click_loss(_logits(output), labels)
    root: torch.Tensor = _WithGradient.apply(output, gradient)  # type: ignore[no-untyped-call]
    return Judged(loss_sum, probabilities, root.backward)


class _WithGradient(torch.autograd.Function):
    """A scalar to go backward from, whose gradient is known already.

    `output.backward(gradient)` says the same, but imports torch's symbolic shapes the first time: 0.3 s of training.
    """

    @staticmethod
    def forward(ctx: Any, output: torch.Tensor, gradient: F32) -> torch.Tensor:
        ctx.gradient = torch.from_numpy(gradient).view(output.shape).to(output.dtype)
        return output.new_zeros(())

    @staticmethod
    def backward(ctx: Any, one: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.gradient, None


def probabilities_of(model: nn.Module, output: torch.Tensor) -> F32:
    """[B] click probabilities."""
    own: Probabilities | None = getattr(model, "probabilities", None)
    if callable(own):
        mine: F32 = own(output).float().numpy()
        return mine
    logits = _logits(output)
    return click_loss(logits, np.zeros(len(logits), np.float32))[1]


def probability_graph(model: nn.Module, output: torch.Tensor) -> torch.Tensor:
    """[B] click probabilities in torch's own operations: what an exporter traces."""
    own: Probabilities | None = getattr(model, "probabilities", None)
    if callable(own):
        return own(output).float()
    _check_shape(output)
    output = output.float()
    if output.dim() == 2 and output.shape[1] == 2:
        return torch.softmax(output, 1)[:, 1]
    return torch.sigmoid(output.reshape(-1))


def _logits(output: torch.Tensor) -> F32:
    """[B, 2] or [B, 1]."""
    _check_shape(output)
    values: F32 = output.detach().float().contiguous().view(len(output), -1).numpy()
    return values


def _check_shape(output: torch.Tensor) -> None:
    if not (output.dim() == 1 or (output.dim() == 2 and output.shape[1] in (1, 2))):
        raise ConfigError(
            f"a model's output must be [B, 2], [B, 1] or [B]; got {tuple(output.shape)}. "
            "Give the model a loss(output, labels) and a probabilities(output) of its own for anything else."
        )
