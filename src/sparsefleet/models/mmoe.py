"""MMoE: experts that all labels share, and for each label a gate that weighs them and a stack of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from sparsefleet.core.batch import Batch
from sparsefleet.models.base import ModelInputs, SchemaModel
from sparsefleet.models.common import DeepSettings, deep_input, deep_of, deep_width, vectors_of
from sparsefleet.models.settings import setting
from sparsefleet.nn import GatedExperts, dense_input


@dataclass(frozen=True)
class MMoESettings(DeepSettings):
    hidden: tuple[int, ...] = setting((256, 128), "Widths of the relu layers of an expert.")
    experts: int = setting(4, "Experts.")
    towers: tuple[int, ...] = setting((64,), "Widths of each label's own relu layers.")

    def checks(self) -> None:
        super().checks()
        self.require("experts", self.experts >= 1, "1 or above")
        self.require("towers", not self.towers or min(self.towers) >= 1, "widths of 1 or above, or none")


class MMoE(SchemaModel):
    """Batch -> [B, L] logits, one for each label."""

    name: ClassVar[str] = "MMoE"
    summary = "Several labels: shared experts, weighed for each label by a gate of its own."
    reference = (
        "Ma et al., Modeling Task Relationships in Multi-task Learning with Multi-gate Mixture-of-Experts, KDD 2018"
    )
    Settings = MMoESettings
    many_labels = True

    def __init__(self, inputs: ModelInputs, settings: Any = None) -> None:
        super().__init__(inputs, settings)
        chosen: MMoESettings = self.settings
        self.embedding = vectors_of(inputs, chosen, weights=False)
        self.experts = GatedExperts(
            deep_width(inputs, chosen),
            chosen.hidden,
            chosen.experts,
            len(inputs.labels),
            dropout=chosen.dropout,
            batch_norm=chosen.batch_norm,
        )
        self.towers = nn.ModuleList(deep_of(chosen.hidden[-1], chosen, hidden=chosen.towers) for _ in inputs.labels)

    def forward(self, batch: Batch) -> torch.Tensor:
        mixed = self.experts(deep_input(self.embedding(batch), dense_input(batch)))
        return torch.cat([tower(each) for tower, each in zip(self.towers, mixed, strict=True)], 1)
