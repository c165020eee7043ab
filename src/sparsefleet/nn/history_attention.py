"""DIN's attention: how much each value of a user's history says about the target, and the history weighed by it.

Legend: B samples, L values of the longest history, N values of all histories, D values of a row.
"""

from __future__ import annotations

from collections.abc import Sequence as Widths
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from sparsefleet.core.batch import F32
from sparsefleet.kernels import layers as kernels
from sparsefleet.nn.deep import Deep
from sparsefleet.nn.precision import tower_in_half
from sparsefleet.nn.sequence_embedding import Sequence
from sparsefleet.nn.tower import ParameterGradient, Workspace, empty, own_nodes, plain, take_workspace, traced


class HistoryAttention(nn.Module):
    """A history [B, L, D] and a target [B, D] -> [B, D].

    A small network looks at (value, target, their difference, their product) and gives the value's weight. Weights do
    not add up to one unless `softmax`: in DIN a long, fitting history counts for more than a short one.

    Without `softmax` it is one autograd node over our own kernel, which goes through some values at a time. With
    `softmax`, with bf16, for an exporter and layer by layer it is torch's operations around the network.
    """

    def __init__(self, dim: int, hidden: Widths[int], *, softmax: bool = False) -> None:
        super().__init__()
        self.softmax = softmax
        self.unit = Deep([4 * dim, *hidden, 1])
        self._free: list[Workspace[kernels.HistoryAttention]] = []

    def forward(self, history: Sequence, target: torch.Tensor) -> torch.Tensor:
        vectors, mask = history
        layers = self.unit.tower.linear_layers()
        parameters = [p for layer in layers for p in (layer.weight, layer.bias)]
        if own_nodes(vectors) and not self.softmax and not tower_in_half() and all(map(plain, parameters)):
            out: torch.Tensor = _Attention.apply(vectors, target, mask, self._free, *parameters)  # type: ignore[no-untyped-call]
            return out
        beside = target.unsqueeze(1).expand_as(vectors)
        if traced(vectors):
            weights = self._weights(vectors, beside)
        else:
            # Histories are of all lengths: only what is there goes through the network.
            weights = vectors.new_zeros(mask.shape).masked_scatter(mask, self._weights(vectors[mask], beside[mask]))
        if self.softmax:
            weights = weights.masked_fill(~mask, -1e9).softmax(1)
        weights = weights * mask
        return (weights.unsqueeze(2) * vectors).sum(1)

    def _weights(self, value: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        seen = torch.cat([value, target, value - target, value * target], -1)
        out: torch.Tensor = self.unit(seen).squeeze(-1)
        return out

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_free": []}  # a copy of the module makes its own buffers


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        vectors: torch.Tensor,
        target: torch.Tensor,
        mask: torch.Tensor,
        free: list[Workspace[kernels.HistoryAttention]],
        *parameters: torch.Tensor,
    ) -> torch.Tensor:
        values: F32 = vectors.detach().float().contiguous().numpy()
        wanted: F32 = target.detach().float().contiguous().numpy()
        there: npt.NDArray[np.bool_] = mask.contiguous().numpy()
        arrays: list[F32] = [parameter.detach().numpy() for parameter in parameters]
        given = (values, there, wanted, arrays[0::2], arrays[1::2])
        hidden = tuple(len(bias) for bias in arrays[1:-1:2])
        # The kernel keeps nothing of its samples, so one workspace serves batches of all sizes.
        take = partial(take_workspace, free, hidden, partial(kernels.HistoryAttention, values.shape[2], hidden))
        out = empty(*wanted.shape)
        workspace = take()
        workspace.space.forward(*given, out.numpy())
        free.append(workspace)
        ctx.given, ctx.parameters, ctx.free, ctx.take = given, parameters, free, take
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        workspace = ctx.take()
        gradients = [ParameterGradient(p, workspace, index) for index, p in enumerate(ctx.parameters)]
        buffers: list[F32] = [gradient.buffer.numpy() for gradient in gradients]
        values, _, wanted, *_ = ctx.given
        grad_vectors, grad_target = empty(*values.shape), empty(*wanted.shape)
        workspace.space.backward(
            *ctx.given,
            grad.float().contiguous().numpy(),
            buffers[0::2],
            buffers[1::2],
            grad_vectors.numpy(),
            grad_target.numpy(),
        )
        for gradient in gradients:
            gradient.hand_over()
        ctx.free.append(workspace)
        return (grad_vectors, grad_target, None, None, *[None] * len(gradients))
