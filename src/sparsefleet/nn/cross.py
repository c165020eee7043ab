"""The cross layers of DCN-v2: x_{l+1} = x_0 * (W x_l + b) + x_l.

Legend: B samples, d features.
"""

from __future__ import annotations

import torch
from torch import nn

from sparsefleet.nn.deep import initialise
from sparsefleet.nn.tower import DenseTower


class CrossLayers(nn.Module):
    """[B, d] -> [B, d]. `rank` above 0: W = U V with inner width `rank`, which is cheaper for a wide d."""

    def __init__(self, features: int, layers: int, rank: int = 0) -> None:
        super().__init__()
        inner = nn.ModuleList()
        for _ in range(layers):
            parts = [DenseTower([features, features])] if not rank else [nn.Linear(features, rank, bias=False)]
            inner.append(nn.Sequential(*parts, *([DenseTower([rank, features])] if rank else [])))
        self.layers = inner
        initialise(self)

    def forward(self, first: torch.Tensor) -> torch.Tensor:
        x = first
        for layer in self.layers:
            x = torch.addcmul(x, first, layer(x))
        return x
