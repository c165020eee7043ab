"""saved_model: what a checkpoint says of its model and of its input, as objects."""

from __future__ import annotations

import logging

from torch import nn

from sparsefleet.checkpoint import AnyPath, Checkpoint, latest
from sparsefleet.core.errors import CheckpointError
from sparsefleet.core.inputs import Inputs
from sparsefleet.core.schema import Schema
from sparsefleet.data.base import Reader
from sparsefleet.models import choosing, registry
from sparsefleet.train.given_data import VOUCH

logger = logging.getLogger("sparsefleet.scoring")


def saved_model(path: AnyPath, own: type[nn.Module] | str | None = None) -> tuple[nn.Module, Schema]:
    """The model of a checkpoint, or of a run's newest one, with fresh weights, and the schema of its samples.

    `Trainer.load` or `Trainer.restore` fills in the weights. `own`: the class, where the model is one of yours
    (`sparsefleet.models.Rebuildable`), or where it is, as "my_model.py:MyNet": a checkpoint holds no code.
    """
    checkpoint = Checkpoint.open(latest(path))
    schema = checkpoint.schema()
    if schema is None:
        raise CheckpointError(f"{checkpoint.location} does not say what its input looks like (no schema)")
    if isinstance(own, str):
        return choosing.rebuilt(checkpoint.manifest.model, own), schema
    return registry.build(checkpoint.manifest.model, own), schema


def check_inputs(path: AnyPath, samples: Reader) -> None:
    """Refuse samples that are not read as those were that the checkpoint's model was trained on."""
    checkpoint = Checkpoint.open(latest(path))
    saved = checkpoint.manifest.inputs
    if saved is None:  # of an older release: nothing is known
        return
    trained, here = Inputs.from_dict(saved, f"{checkpoint.location}: inputs"), samples.inputs()
    trained.require_same(here, str(checkpoint.location), VOUCH)
    if (
        here is not None
        and trained.pipe_command != here.pipe_command
        and None
        not in (
            trained.pipe_command,
            here.pipe_command,
        )
    ):
        logger.warning(
            "%s was trained on what %r printed, and is read through %r: see to it that both make the same keys",
            checkpoint.location,
            trained.pipe_command,
            here.pipe_command,
        )
