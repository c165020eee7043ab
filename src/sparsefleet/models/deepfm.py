"""DeepFM: an FM and relu layers over the same vectors."""

from __future__ import annotations

from typing import Any, ClassVar

from sparsefleet.models.base import ModelInputs, SchemaModel
from sparsefleet.models.common import DeepSettings, deep_of, deep_width, vectors_of
from sparsefleet.nn import LinearTerm, ShallowDeep


class DeepFM(ShallowDeep, SchemaModel):
    """Batch -> [B] logits. The FM's pairs are of slots; numbers are in the linear term and in the layers."""

    name: ClassVar[str] = "DeepFM"
    summary = "DeepFM: a factorization machine and relu layers over the same vectors."
    reference = "Guo et al., DeepFM: A Factorization-Machine based Neural Network for CTR Prediction, IJCAI 2017"
    pairs = True
    Settings = DeepSettings

    def __init__(self, inputs: ModelInputs, settings: Any = None) -> None:
        SchemaModel.__init__(self, inputs, settings)
        self.rows = vectors_of(inputs, self.settings, weights=True)
        self.linear = LinearTerm(inputs.dense_features)
        self.deep = deep_of(deep_width(inputs, self.settings), self.settings)
