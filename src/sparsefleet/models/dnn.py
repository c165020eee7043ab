"""DNN: vectors of slots beside the numbers, through relu layers, to one logit; dropout and batch norm if asked for."""

from __future__ import annotations

from typing import Any, ClassVar

from sparsefleet.models.base import ModelInputs, SchemaModel
from sparsefleet.models.common import DeepSettings, deep_of, deep_width, vectors_of
from sparsefleet.nn import PooledTower


class DNN(PooledTower, SchemaModel):
    """Batch -> [B, 1] logits. Without dropout and batch norm it trains without autograd, as CTRDNN does."""

    name: ClassVar[str] = "DNN"
    summary = "Relu layers over vectors and numbers, one logit, with dropout and batch norm (ctr_dnn has neither)."
    reference = "Covington et al., Deep Neural Networks for YouTube Recommendations, RecSys 2016"
    Settings = DeepSettings

    def __init__(self, inputs: ModelInputs, settings: Any = None) -> None:
        SchemaModel.__init__(self, inputs, settings)
        self.embedding = vectors_of(inputs, self.settings, weights=False)
        deep = deep_of(deep_width(inputs, self.settings), self.settings)
        self.tower = deep.tower if deep.plain else deep  # type: ignore[assignment]  # then autograd trains it
