"""AutoInt's interacting layer: each field attends to all fields, by several heads, and keeps what it was beside it.

Legend: B samples, F fields, D values of a field's vector, H heads, A values of a head.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from sparsefleet.core.batch import F32
from sparsefleet.core.errors import ConfigError
from sparsefleet.kernels import layers as kernels
from sparsefleet.nn.deep import initialise
from sparsefleet.nn.tower import ParameterGradient, Workspace, empty, own_nodes, plain, take_workspace


class FieldAttention(nn.Module):
    """[B, F, D] -> [B, F, H * A]: relu(heads' sums + a linear map of the field itself).

    One autograd node over our own kernel, which has what belongs to some samples in the cache from the linear map to
    the sums; it is float32 with bf16 too. For an exporter and layer by layer it is torch's operations.
    """

    def __init__(self, dim: int, heads: int, head_dim: int, *, scale: bool = False) -> None:
        super().__init__()
        self.heads, self.head_dim = heads, head_dim
        self.scale = 1 / math.sqrt(head_dim) if scale else 1.0
        # Queries, keys, values and the way past the heads: one matrix product.
        self.project = nn.Linear(dim, 4 * heads * head_dim, bias=False)
        self._free: list[Workspace[kernels.FieldAttention]] = []
        initialise(self)

    def forward(self, fields: torch.Tensor) -> torch.Tensor:
        weight = self.project.weight
        if own_nodes(fields) and plain(weight):
            if fields.dim() != 3 or fields.shape[2] != weight.shape[1]:
                raise ConfigError(
                    f"this FieldAttention takes [samples, fields, {weight.shape[1]}]; the input is {list(fields.shape)}"
                )
            sizes = (fields.shape[1], fields.shape[2], self.heads, self.head_dim)
            out: torch.Tensor = _Attention.apply(fields, weight, self._free, sizes, self.scale)  # type: ignore[no-untyped-call]
            return out
        made = self.project(fields).unflatten(2, (4, self.heads, self.head_dim))
        query, key, value = (made[:, :, part].transpose(1, 2) for part in range(3))  # [B, H, F, A]
        shares = torch.softmax(query @ key.transpose(2, 3) * self.scale, -1)
        attended = (shares @ value).transpose(1, 2)
        return functional.relu((attended + made[:, :, 3]).flatten(2))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_free": []}  # a copy of the module makes its own buffers


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        fields: torch.Tensor,
        weight: torch.Tensor,
        free: list[Workspace[kernels.FieldAttention]],
        sizes: tuple[int, int, int, int],
        scale: float,
    ) -> torch.Tensor:
        many, _, heads, head_dim = sizes
        values: F32 = fields.detach().float().contiguous().numpy()
        out = empty(len(fields), many, heads * head_dim)
        # The kernel keeps nothing of its samples, so one workspace serves batches of all sizes.
        take = partial(take_workspace, free, sizes, partial(kernels.FieldAttention, *sizes, scale))
        workspace = take()
        workspace.space.forward(values, weight.detach().numpy(), out.numpy())
        free.append(workspace)
        ctx.values, ctx.weight, ctx.free, ctx.take = values, weight, free, take
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        (out,) = ctx.saved_tensors
        workspace = ctx.take()
        gradient = ParameterGradient(ctx.weight, workspace, 0)
        grad_fields = empty(*ctx.values.shape)
        workspace.space.backward(
            ctx.values,
            ctx.weight.detach().numpy(),
            out.detach().numpy(),
            grad.float().contiguous().numpy(),
            gradient.buffer.numpy(),
            grad_fields.numpy(),
        )
        gradient.hand_over()
        ctx.free.append(workspace)
        return grad_fields, None, None, None, None


class NumberFields(nn.Module):
    """[B, n] -> [B, n, D]: a vector for each number, times the number."""

    def __init__(self, dense_features: int, dim: int) -> None:
        super().__init__()
        self.vectors = nn.Parameter(torch.randn(dense_features, dim) / math.sqrt(dim) * 0.1)

    def forward(self, dense: torch.Tensor) -> torch.Tensor:
        return dense.unsqueeze(2) * self.vectors
