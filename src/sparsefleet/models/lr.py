"""Logistic regression: a weight for each value of a slot and for each number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from sparsefleet.core.batch import Batch
from sparsefleet.core.initializer import Uniform
from sparsefleet.models.base import ModelInputs, SchemaModel
from sparsefleet.models.common import TABLE
from sparsefleet.models.settings import Settings, setting
from sparsefleet.nn import LinearTerm, SparseEmbedding, dense_input


@dataclass(frozen=True)
class LRSettings(Settings):
    init_range: float = setting(0.0, "New weights are uniform in [-R, R).")

    def checks(self) -> None:
        self.require("init_range", 0 <= self.init_range < float("inf"), "a number, 0 or above")


class LogisticRegression(SchemaModel):
    """Batch -> [B] logits."""

    name: ClassVar[str] = "LogisticRegression"
    summary = "Logistic regression: a weight for each value and each number; the yardstick of all others."
    reference = "McMahan et al., Ad Click Prediction: a View from the Trenches, KDD 2013"
    Settings = LRSettings

    def __init__(self, inputs: ModelInputs, settings: Any = None) -> None:
        super().__init__(inputs, settings)
        reach = self.settings.init_range
        self.weights = SparseEmbedding(TABLE, 1, inputs.slots, initializer=Uniform(-reach, reach))
        self.linear = LinearTerm(inputs.dense_features)

    def forward(self, batch: Batch) -> torch.Tensor:
        out: torch.Tensor = self.linear(self.weights(batch), dense_input(batch))
        return out
