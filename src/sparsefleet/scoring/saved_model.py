"""saved_model: what a checkpoint says of its model and of its input, as objects."""

from __future__ import annotations

from torch import nn

from sparsefleet.checkpoint import AnyPath, Checkpoint, latest
from sparsefleet.core.errors import CheckpointError
from sparsefleet.core.schema import Schema
from sparsefleet.models import registry


def saved_model(path: AnyPath, own: type[nn.Module] | None = None) -> tuple[nn.Module, Schema]:
    """The model of a checkpoint, or of a run's newest one, with fresh weights, and the schema of its samples.

    `Trainer.load` or `Trainer.restore` fills in the weights. `own`: the class, where the model is one of yours
    (`sparsefleet.models.Rebuildable`): a checkpoint holds no code.
    """
    checkpoint = Checkpoint.open(latest(path))
    if checkpoint.manifest.schema is None:
        raise CheckpointError(f"{checkpoint.location} does not say what its input looks like (no schema)")
    schema = Schema.from_dict(checkpoint.manifest.schema, where=f"{checkpoint.location}: schema")
    return registry.build(checkpoint.manifest.model, own), schema
