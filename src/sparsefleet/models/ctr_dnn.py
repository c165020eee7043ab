"""CTR-DNN: the seeds' network. One shared table, pooled slots beside the dense features, three relu layers, softmax."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from torch import nn

from sparsefleet.core.errors import ConfigError
from sparsefleet.core.initializer import Initializer, Uniform, from_list
from sparsefleet.core.schema import CRITEO, Schema
from sparsefleet.models.base import Rebuildable
from sparsefleet.models.settings import Settings, setting
from sparsefleet.nn import DenseTower, PooledTower, SparseEmbedding

TABLE = "SparseFeatFactors"


@dataclass(frozen=True)
class CTRDNNConfig:
    embedding_size: int = 10
    """Values in a row of the table."""
    hidden: tuple[int, ...] = (400, 400, 400)
    """Widths of the relu layers."""
    initializer: Initializer = field(default_factory=lambda: Uniform(-0.01, 0.01))
    """How rows start. ±0.01 learns far better than the seeds' ±1 (docs/defaults.md has the measurement)."""
    pooling: str = "sum"

    def __post_init__(self) -> None:
        if self.embedding_size < 1:
            raise ConfigError(f"embedding_size={self.embedding_size} must be 1 or above")
        if not self.hidden or min(self.hidden) < 1:
            raise ConfigError(f"hidden={self.hidden}: at least one layer, each of width 1 or above")


PRESETS = {
    "default": CTRDNNConfig(),
    "paddle": CTRDNNConfig(initializer=Uniform(-1.0, 1.0)),
}
"""`paddle` is the seeds' network to the letter: plain Uniform() there means [-1, 1]."""


@dataclass(frozen=True)
class CTRDNNSettings(Settings):
    """The settings of `CTRDNNConfig` as a command line has them."""

    embedding_size: int = setting(PRESETS["default"].embedding_size, "Values in a row of the table.")
    hidden: tuple[int, ...] = setting(PRESETS["default"].hidden, "Widths of the relu layers.")
    init_range: float = setting(0.01, "New rows are uniform in [-R, R).")
    pooling: str = setting("sum", "How a slot's values become one vector.", ("sum", "mean"))

    def checks(self) -> None:
        self.require("init_range", 0 <= self.init_range < math.inf, "a number, 0 or above")


class CTRDNN(PooledTower, Rebuildable):
    """Batch -> [B, 2] softmax logits (no click, click)."""

    name: ClassVar[str] = "CTRDNN"
    summary: ClassVar[str] = (
        "CTR-DNN, Fleet's network: relu layers over pooled slots and numbers, softmax of two; fastest."
    )
    reference: ClassVar[str] = "PaddlePaddle, CTR-DNN of the Fleet examples"
    Settings: ClassVar[type[Settings]] = CTRDNNSettings

    def __init__(
        self,
        slots: Sequence[str] = CRITEO.slot_names,
        dense_features: int = len(CRITEO.dense),
        config: CTRDNNConfig | None = None,
    ) -> None:
        super().__init__()
        self.config = config = config or CTRDNNConfig()
        self.dense_features = dense_features
        self.embedding = SparseEmbedding(
            TABLE, config.embedding_size, slots, pooling=config.pooling, initializer=config.initializer
        )
        self.tower = DenseTower([len(slots) * config.embedding_size + dense_features, *config.hidden, 2])
        for layer in self.tower.linear_layers():
            nn.init.normal_(layer.weight, std=1 / math.sqrt(layer.in_features))
            nn.init.zeros_(layer.bias)

    @classmethod
    def from_schema(cls, schema: Schema, **settings: Any) -> Self:
        if len(labels := schema.labels) > 1:
            raise ConfigError(
                f"CTRDNN learns one label; the schema has {', '.join(labels)}: choose a model for several labels "
                "(sparsefleet models), or keep one label in the schema"
            )
        chosen = CTRDNNSettings(**settings)
        initializer = Uniform(-chosen.init_range, chosen.init_range)
        config = CTRDNNConfig(chosen.embedding_size, chosen.hidden, initializer, chosen.pooling)
        return cls(schema.slot_names, len(schema.dense), config)

    def describe(self) -> dict[str, Any]:
        return {
            "slots": list(self.embedding.slots),
            "dense_features": self.dense_features,
            "embedding_size": self.config.embedding_size,
            "hidden": list(self.config.hidden),
            "pooling": self.config.pooling,
            "initializer": self.config.initializer.to_list(),
        }

    @classmethod
    def build(cls, description: Mapping[str, Any]) -> Self:
        config = CTRDNNConfig(
            embedding_size=description["embedding_size"],
            hidden=tuple(description["hidden"]),
            initializer=from_list(description["initializer"]),
            pooling=description["pooling"],
        )
        return cls(description["slots"], description["dense_features"], config)
