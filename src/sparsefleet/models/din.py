"""DIN: what of a user's history bears on the target, by attention; then relu layers over all of it."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import nn

from sparsefleet.core.batch import Batch
from sparsefleet.core.errors import ConfigError
from sparsefleet.core.initializer import Uniform
from sparsefleet.core.schema import Schema
from sparsefleet.models.base import ModelInputs, SchemaModel
from sparsefleet.models.common import TABLE, DeepSettings, deep_of, embedding
from sparsefleet.models.settings import setting
from sparsefleet.nn import HistoryAttention, SequenceEmbedding, dense_input

logger = logging.getLogger("sparsefleet.models")


@dataclass(frozen=True)
class DINSettings(DeepSettings):
    history: tuple[str, ...] = setting((), "Slots of a user's history, such as clicked items.")
    target: tuple[str, ...] = setting((), "For each history the slot of what is to be judged, such as the item.")
    max_history: int = setting(50, "The last so many values of a history count.")
    attention: tuple[int, ...] = setting((64, 16), "Widths of the relu layers that weigh a value of the history.")
    softmax: bool = setting(False, "Let the weights of a history add up to 1.")
    hidden: tuple[int, ...] = setting((400, 400, 400), "Widths of the relu layers.")

    def checks(self) -> None:
        super().checks()
        if not self.history or len(self.history) != len(self.target):
            raise ConfigError(
                f"DIN needs history slots and a target slot for each: --set history=clicked_items --set target=item; "
                f"got history={','.join(self.history) or 'none'} and target={','.join(self.target) or 'none'}"
            )
        self.require("max_history", self.max_history >= 1, "1 or above")
        self.require("attention", bool(self.attention) and min(self.attention) >= 1, "widths of 1 or above")


class DIN(SchemaModel):
    """Batch -> [B] logits.

    A history and its target are in one table, and share rows where the schema gives both slots the same hash_prefix:
    then an item is the same item in either.
    """

    name: ClassVar[str] = "DIN"
    summary = "Deep interest network: attention over slots of a user's history, by the target; then relu layers."
    reference = "Zhou et al., Deep Interest Network for Click-Through Rate Prediction, KDD 2018"
    Settings = DINSettings

    def __init__(self, inputs: ModelInputs, settings: Any = None) -> None:
        super().__init__(inputs, settings)
        chosen: DINSettings = self.settings
        for role, slots in (("history", chosen.history), ("target", chosen.target)):
            if missing := [slot for slot in slots if slot not in inputs.slots]:
                raise ConfigError(f"{role}={','.join(missing)}: the schema's slots are {', '.join(inputs.slots)}")
        pooled = tuple(slot for slot in inputs.slots if slot not in chosen.history)
        if lost := [slot for slot in chosen.target if slot not in pooled]:
            raise ConfigError(f"target={','.join(lost)} is a history too: a target is another slot")
        dim, reach = chosen.embedding_size, chosen.init_range
        self.others = embedding(pooled, chosen)
        self.histories = nn.ModuleList(
            SequenceEmbedding(TABLE, dim, slot, length=chosen.max_history, initializer=Uniform(-reach, reach))
            for slot in chosen.history
        )
        self.attention = nn.ModuleList(
            HistoryAttention(dim, chosen.attention, softmax=chosen.softmax) for _ in chosen.history
        )
        self._targets = [pooled.index(slot) for slot in chosen.target]
        self._slots = len(pooled)
        self.deep = deep_of(len(inputs.slots) * dim + inputs.dense_features, chosen)

    @classmethod
    def from_schema(cls, schema: Schema, **settings: Any) -> Self:
        model = super().from_schema(schema, **settings)
        prefixes = {slot.name: slot.prefix for slot in schema.slots}
        for history, target in zip(model.settings.history, model.settings.target, strict=True):
            if prefixes[history] != prefixes[target]:
                logger.warning(
                    "slots %s and %s hash the same value to different keys, so that an item of the history is not the "
                    "target's: give both the same hash_prefix in the schema",
                    history,
                    target,
                )
        return model

    def forward(self, batch: Batch) -> torch.Tensor:
        pooled = self.others(batch)
        slots = pooled.unflatten(1, (self._slots, -1))
        interests = [
            attend(history(batch), slots[:, place])
            for history, attend, place in zip(self.histories, self.attention, self._targets, strict=True)
        ]
        out: torch.Tensor = self.deep(torch.cat([pooled, *interests, dense_input(batch)], 1))
        return out.squeeze(1)
