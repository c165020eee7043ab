"""Calls in Fluid's shape: their arguments read, programs given a meaning where they can have only one."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

from torch import nn

from sparsefleet.core.errors import ConfigError
from sparsefleet.core.layout import dense_in
from sparsefleet.core.notes import note
from sparsefleet.core.process_role import PROCESS_ROLE
from sparsefleet.core.schema import Schema
from sparsefleet.nn.embedding import tables
from sparsefleet.nn.objective import label_names


class MainProgram:
    """Stands for the model whose loss an optimizer was told to minimize."""

    def __repr__(self) -> str:
        return "main_program"


class StartupProgram:
    """Stands for the making of parameters, which needs no call here."""

    def __repr__(self) -> str:
        return "startup_program"


MAIN_PROGRAM, STARTUP_PROGRAM = MainProgram(), StartupProgram()


def model_of(program: Any, call: str) -> nn.Module:
    """The model that a program stands for: itself, or (main_program, None) the one whose loss is minimized."""
    if isinstance(program, nn.Module):
        return program
    if program is not None and not isinstance(program, MainProgram):
        raise ConfigError(f"{call}: program={program!r:.60}; there are no programs here: give the model itself")
    model = PROCESS_ROLE.model
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"{call}: which model? main_program stands for the one whose loss is minimized: call "
            "optimizer.minimize(model.loss) before, or give the model itself as program"
        )
    return model


def old_arguments(
    call: str, arguments: Sequence[Any], executor: Any, dirname: Any, main_program: Any
) -> tuple[str, list[Any]]:
    """The path, and what follows it, of a call (path, …) or, as in Fluid, (executor, path, …)."""
    given = list(arguments)
    if executor is None and given and not _is_path(given[0]):
        executor = given.pop(0)
    if executor is not None:
        if _is_path(executor):
            raise ConfigError(f"{call}: executor={executor!r}, and a path besides; write {call}(path)")
        note(f"{call} needs no executor: write {call}(path)")
    if dirname is None:
        if not given:
            raise ConfigError(f"{call}: where to? write {call}(path)")
        dirname = given.pop(0)
    if not _is_path(dirname):
        raise ConfigError(f"{call}: {dirname!r:.60} is not a path; write {call}(path)")
    # Fluid's third argument of save_persistables; of save_inference_model it is the feeds.
    if call == "save_persistables" and given:
        main_program = given.pop(0)
        if given:
            raise ConfigError(f"{call}: {len(given)} arguments too many; write {call}(path)")
    if main_program is not None:
        if isinstance(main_program, nn.Module) and PROCESS_ROLE.model not in (None, main_program):
            raise ConfigError(f"{call}: main_program is another model than the one that is trained; leave it out")
        note(f"{call} needs no main_program: it saves the model that was trained")
    return str(os.fspath(dirname)), given


def check_no_filename(call: str, filename: Any) -> None:
    """Fluid's setting for one file in place of many."""
    if filename is not None:
        raise ConfigError(
            f"{call}(filename={filename!r:.60}): a checkpoint is a folder of files, none of which has a name of yours; "
            "leave filename out"
        )


def check_feeds_and_targets(model: nn.Module, schema: Schema, feeds: Any, targets: Any) -> None:
    """Refuse what a bundle does not give: fewer inputs than the model has, other inputs and outputs than there are.

    schema: of the samples that the model was trained on.
    """
    if feeds is not None:
        _check_feeds(model, schema, feeds)
    if targets is not None:
        _check_targets(label_names(model) or (), targets)
    note("save_inference_model needs no feeds and targets: inputs and output are the model's own")


_ALL_DENSE = ("dense_input", "dense_feature", "dense")
"""What scripts, and our own readers, call the input of all dense values, however the schema names each of them."""
_PROBABILITY = ("predict", "prediction", "predictions", "probability")
"""Names of the output that every model has; one of several labels has their names too."""


def _check_feeds(model: nn.Module, schema: Schema, feeds: Any) -> None:
    if isinstance(feeds, str) or not isinstance(feeds, Sequence):
        raise ConfigError(f"save_inference_model: feeds={feeds!r:.60} must be a list of inputs; it may be left out")
    names = {_name_of(feed) for feed in feeds}
    held = {name: _dense_of(name, schema) for name in names}
    # A script's list of inputs has the label too, and what else its lines have.
    others = {*schema.slot_names, *schema.labels, schema.weight, schema.group, schema.time}
    if unknown := sorted(name for name in names if name not in others and not held[name]):
        dense = ["dense_input"] if schema.dense else []
        raise ConfigError(
            f"save_inference_model: feeds have {', '.join(map(repr, unknown))}, which is no input of the data that the "
            f"model was trained on; there are {', '.join([*dense, *schema.slot_names])}. Leave feeds out: a bundle "
            "takes all inputs of the model"
        )
    slots = {slot for users in tables(model).values() for user in users for slot in user.slots}
    missing = sorted(slots - names)
    if lacking := [name for name in schema.dense_names if not any(name in each for each in held.values())]:
        missing.insert(0, "dense_input" if len(lacking) == len(schema.dense) else ", ".join(lacking))
    if missing:
        raise ConfigError(
            f"save_inference_model: feeds leave out {', '.join(missing)}; a bundle takes all inputs of the model. "
            "Leave feeds out, or train a model without these inputs"
        )


def _check_targets(labels: Sequence[str], targets: Any) -> None:
    """labels: of a model for several of them, else none."""
    one = isinstance(targets, str) or not isinstance(targets, Sequence)
    names = [_name_of(target) for target in ([targets] if one else targets)]
    if set(names) == set(labels) and len(names) == len(labels) and labels:
        return
    if len(names) > 1:
        of_all = f" of all labels, {', '.join(labels)}" if labels else ""
        raise ConfigError(
            f"save_inference_model: {len(names)} targets; a bundle answers the click probability{of_all}. Leave "
            "targets out"
        )
    if names and names[0] in labels:
        raise ConfigError(
            f"save_inference_model: the target {names[0]!r} is one of the model's labels, and a bundle of a running "
            f"job has them all ({', '.join(labels)}): leave targets out; sparsefleet export --outputs {names[0]} makes "
            "one of a checkpoint that has this label only"
        )
    if names and names[0] not in _PROBABILITY:
        raise ConfigError(
            f"save_inference_model: the target {names[0]!r} is no output of the model: a bundle answers the click "
            "probability, 'predict' (metrics and the loss are of training). Leave targets out"
        )


def _dense_of(name: str, schema: Schema) -> list[str]:
    """The dense features of an input of this name; an input `x` of width 13 was made x1 to x13 (`set_use_var`)."""
    if name in _ALL_DENSE or name in schema.dense_names:
        return list(schema.dense_names) if name not in schema.dense_names else [name]
    part = re.compile(re.escape(name) + r"_?[0-9]+")
    found = [each for each in schema.dense_names if part.fullmatch(each)]
    written = name in (schema.multislot or ()) and name not in (*schema.slot_names, *schema.labels)
    return found or (dense_in(name, schema.dense_names) if written else [])


def _name_of(given: Any) -> str:
    """Of an input or output: a text, or what has a name."""
    return given if isinstance(given, str) else str(getattr(given, "name", given))


def _is_path(value: Any) -> bool:
    return isinstance(value, str | os.PathLike)
