"""A mixture of experts for several labels (MMoE): shared stacks of layers, and for each label a gate that weighs them.

Legend: B samples, d features, E experts, W width of an expert's output.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from sparsefleet.core.batch import F32
from sparsefleet.kernels import layers as kernels
from sparsefleet.nn.deep import Deep, initialise
from sparsefleet.nn.tower import empty, own_nodes


class GatedExperts(nn.Module):
    """[B, d] -> for each gate [B, W]: the experts' outputs, weighed by softmax of a linear map of the input.

    Relu, softmax and sums are one autograd node over our own kernel; for an exporter and layer by layer they are
    torch's operations.
    """

    def __init__(
        self,
        features: int,
        widths: Sequence[int],
        experts: int,
        gates: int,
        *,
        dropout: float = 0.0,
        batch_norm: bool = False,
    ) -> None:
        super().__init__()
        self.experts = nn.ModuleList(
            Deep([features, *widths], dropout=dropout, batch_norm=batch_norm) for _ in range(experts)
        )
        self.gates = nn.ModuleList(nn.Linear(features, experts) for _ in range(gates))
        initialise(self.gates)

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        outputs, logits = [expert(x) for expert in self.experts], [gate(x) for gate in self.gates]
        if own_nodes(x):
            return list(_Mixture.apply(len(outputs), *outputs, *logits))  # type: ignore[no-untyped-call]
        made = functional.relu(torch.stack(outputs, 1))  # [B, E, W]
        shares = [torch.softmax(each, 1) for each in logits]
        return [(share.unsqueeze(2) * made).sum(1) for share in shares]


class _Mixture(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, experts: int, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """given: the outputs of so many experts, then the logits of the gates."""
        arrays = [_array(each) for each in given]
        made, logits = arrays[:experts], arrays[experts:]
        shares = [empty(*each.shape).numpy() for each in logits]
        mixed = tuple(empty(*made[0].shape) for _ in logits)
        kernels.mix_forward(made, logits, shares, [each.numpy() for each in mixed])
        ctx.made, ctx.shares, ctx.types = made, shares, [each.dtype for each in given]
        return mixed

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        out = [empty(*each.shape) for each in (*ctx.made, *ctx.shares)]
        arrays = [each.numpy() for each in out]
        experts = len(ctx.made)
        kernels.mix_backward(ctx.made, ctx.shares, list(map(_array, grads)), arrays[:experts], arrays[experts:])
        return (None, *(each.to(kind) for each, kind in zip(out, ctx.types, strict=True)))


def _array(tensor: torch.Tensor) -> F32:
    """As a kernel reads it."""
    values: F32 = tensor.detach().float().contiguous().numpy()
    return values
