"""Models by name, so that a checkpoint can say which one it holds without holding code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from sparsefleet.core.errors import CheckpointError
from sparsefleet.core.initializer import Constant, Initializer, Normal, Uniform
from sparsefleet.models.ctr_dnn import CTRDNN, CTRDNNConfig

_INITIALIZERS: dict[str, type[Initializer]] = {kind.__name__: kind for kind in (Uniform, Normal, Constant)}


def describe(model: nn.Module) -> dict[str, Any]:
    """Plain data that `build` can make the model from again; for a model of the user's own, only its class name."""
    if isinstance(model, CTRDNN):
        config = model.config
        return {
            "name": "CTRDNN",
            "slots": list(model.embedding.slots),
            "dense_features": model.dense_features,
            "embedding_size": config.embedding_size,
            "hidden": list(config.hidden),
            "pooling": config.pooling,
            "initializer": [type(config.initializer).__name__, *config.initializer.numbers],
        }
    return {"name": "custom", "class": f"{type(model).__module__}.{type(model).__qualname__}"}


def build(description: Mapping[str, Any]) -> nn.Module:
    """The inverse of `describe`, with fresh weights."""
    if description.get("name") == "custom":
        raise CheckpointError(
            f"this checkpoint holds a model of your own ({description.get('class')}): load it from a script with "
            "Trainer.restore(model, path)"
        )
    if description.get("name") != "CTRDNN":
        raise CheckpointError(
            f"this checkpoint holds a model {description.get('name')!r} that this release does not know"
        )
    try:
        kind, *numbers = description["initializer"]
        initializer = _INITIALIZERS[kind](*numbers[: 1 if kind == "Constant" else 2])
        config = CTRDNNConfig(
            embedding_size=description["embedding_size"],
            hidden=tuple(description["hidden"]),
            initializer=initializer,
            pooling=description["pooling"],
        )
        return CTRDNN(description["slots"], description["dense_features"], config)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"the checkpoint's description of its model is damaged: {error!r}") from error
