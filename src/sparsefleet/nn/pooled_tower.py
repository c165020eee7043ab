"""PooledTower: pooled slots beside the dense features, through a tower; the network that trains without autograd."""

from __future__ import annotations

import torch
from torch import nn

from sparsefleet.core.batch import Batch
from sparsefleet.nn.embedding import SparseEmbedding
from sparsefleet.nn.inputs import dense_input
from sparsefleet.nn.tower import DenseTower


class PooledTower(nn.Module):
    """Batch -> [B, width of the tower's output]. Subclasses make `embedding` and `tower`.

    A trainer knows this network by heart and trains it without autograd (`nn/direct_pass.py`). A subclass may do as it
    likes: with a `forward` or a `loss` of its own it is a model like any other.
    """

    embedding: SparseEmbedding
    tower: DenseTower

    def forward(self, batch: Batch) -> torch.Tensor:
        x = torch.cat([self.embedding(batch), dense_input(batch)], dim=1)
        out: torch.Tensor = self.tower(x)
        return out
