"""Models by name, so that a checkpoint can say which one it holds without holding code.

A model is a file with a `Rebuildable` class, and a line in `SHELF`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from torch import nn

from sparsefleet.core.errors import CheckpointError, ConfigError
from sparsefleet.models.autoint import AutoInt
from sparsefleet.models.base import Rebuildable
from sparsefleet.models.ctr_dnn import CTRDNN
from sparsefleet.models.dcnv2 import DCNv2
from sparsefleet.models.deepfm import DeepFM
from sparsefleet.models.din import DIN
from sparsefleet.models.dnn import DNN
from sparsefleet.models.esmm import ESMM
from sparsefleet.models.fm import FM
from sparsefleet.models.fwfm import FwFM
from sparsefleet.models.lr import LogisticRegression
from sparsefleet.models.mmoe import MMoE
from sparsefleet.models.shared_bottom import SharedBottom
from sparsefleet.models.widedeep import WideDeep
from sparsefleet.models.xdeepfm import XDeepFM

SHELF: Mapping[str, type[Rebuildable]] = {
    "ctr_dnn": CTRDNN,
    "lr": LogisticRegression,
    "fm": FM,
    "fwfm": FwFM,
    "dnn": DNN,
    "widedeep": WideDeep,
    "deepfm": DeepFM,
    "dcnv2": DCNv2,
    "xdeepfm": XDeepFM,
    "autoint": AutoInt,
    "din": DIN,
    "shared_bottom": SharedBottom,
    "mmoe": MMoE,
    "esmm": ESMM,
    # one line for each model
}
"""What `--model` calls them."""
MODELS: Mapping[str, type[Rebuildable]] = {model.name: model for model in SHELF.values()}
"""What checkpoints call them."""
CUSTOM = "custom"
"""The name of every model that is in no table of ours."""


def describe(model: nn.Module) -> dict[str, Any]:
    """Plain data that `build` can make the model from again; of a class that is not `Rebuildable`, only its path."""
    kind = type(model)
    head = {"name": CUSTOM, "class": f"{kind.__module__}.{kind.__qualname__}"}
    if not isinstance(model, Rebuildable):
        return head
    # vars, not getattr: a subclass with a forward of its own must not go by its base's name.
    name = str(vars(kind).get("name"))
    if name in MODELS and issubclass(kind, MODELS[name]):
        head = {"name": name}
    settings = model.describe()
    try:
        json.dumps(settings)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{kind.__qualname__}.describe() must return plain JSON data: {error}") from error
    return {**head, **settings, **head}


def build(description: Mapping[str, Any], own: type[nn.Module] | None = None) -> nn.Module:
    """The inverse of `describe`, with fresh weights. `own`: the class, where the checkpoint holds a model of yours."""
    made = _class_of(description, own)
    try:
        return made.build(description)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{made.__qualname__} cannot be made from the checkpoint's description of its model, which is damaged or "
            f"of another version of the class: {error!r}"
        ) from error


def _class_of(description: Mapping[str, Any], own: type[nn.Module] | None) -> type[Rebuildable]:
    name = str(description.get("name"))
    if name != CUSTOM:
        if name not in MODELS:
            raise CheckpointError(
                f"this checkpoint holds a model {name!r} that this release does not know; it knows {', '.join(MODELS)}"
            )
        return MODELS[name]
    saved = str(description.get("class"))
    if own is None and saved.startswith("sparsefleet.word2vec."):
        raise CheckpointError(
            "this checkpoint holds word vectors, which score no samples: look at them with `sparsefleet word2vec "
            "neighbours`, `eval` or `export`, or in Python with sparsefleet.WordVectors.load(path)"
        )
    if own is None:
        raise CheckpointError(
            f"this checkpoint holds a model of your own ({saved}), and no code: load it from a script, into a model "
            "that you made yourself, with Trainer.restore(model, path); or say where its class is: commands take "
            "--model my_model.py:MyModel, scripts sparsefleet.models.build(description, MyModel)"
        )
    # The module may differ: the script that trained was __main__.
    if own.__qualname__.rpartition(".")[2] != saved.rpartition(".")[2]:
        raise CheckpointError(
            f"this checkpoint holds a model of the class {saved}, not {own.__module__}.{own.__qualname__}: give the "
            "class that was trained, or make the model yourself and load it with Trainer.restore(model, path)"
        )
    if not issubclass(own, Rebuildable):
        raise CheckpointError(
            f"{own.__qualname__} cannot be rebuilt from a checkpoint: derive it from sparsefleet.models.Rebuildable, "
            "with describe() and build(), before you train; or make the model yourself and load it with "
            "Trainer.restore(model, path)"
        )
    return own
