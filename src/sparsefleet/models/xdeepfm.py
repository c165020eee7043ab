"""xDeepFM: a linear term, a compressed interaction network and relu layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from sparsefleet.core.batch import Batch
from sparsefleet.models.base import ModelInputs, SchemaModel
from sparsefleet.models.common import DeepSettings, deep_input, deep_of, deep_width, vectors_of
from sparsefleet.models.settings import setting
from sparsefleet.nn import CompressedInteractions, LinearTerm, dense_input, weights_and_vectors
from sparsefleet.nn.deep import initialise


@dataclass(frozen=True)
class XDeepFMSettings(DeepSettings):
    cin: tuple[int, ...] = setting((16, 16, 16), "Maps of each layer of the compressed interaction network.")

    def checks(self) -> None:
        super().checks()
        self.require("cin", bool(self.cin) and min(self.cin) >= 1, "at least one layer, each of 1 map or more")


class XDeepFM(SchemaModel):
    """Batch -> [B] logits. Interactions are of slots; numbers are in the linear term and in the layers."""

    name: ClassVar[str] = "XDeepFM"
    summary = "xDeepFM: a linear term, explicit interactions of vectors (CIN) and relu layers."
    reference = "Lian et al., xDeepFM: Combining Explicit and Implicit Feature Interactions, KDD 2018"
    Settings = XDeepFMSettings

    def __init__(self, inputs: ModelInputs, settings: Any = None) -> None:
        super().__init__(inputs, settings)
        self.rows = vectors_of(inputs, self.settings, weights=True)
        self.linear = LinearTerm(inputs.dense_features)
        self.cin = CompressedInteractions(len(inputs.slots), self.settings.cin)
        self.compressed = torch.nn.Linear(sum(self.settings.cin), 1, bias=False)
        initialise(self.compressed)
        self.deep = deep_of(deep_width(inputs, self.settings), self.settings)

    def forward(self, batch: Batch) -> torch.Tensor:
        dense = dense_input(batch)
        weights, vectors = weights_and_vectors(self.rows(batch), len(self.inputs.slots))
        both = self.deep(deep_input(vectors, dense)) + self.compressed(self.cin(vectors))
        out: torch.Tensor = self.linear(weights, dense) + both.squeeze(1)
        return out
