"""What a model's output means: its loss and its click probabilities.

A model may define `loss(output, labels) -> scalar` and `probabilities(output) -> [B]` itself. Otherwise an output of
shape [B, 2] is a pair of softmax logits, [B] or [B, 1] a logit, and the loss the cross-entropy summed over the batch.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from sparsefleet.core.errors import ConfigError


def loss_of(model: nn.Module, output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    own: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = getattr(model, "loss", None)
    if callable(own):
        return own(output, labels)
    output = output.float()
    if _is_pair(output):
        return functional.cross_entropy(output, labels.long(), reduction="sum")
    return functional.binary_cross_entropy_with_logits(output.reshape(-1), labels, reduction="sum")


def probabilities_of(model: nn.Module, output: torch.Tensor) -> torch.Tensor:
    own: Callable[[torch.Tensor], torch.Tensor] | None = getattr(model, "probabilities", None)
    if callable(own):
        return own(output)
    output = output.float()
    return torch.softmax(output, 1)[:, 1] if _is_pair(output) else torch.sigmoid(output.reshape(-1))


def _is_pair(output: torch.Tensor) -> bool:
    if output.dim() == 2 and output.shape[1] == 2:
        return True
    if output.dim() == 1 or (output.dim() == 2 and output.shape[1] == 1):
        return False
    raise ConfigError(
        f"a model's output must be [B, 2], [B, 1] or [B]; got {tuple(output.shape)}. "
        "Give the model a loss(output, labels) and a probabilities(output) of its own for anything else."
    )
