"""AutoInt's interacting layer: each field attends to all fields, by several heads, and keeps what it was beside it.

Legend: B samples, F fields, D values of a field's vector, H heads, A values of a head.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from sparsefleet.nn.deep import initialise


class FieldAttention(nn.Module):
    """[B, F, D] -> [B, F, H * A]: relu(heads' sums + a linear map of the field itself)."""

    def __init__(self, dim: int, heads: int, head_dim: int, *, scale: bool = False) -> None:
        super().__init__()
        self.heads, self.head_dim = heads, head_dim
        self.scale = 1 / math.sqrt(head_dim) if scale else 1.0
        # Queries, keys, values and the way past the heads: one matrix product.
        self.project = nn.Linear(dim, 4 * heads * head_dim, bias=False)
        initialise(self)

    def forward(self, fields: torch.Tensor) -> torch.Tensor:
        made = self.project(fields).unflatten(2, (4, self.heads, self.head_dim))
        query, key, value = (made[:, :, part].transpose(1, 2) for part in range(3))  # [B, H, F, A]
        shares = torch.softmax(query @ key.transpose(2, 3) * self.scale, -1)
        attended = (shares @ value).transpose(1, 2)
        return functional.relu((attended + made[:, :, 3]).flatten(2))


class NumberFields(nn.Module):
    """[B, n] -> [B, n, D]: a vector for each number, times the number."""

    def __init__(self, dense_features: int, dim: int) -> None:
        super().__init__()
        self.vectors = nn.Parameter(torch.randn(dense_features, dim) / math.sqrt(dim) * 0.1)

    def forward(self, dense: torch.Tensor) -> torch.Tensor:
        return dense.unsqueeze(2) * self.vectors
