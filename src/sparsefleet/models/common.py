"""What several of our models share: settings, the table, and what goes into a deep part.

Legend: B samples, S slots, D values of a vector, n numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from sparsefleet.core.initializer import Uniform
from sparsefleet.models.base import ModelInputs
from sparsefleet.models.settings import Settings, setting
from sparsefleet.nn import Deep, SparseEmbedding

TABLE = "features"
"""All slots share one table: their keys differ, for a slot's name is hashed with its values."""


@dataclass(frozen=True)
class VectorSettings(Settings):
    embedding_size: int = setting(10, "Values of the vector that stands for a value of a slot.")
    init_range: float = setting(0.01, "New rows of the table are uniform in [-R, R).")

    def checks(self) -> None:
        self.require("embedding_size", self.embedding_size >= 1, "1 or above")
        self.require("init_range", 0 <= self.init_range < float("inf"), "a number, 0 or above")


@dataclass(frozen=True)
class DeepSettings(VectorSettings):
    hidden: tuple[int, ...] = setting((400, 400, 400), "Widths of the relu layers.")
    dropout: float = setting(0.0, "Share of each relu layer's outputs that a training step leaves out.")
    batch_norm: bool = setting(False, "Normalise each relu layer's inputs over the batch.")

    def checks(self) -> None:
        super().checks()
        self.require("hidden", bool(self.hidden) and min(self.hidden) >= 1, "at least one width, each 1 or above")
        self.require("dropout", 0 <= self.dropout < 1, "0 or above and below 1")


def vectors_of(inputs: ModelInputs, settings: VectorSettings, *, weights: bool) -> SparseEmbedding:
    """The embedding of all slots; `weights`: each row begins with the weight of the linear term."""
    return embedding(inputs.slots, settings, weights=weights)


def embedding(slots: Sequence[str], settings: VectorSettings, *, weights: bool = False) -> SparseEmbedding:
    reach = settings.init_range
    return SparseEmbedding(TABLE, settings.embedding_size + weights, slots, initializer=Uniform(-reach, reach))


def deep_of(
    features: int, settings: DeepSettings, outputs: int | None = 1, hidden: Sequence[int] | None = None
) -> Deep:
    """The relu layers over so many features, and a linear one to the outputs; None: without that one."""
    widths = [*(settings.hidden if hidden is None else hidden), *([] if outputs is None else [outputs])]
    return Deep([features, *widths], dropout=settings.dropout, batch_norm=settings.batch_norm)


def deep_input(vectors: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
    """Vectors [B, S, D] or [B, S * D] beside the numbers [B, n]."""
    return torch.cat([vectors.flatten(1), dense], 1)


def deep_width(inputs: ModelInputs, settings: VectorSettings) -> int:
    return len(inputs.slots) * settings.embedding_size + inputs.dense_features
