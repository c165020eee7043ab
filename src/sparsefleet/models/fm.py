"""FM: a linear term, and each pair of slots by the product of their vectors."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from sparsefleet.core.batch import Batch
from sparsefleet.models.base import ModelInputs, SchemaModel
from sparsefleet.models.common import VectorSettings, vectors_of
from sparsefleet.nn import LinearTerm, dense_input, pair_products, weights_and_vectors


class FM(SchemaModel):
    """Batch -> [B] logits. Pairs are of slots; numbers are in the linear term."""

    name: ClassVar[str] = "FM"
    summary = "Factorization machine: a linear term and all pairs of slots."
    reference = "Rendle, Factorization Machines, ICDM 2010"
    Settings = VectorSettings

    def __init__(self, inputs: ModelInputs, settings: Any = None) -> None:
        super().__init__(inputs, settings)
        self.rows = vectors_of(inputs, self.settings, weights=True)
        self.linear = LinearTerm(inputs.dense_features)

    def forward(self, batch: Batch) -> torch.Tensor:
        weights, vectors = weights_and_vectors(self.rows(batch), len(self.inputs.slots))
        out: torch.Tensor = self.linear(weights, dense_input(batch)) + pair_products(vectors)
        return out
