"""The linear term that logistic regression, FM and their descendants share: a weight for each value and each number.

A value's weight stands in the same row as its vector, first: one table, and a batch asks for each row once.

Legend: B samples, S slots, D values of a vector, n numbers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from sparsefleet.nn.tower import own_nodes


def weights_and_vectors(pooled: torch.Tensor, slots: int) -> tuple[torch.Tensor, torch.Tensor]:
    """[B, S * (1 + D)] as an embedding gives it -> weights [B, S] and vectors [B, S, D]."""
    rows = pooled.reshape(pooled.shape[0], slots, -1)
    if own_nodes(pooled):
        parts: tuple[torch.Tensor, torch.Tensor] = _Split.apply(rows)  # type: ignore[no-untyped-call]
        return parts
    return rows[:, :, 0], rows[:, :, 1:]


class _Split(torch.autograd.Function):
    """Backward puts both gradients side by side; torch would make a whole array of zeros for each, and add them."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return rows[:, :, 0], rows[:, :, 1:]

    @staticmethod
    def backward(ctx: Any, of_weights: torch.Tensor, of_vectors: torch.Tensor) -> torch.Tensor:
        return torch.cat([of_weights.unsqueeze(2), of_vectors], 2)


class LinearTerm(nn.Module):
    """Weights of values [B, S] and numbers [B, n] -> [B]: their sum, and a bias."""

    def __init__(self, dense_features: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1))
        self.numbers = nn.Parameter(torch.zeros(dense_features)) if dense_features else None

    def forward(self, weights: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
        out = weights.sum(1) + self.bias
        return out if self.numbers is None else out + dense @ self.numbers
