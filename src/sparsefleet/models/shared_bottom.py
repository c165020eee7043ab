"""Shared bottom: relu layers that all labels share, and a stack of its own for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import functional

from sparsefleet.core.batch import Batch
from sparsefleet.models.base import ModelInputs, SchemaModel
from sparsefleet.models.common import DeepSettings, deep_input, deep_of, deep_width, vectors_of
from sparsefleet.models.settings import setting
from sparsefleet.nn import dense_input


@dataclass(frozen=True)
class SharedBottomSettings(DeepSettings):
    hidden: tuple[int, ...] = setting((400, 400), "Widths of the relu layers that the labels share.")
    towers: tuple[int, ...] = setting((128,), "Widths of each label's own relu layers.")

    def checks(self) -> None:
        super().checks()
        self.require("towers", not self.towers or min(self.towers) >= 1, "widths of 1 or above, or none")


class SharedBottom(SchemaModel):
    """Batch -> [B, L] logits, one for each label."""

    name: ClassVar[str] = "SharedBottom"
    summary = "Several labels: relu layers that all share, and a stack of its own for each label."
    reference = "Caruana, Multitask Learning, Machine Learning 28, 1997"
    Settings = SharedBottomSettings
    many_labels = True

    def __init__(self, inputs: ModelInputs, settings: Any = None) -> None:
        super().__init__(inputs, settings)
        chosen: SharedBottomSettings = self.settings
        self.embedding = vectors_of(inputs, chosen, weights=False)
        self.bottom = deep_of(deep_width(inputs, chosen), chosen, outputs=None)
        self.towers = nn.ModuleList(deep_of(chosen.hidden[-1], chosen, hidden=chosen.towers) for _ in inputs.labels)

    def forward(self, batch: Batch) -> torch.Tensor:
        shared = functional.relu(self.bottom(deep_input(self.embedding(batch), dense_input(batch))))
        return torch.cat([tower(shared) for tower in self.towers], 1)
