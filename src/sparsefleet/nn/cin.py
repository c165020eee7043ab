"""The compressed interaction network of xDeepFM: products of vectors, value by value, compressed layer after layer.

Legend: B samples, S slots, D values of a vector, H maps of a layer.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from sparsefleet.nn.deep import initialise
from sparsefleet.nn.tower import DenseTower


class CompressedInteractions(nn.Module):
    """[B, S, D] -> [B, sum of H]: each layer's maps, summed over the D values.

    A layer multiplies each of its H maps with each of the S vectors and mixes the H * S products into the next maps.
    Vectors are turned to [B * D, S], so that mixing is one matrix product over all samples and values.
    """

    def __init__(self, slots: int, maps: Sequence[int]) -> None:
        super().__init__()
        before = [slots, *maps[:-1]]
        self.mixing = nn.ModuleList(DenseTower([width * slots, made]) for width, made in zip(before, maps, strict=True))
        initialise(self)

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        dim = vectors.shape[2]
        first = vectors.transpose(1, 2).flatten(0, 1)  # [B * D, S]
        x, out = first, []
        for mix in self.mixing:
            products = (x.unsqueeze(2) * first.unsqueeze(1)).flatten(1)  # [B * D, H * S]
            x = mix(products)
            out.append(x.unflatten(0, (-1, dim)).sum(1))
        return torch.cat(out, 1)
