"""DeepFM: an FM and relu layers over the same vectors."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from sparsefleet.core.batch import Batch
from sparsefleet.models.base import ModelInputs, SchemaModel
from sparsefleet.models.common import DeepSettings, deep_input, deep_of, deep_width, vectors_of
from sparsefleet.nn import LinearTerm, dense_input, pair_products, weights_and_vectors


class DeepFM(SchemaModel):
    """Batch -> [B] logits. The FM's pairs are of slots; numbers are in the linear term and in the layers."""

    name: ClassVar[str] = "DeepFM"
    summary = "DeepFM: a factorization machine and relu layers over the same vectors."
    reference = "Guo et al., DeepFM: A Factorization-Machine based Neural Network for CTR Prediction, IJCAI 2017"
    Settings = DeepSettings

    def __init__(self, inputs: ModelInputs, settings: Any = None) -> None:
        super().__init__(inputs, settings)
        self.rows = vectors_of(inputs, self.settings, weights=True)
        self.linear = LinearTerm(inputs.dense_features)
        self.deep = deep_of(deep_width(inputs, self.settings), self.settings)

    def forward(self, batch: Batch) -> torch.Tensor:
        dense = dense_input(batch)
        weights, vectors = weights_and_vectors(self.rows(batch), len(self.inputs.slots))
        shallow = self.linear(weights, dense) + pair_products(vectors)
        out: torch.Tensor = shallow + self.deep(deep_input(vectors, dense)).squeeze(1)
        return out
