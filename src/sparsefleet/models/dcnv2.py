"""DCN-v2: cross layers and relu layers over vectors and numbers, side by side or one on the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from sparsefleet.core.batch import Batch
from sparsefleet.models.base import ModelInputs, SchemaModel
from sparsefleet.models.common import DeepSettings, deep_input, deep_of, deep_width, vectors_of
from sparsefleet.models.settings import setting
from sparsefleet.nn import CrossLayers, dense_input
from sparsefleet.nn.deep import initialise


@dataclass(frozen=True)
class DCNv2Settings(DeepSettings):
    cross_layers: int = setting(3, "Cross layers: a layer more is an order of interactions more.")
    rank: int = setting(0, "Inner width of each cross layer's matrix; 0: the full matrix.")
    structure: str = setting(
        "parallel",
        "parallel: both parts over the input; stacked: relu layers over the crosses.",
        ("parallel", "stacked"),
    )

    def checks(self) -> None:
        super().checks()
        self.require("cross_layers", self.cross_layers >= 1, "1 or above")
        self.require("rank", self.rank >= 0, "0 or above")


class DCNv2(SchemaModel):
    """Batch -> [B] logits. Side by side, the last layer over both parts is the sum of one over each."""

    name: ClassVar[str] = "DCNv2"
    summary = "Deep & Cross network, version 2: explicit crosses of all features beside relu layers."
    reference = "Wang et al., DCN V2: Improved Deep & Cross Network, WWW 2021"
    Settings = DCNv2Settings

    def __init__(self, inputs: ModelInputs, settings: Any = None) -> None:
        super().__init__(inputs, settings)
        width = deep_width(inputs, self.settings)
        self.embedding = vectors_of(inputs, self.settings, weights=False)
        self.cross = CrossLayers(width, self.settings.cross_layers, self.settings.rank)
        self.deep = deep_of(width, self.settings)
        self.crossed = torch.nn.Linear(width, 1, bias=False) if self.settings.structure == "parallel" else None
        if self.crossed is not None:
            initialise(self.crossed)

    def forward(self, batch: Batch) -> torch.Tensor:
        x = deep_input(self.embedding(batch), dense_input(batch))
        crossed = self.cross(x)
        out: torch.Tensor = self.deep(crossed) if self.crossed is None else self.deep(x) + self.crossed(crossed)
        return out.squeeze(1)
