"""AutoInt: self-attention over fields, and relu layers beside it where they are asked for (AutoInt+)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from sparsefleet.core.batch import Batch
from sparsefleet.models.base import ModelInputs, SchemaModel
from sparsefleet.models.common import DeepSettings, deep_input, deep_of, deep_width, vectors_of
from sparsefleet.models.settings import setting
from sparsefleet.nn import FieldAttention, NumberFields, dense_input
from sparsefleet.nn.deep import initialise


@dataclass(frozen=True)
class AutoIntSettings(DeepSettings):
    embedding_size: int = setting(16, "Values of the vector that stands for a value of a slot.")
    hidden: tuple[int, ...] = setting((), "Widths of relu layers beside the attention (AutoInt+); none: AutoInt.")
    attention_layers: int = setting(3, "Interacting layers.")
    heads: int = setting(2, "Heads of each.")
    head_size: int = setting(16, "Values of a head.")

    def checks(self) -> None:
        self.require("embedding_size", self.embedding_size >= 1, "1 or above")
        self.require("init_range", 0 <= self.init_range < float("inf"), "a number, 0 or above")
        self.require("hidden", not self.hidden or min(self.hidden) >= 1, "widths of 1 or above, or none")
        self.require("dropout", 0 <= self.dropout < 1, "0 or above and below 1")
        for name in ("attention_layers", "heads", "head_size"):
            self.require(name, getattr(self, name) >= 1, "1 or above")


class AutoInt(SchemaModel):
    """Batch -> [B] logits. A field is a slot, or a number times a vector of its own."""

    name: ClassVar[str] = "AutoInt"
    summary = "AutoInt: multi-head self-attention over slots and numbers."
    reference = "Song et al., AutoInt: Automatic Feature Interaction Learning via Self-Attentive Networks, CIKM 2019"
    Settings = AutoIntSettings

    def __init__(self, inputs: ModelInputs, settings: Any = None) -> None:
        super().__init__(inputs, settings)
        chosen: AutoIntSettings = self.settings
        self.embedding = vectors_of(inputs, chosen, weights=False)
        numbers = inputs.dense_features
        self.numbers = NumberFields(numbers, chosen.embedding_size) if numbers else None
        made = chosen.heads * chosen.head_size
        widths = [chosen.embedding_size, *[made] * (chosen.attention_layers - 1)]
        self.attention = nn.Sequential(*(FieldAttention(width, chosen.heads, chosen.head_size) for width in widths))
        self.last = nn.Linear((len(inputs.slots) + numbers) * made, 1)
        initialise(self.last)
        self.deep = deep_of(deep_width(inputs, chosen), chosen) if chosen.hidden else None

    def forward(self, batch: Batch) -> torch.Tensor:
        dense, pooled = dense_input(batch), self.embedding(batch)
        fields = pooled.unflatten(1, (len(self.inputs.slots), -1))
        if self.numbers is not None:
            fields = torch.cat([fields, self.numbers(dense)], 1)
        out: torch.Tensor = self.last(self.attention(fields).flatten(1))
        if self.deep is not None:
            out = out + self.deep(deep_input(pooled, dense))
        return out.squeeze(1)
