"""What a model's output means: its loss, its click probabilities, and the outputs that metrics see by name.

A model may define `loss(output, labels) -> scalar` and `probabilities(output) -> [B]` itself, and then return what it
likes: a dict of tensors gives metrics these outputs by name. Otherwise an output of shape [B, 2] is a pair of softmax
logits, [B] or [B, 1] a logit, and the loss the cross-entropy summed over the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from sparsefleet.core.batch import F32
from sparsefleet.core.errors import ConfigError
from sparsefleet.kernels.rows import click_loss
from sparsefleet.metrics.base import PROBABILITY, Outputs

Output = Any
"""What a model returns: a tensor, a dict of tensors by name, or what its own `loss` and `probabilities` understand."""
Loss = Callable[[Output, torch.Tensor], torch.Tensor]
Probabilities = Callable[[Output], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Judged:
    """A batch's loss and predictions, and how to go backward from them."""

    loss: float
    probabilities: F32
    """[B]"""
    backward: Callable[[], None]
    named: Mapping[str, F32] | None = None
    """The outputs of a model that returns a dict of them."""

    def outputs(self) -> Outputs:
        """As metrics get them."""
        return {PROBABILITY: self.probabilities, **(self.named or {})}


def judge(model: nn.Module, output: Output, labels: F32) -> Judged:
    """Loss, probabilities and the way back, for a model in training."""
    own: Loss | None = getattr(model, "loss", None)
    if callable(own):
        loss = own(output, torch.from_numpy(labels))
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise ConfigError(
                f"{type(model).__qualname__}.loss(output, labels) must return a tensor of one number, the loss summed "
                f"over the batch; got {_described(loss)}"
            )
        with torch.no_grad():
            probabilities = probabilities_of(model, _detached(output), len(labels))
        return Judged(loss.item(), probabilities, loss.backward, named_outputs(output))
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


def named_outputs(output: Output) -> Mapping[str, F32] | None:
    """The tensors of a model that returns a dict of them, as arrays; None for any other model."""
    if not isinstance(output, Mapping):
        return None
    if PROBABILITY in output:
        raise ConfigError(
            f"the model returns an output {PROBABILITY!r}; that name is for what its probabilities(output) returns: "
            "call the output otherwise"
        )
    return {name: tensor.detach().float().numpy() for name, tensor in output.items() if torch.is_tensor(tensor)}


def probabilities_of(model: nn.Module, output: Output, samples: int) -> F32:
    """[B] click probabilities, where B = `samples`."""
    own: Probabilities | None = getattr(model, "probabilities", None)
    if callable(own):
        mine = own(output)
        _check_probabilities(model, mine, samples)
        probabilities: F32 = mine.detach().float().reshape(-1).contiguous().numpy()
        return probabilities
    logits = _logits(output)
    return click_loss(logits, np.zeros(len(logits), np.float32))[1]


def probability_graph(model: nn.Module, output: Output) -> torch.Tensor:
    """[B] click probabilities in torch's own operations: what an exporter traces."""
    own: Probabilities | None = getattr(model, "probabilities", None)
    if callable(own):
        mine = own(output)
        _check_probabilities(model, mine, None)
        return mine.float().reshape(-1)
    _check_shape(output)
    output = output.float()
    if output.dim() == 2 and output.shape[1] == 2:
        return torch.softmax(output, 1)[:, 1]
    return torch.sigmoid(output.reshape(-1))


def _logits(output: Output) -> F32:
    """[B, 2] or [B, 1]."""
    _check_shape(output)
    values: F32 = output.detach().float().contiguous().view(len(output), -1).numpy()
    return values


def _check_shape(output: Output) -> None:
    if not torch.is_tensor(output) or not (output.dim() == 1 or (output.dim() == 2 and output.shape[1] in (1, 2))):
        raise ConfigError(
            f"a model's output must be [B, 2], [B, 1] or [B]; got {_described(output)}. "
            "Give the model a loss(output, labels) and a probabilities(output) of its own for anything else."
        )


def _check_probabilities(model: nn.Module, mine: Any, samples: int | None) -> None:
    """`samples` None: while a model is traced, the length of a batch is a symbol."""
    fits = torch.is_tensor(mine) and (mine.dim() == 1 or (mine.dim() == 2 and mine.shape[1] == 1))
    if not fits or (samples is not None and len(mine) != samples):
        batch = "" if samples is None else f" (here {samples})"
        raise ConfigError(
            f"{type(model).__qualname__}.probabilities(output) must return one click probability for each of the B "
            f"samples{batch}, [B] or [B, 1]; got {_described(mine)}. Other outputs go to metrics by name: let forward "
            "return a dict of tensors."
        )


def _detached(output: Output) -> Output:
    if torch.is_tensor(output):
        return output.detach()
    if isinstance(output, Mapping):
        return {name: _detached(part) for name, part in output.items()}
    return output


def _described(output: Any) -> str:
    """What came, in words: shapes, and names where there are any."""
    if torch.is_tensor(output):
        return str(tuple(output.shape))
    if isinstance(output, Mapping):
        return f"outputs by name: {', '.join(f'{name} {_described(part)}' for name, part in output.items())}"
    if isinstance(output, tuple | list):
        return f"{len(output)} outputs: {', '.join(map(_described, output))}"
    return type(output).__name__
