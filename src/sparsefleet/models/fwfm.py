"""FwFM: FM whose pairs of slots have a learned weight each."""

from __future__ import annotations

from typing import Any, ClassVar

from sparsefleet.models.base import ModelInputs, SchemaModel
from sparsefleet.models.common import VectorSettings, vectors_of
from sparsefleet.nn import LinearTerm, ShallowDeep, WeightedPairs


class FwFM(ShallowDeep, SchemaModel):
    """Batch -> [B] logits. Pairs are of slots; numbers are in the linear term."""

    name: ClassVar[str] = "FwFM"
    summary = "Field-weighted factorization machine: FM with a weight for each pair of slots."
    reference = "Pan et al., Field-weighted Factorization Machines for CTR Prediction, WWW 2018"
    Settings = VectorSettings

    def __init__(self, inputs: ModelInputs, settings: Any = None) -> None:
        SchemaModel.__init__(self, inputs, settings)
        self.rows = vectors_of(inputs, self.settings, weights=True)
        self.linear = LinearTerm(inputs.dense_features)
        self.pairs = WeightedPairs(len(inputs.slots))
        self.deep = None
