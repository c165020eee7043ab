"""FM: a linear term, and each pair of slots by the product of their vectors."""

from __future__ import annotations

from typing import Any, ClassVar

from sparsefleet.models.base import ModelInputs, SchemaModel
from sparsefleet.models.common import VectorSettings, vectors_of
from sparsefleet.nn import LinearTerm, ShallowDeep


class FM(ShallowDeep, SchemaModel):
    """Batch -> [B] logits. Pairs are of slots; numbers are in the linear term."""

    name: ClassVar[str] = "FM"
    summary = "Factorization machine: a linear term and all pairs of slots."
    reference = "Rendle, Factorization Machines, ICDM 2010"
    pairs = True
    Settings = VectorSettings

    def __init__(self, inputs: ModelInputs, settings: Any = None) -> None:
        SchemaModel.__init__(self, inputs, settings)
        self.rows = vectors_of(inputs, self.settings, weights=True)
        self.linear = LinearTerm(inputs.dense_features)
        self.deep = None
