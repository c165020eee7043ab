"""Wide & Deep: a linear term beside relu layers."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from sparsefleet.core.batch import Batch
from sparsefleet.models.base import ModelInputs, SchemaModel
from sparsefleet.models.common import DeepSettings, deep_input, deep_of, deep_width, vectors_of
from sparsefleet.nn import LinearTerm, dense_input, weights_and_vectors


class WideDeep(SchemaModel):
    """Batch -> [B] logits. Crosses for the wide part are slots of the data."""

    name: ClassVar[str] = "WideDeep"
    summary = "Wide & Deep: a linear term beside relu layers; crosses for the wide part are slots of the data."
    reference = "Cheng et al., Wide & Deep Learning for Recommender Systems, DLRS 2016"
    Settings = DeepSettings

    def __init__(self, inputs: ModelInputs, settings: Any = None) -> None:
        super().__init__(inputs, settings)
        self.rows = vectors_of(inputs, self.settings, weights=True)
        self.linear = LinearTerm(inputs.dense_features)
        self.deep = deep_of(deep_width(inputs, self.settings), self.settings)

    def forward(self, batch: Batch) -> torch.Tensor:
        dense = dense_input(batch)
        weights, vectors = weights_and_vectors(self.rows(batch), len(self.inputs.slots))
        out: torch.Tensor = self.linear(weights, dense) + self.deep(deep_input(vectors, dense)).squeeze(1)
        return out
