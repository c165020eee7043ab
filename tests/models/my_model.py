"""A model of a user's own, as docs/models.md shows it: its file is all that commands need."""

from __future__ import annotations

from dataclasses import dataclass

import torch

import sparsefleet as sf


class MyNet(sf.models.SchemaModel):
    """Vectors and numbers through a tower, and a weight for each value."""

    @dataclass(frozen=True)
    class Settings(sf.models.Settings):
        size: int = sf.models.setting(4, "Values of a vector.")
        widths: tuple[int, ...] = sf.models.setting((16,), "Widths of the layers.")

    def __init__(self, inputs: sf.models.ModelInputs, settings: Settings | None = None) -> None:
        super().__init__(inputs, settings)
        self.wide = sf.nn.SparseEmbedding("wide", 1, inputs.slots)
        self.rows = sf.nn.SparseEmbedding(
            "mine", self.settings.size, inputs.slots, initializer=sf.nn.Uniform(-0.1, 0.1)
        )
        features = len(inputs.slots) * self.settings.size + inputs.dense_features
        self.tower = sf.nn.DenseTower([features, *self.settings.widths, 1])

    def forward(self, batch: sf.Batch) -> torch.Tensor:
        deep = self.tower(torch.cat([self.rows(batch), sf.nn.dense_input(batch)], dim=1))
        return self.wide(batch).sum(1) + deep.squeeze(1)


class ByHand(sf.Rebuildable):
    """Without a dataclass: settings are the arguments of from_schema."""

    def __init__(self, slots: list[str], size: int) -> None:
        super().__init__()
        self.slots, self.size = list(slots), size
        self.rows = sf.nn.SparseEmbedding("mine", size, slots)

    def forward(self, batch: sf.Batch) -> torch.Tensor:
        return self.rows(batch).sum(1)

    def describe(self) -> dict[str, object]:
        return {"slots": self.slots, "size": self.size}

    @classmethod
    def build(cls, description):
        return cls(description["slots"], description["size"])

    @classmethod
    def from_schema(cls, schema: sf.Schema, size: int = 2) -> ByHand:
        return cls(list(schema.slot_names), size)


class Lone(torch.nn.Module):
    """Cannot be rebuilt."""
