"""Factorization machines: each pair of slots counts by the product of their vectors; FwFM weighs the pairs.

Their gradients are known on paper, and cheaper than what autograd derives: a node of our own for each.

Legend: B samples, S slots, D values of a vector.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from sparsefleet.nn.tower import own_nodes


def pair_products(vectors: torch.Tensor) -> torch.Tensor:
    """[B, S, D] -> [B]: the sum of <v_i, v_j> over all pairs i < j, in S rather than S² products."""
    if own_nodes(vectors):
        products: torch.Tensor = _PairProducts.apply(vectors)  # type: ignore[no-untyped-call]
        return products
    return _pair_products(vectors, vectors.sum(1))


def _pair_products(vectors: torch.Tensor, summed: torch.Tensor) -> torch.Tensor:
    return 0.5 * (summed.square().sum(1) - vectors.square().sum((1, 2)))


class _PairProducts(torch.autograd.Function):
    """The gradient of v_i is the sum of all other vectors."""

    @staticmethod
    def forward(ctx: Any, vectors: torch.Tensor) -> torch.Tensor:
        summed = vectors.sum(1)
        ctx.save_for_backward(vectors, summed)
        return _pair_products(vectors, summed)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        vectors, summed = ctx.saved_tensors
        others: torch.Tensor = summed.unsqueeze(1) - vectors
        return others.mul_(grad.view(-1, 1, 1))


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
        if own_nodes(vectors):
            weighted: torch.Tensor = _WeightedProducts.apply(vectors, self.pairs, self._places)  # type: ignore[no-untyped-call]
            return weighted
        upper = vectors.new_zeros(slots * slots).index_copy(0, self._places, self.pairs).view(slots, slots)
        return (torch.matmul(upper, vectors) * vectors).sum((1, 2))


class _WeightedProducts(torch.autograd.Function):
    """With R symmetric, its diagonal 0: half of sum x (R x), whose gradient is R x: forward has made it already.

    Values are turned to [B * D, S], so that R x is one matrix product over all samples and values.
    """

    @staticmethod
    def forward(ctx: Any, vectors: torch.Tensor, pairs: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        samples, slots, dim = vectors.shape
        upper = vectors.new_zeros(slots * slots).index_copy(0, places, pairs).view(slots, slots)
        x = vectors.transpose(1, 2).reshape(-1, slots).contiguous()
        made = (x @ (upper + upper.T)).to(x.dtype)
        ctx.save_for_backward(x, made, places)
        ctx.dim = dim
        return 0.5 * (made * x).view(samples, -1).sum(1)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        x, made, places = ctx.saved_tensors
        each = grad.view(-1, 1, 1)
        of_pairs = x.T @ (x.view(len(grad), -1, x.shape[1]) * each).view_as(x)
        of_vectors = (made.view(len(grad), ctx.dim, -1) * each).transpose(1, 2)
        return of_vectors, of_pairs.flatten().index_select(0, places), None
