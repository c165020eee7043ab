"""Logistic regression: a weight for each value of a slot and for each number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from sparsefleet.core.initializer import Uniform
from sparsefleet.models.base import ModelInputs, SchemaModel
from sparsefleet.models.common import TABLE
from sparsefleet.models.settings import Settings, setting
from sparsefleet.nn import LinearTerm, ShallowDeep, SparseEmbedding


@dataclass(frozen=True)
class LRSettings(Settings):
    init_range: float = setting(0.0, "New weights are uniform in [-R, R).")

    def checks(self) -> None:
        self.require("init_range", 0 <= self.init_range < float("inf"), "a number, 0 or above")


class LogisticRegression(ShallowDeep, SchemaModel):
    """Batch -> [B] logits."""

    name: ClassVar[str] = "LogisticRegression"
    summary = "Logistic regression: a weight for each value and each number; the yardstick of all others."
    reference = "McMahan et al., Ad Click Prediction: a View from the Trenches, KDD 2013"
    Settings = LRSettings

    def __init__(self, inputs: ModelInputs, settings: Any = None) -> None:
        SchemaModel.__init__(self, inputs, settings)
        reach = self.settings.init_range
        # `weights` comes first: by that name bundles call the network's input.
        self.weights = self.rows = SparseEmbedding(TABLE, 1, inputs.slots, initializer=Uniform(-reach, reach))
        self.linear = LinearTerm(inputs.dense_features)
        self.deep = None
