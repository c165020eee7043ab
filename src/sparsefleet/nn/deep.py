"""Deep: a model's stack of relu layers, with batch norm and dropout where they are asked for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional

from sparsefleet.nn.tower import DenseTower


class Deep(nn.Module):
    """[B, sizes[0]] -> [B, sizes[-1]]: relu after all layers but the last, before it batch norm, behind it dropout.

    With neither it is one `DenseTower`, a single node with kernels of our own. With one of them each layer is a tower
    by itself: the matrix products stay ours, what stands between them is torch's.
    """

    def __init__(self, sizes: Sequence[int], *, dropout: float = 0.0, batch_norm: bool = False) -> None:
        super().__init__()
        self.dropout = dropout
        self.plain = not dropout and not batch_norm
        if self.plain:
            self.tower = DenseTower(sizes)
        else:
            self.linear = nn.ModuleList(DenseTower(pair) for pair in pairwise(sizes))
            inner = sizes[1:-1] if batch_norm else ()
            self.norms = nn.ModuleList(nn.BatchNorm1d(width) for width in inner)
        initialise(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.plain:
            out: torch.Tensor = self.tower(x)
            return out
        for index, layer in enumerate(self.linear):
            x = layer(x)
            if index == len(self.linear) - 1:
                break
            if self.norms:
                x = self.norms[index](x)
            x = functional.dropout(functional.relu(x), self.dropout, self.training)
        return x


def initialise(module: nn.Module) -> None:
    """Weights normal with deviation 1/sqrt(inputs), biases zero: as CTR-DNN begins."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=1 / math.sqrt(layer.in_features))
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
