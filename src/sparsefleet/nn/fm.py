"""Factorization machines: each pair of slots counts by the product of their vectors; FwFM weighs the pairs.

Legend: B samples, S slots, D values of a vector.
"""

from __future__ import annotations

import torch
from torch import nn


def pair_products(vectors: torch.Tensor) -> torch.Tensor:
    """[B, S, D] -> [B]: the sum of <v_i, v_j> over all pairs i < j, in S rather than S² products."""
    summed = vectors.sum(1)
    return 0.5 * (summed.square().sum(1) - vectors.square().sum((1, 2)))


class WeightedPairs(nn.Module):
    """[B, S, D] -> [B]: the sum of r_ij <v_i, v_j> over all pairs i < j, with a learned r for each pair of slots."""

    def __init__(self, slots: int) -> None:
        super().__init__()
        pairs = torch.triu_indices(slots, slots, offset=1)
        self.pairs = nn.Parameter(torch.ones(pairs.shape[1]))
        # Where each pair's weight stands in a matrix [S, S]: a constant of the network, not of its state.
        self._places: torch.Tensor
        self.register_buffer("_places", pairs[0] * slots + pairs[1], persistent=False)
        self._slots = slots

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        slots = self._slots
        upper = vectors.new_zeros(slots * slots).index_copy(0, self._places, self.pairs).view(slots, slots)
        return (torch.matmul(upper, vectors) * vectors).sum((1, 2))
