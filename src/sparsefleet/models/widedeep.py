"""Wide & Deep: a linear term beside relu layers."""

from __future__ import annotations

from typing import Any, ClassVar

from sparsefleet.models.base import ModelInputs, SchemaModel
from sparsefleet.models.common import DeepSettings, deep_of, deep_width, vectors_of
from sparsefleet.nn import LinearTerm, ShallowDeep


class WideDeep(ShallowDeep, SchemaModel):
    """Batch -> [B] logits. Crosses for the wide part are slots of the data."""

    name: ClassVar[str] = "WideDeep"
    summary = "Wide & Deep: a linear term beside relu layers; crosses for the wide part are slots of the data."
    reference = "Cheng et al., Wide & Deep Learning for Recommender Systems, DLRS 2016"
    Settings = DeepSettings

    def __init__(self, inputs: ModelInputs, settings: Any = None) -> None:
        SchemaModel.__init__(self, inputs, settings)
        self.rows = vectors_of(inputs, self.settings, weights=True)
        self.linear = LinearTerm(inputs.dense_features)
        self.deep = deep_of(deep_width(inputs, self.settings), self.settings)
