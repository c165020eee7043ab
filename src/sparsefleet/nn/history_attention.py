"""DIN's attention: how much each value of a user's history says about the target, and the history weighed by it.

Legend: B samples, L values of the longest history, N values of all histories, D values of a row.
"""

from __future__ import annotations

from collections.abc import Sequence as Widths

import torch
from torch import nn

from sparsefleet.nn.deep import Deep
from sparsefleet.nn.sequence_embedding import Sequence
from sparsefleet.nn.tower import traced


class HistoryAttention(nn.Module):
    """A history [B, L, D] and a target [B, D] -> [B, D].

    A small network looks at (value, target, their difference, their product) and gives the value's weight. Weights do
    not add up to one unless `softmax`: in DIN a long, fitting history counts for more than a short one.
    """

    def __init__(self, dim: int, hidden: Widths[int], *, softmax: bool = False) -> None:
        super().__init__()
        self.softmax = softmax
        self.unit = Deep([4 * dim, *hidden, 1])

    def forward(self, history: Sequence, target: torch.Tensor) -> torch.Tensor:
        vectors, mask = history
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
