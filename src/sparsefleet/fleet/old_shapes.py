"""Calls in Fluid's shape: their arguments read, programs given a meaning where they can have only one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from torch import nn

from sparsefleet.core.errors import ConfigError
from sparsefleet.core.notes import note
from sparsefleet.core.process_role import PROCESS_ROLE
from sparsefleet.nn.embedding import tables


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


def check_feeds_and_targets(model: nn.Module, feeds: Any, targets: Any) -> None:
    """Refuse what a bundle does not give: fewer inputs than the model has, several outputs."""
    if feeds is not None:
        if isinstance(feeds, str) or not isinstance(feeds, Sequence):
            raise ConfigError(f"save_inference_model: feeds={feeds!r:.60} must be a list of inputs; it may be left out")
        names = {feed if isinstance(feed, str) else str(getattr(feed, "name", feed)) for feed in feeds}
        slots = {slot for users in tables(model).values() for user in users for slot in user.slots}
        if missing := sorted(slots - names):
            raise ConfigError(
                f"save_inference_model: feeds leave out {', '.join(missing)}; a bundle takes all inputs of the model. "
                "Leave feeds out, or save a model without these slots"
            )
    if targets is not None and len(targets if isinstance(targets, Sequence) else [targets]) > 1:
        raise ConfigError(
            f"save_inference_model: {len(targets)} targets; a bundle answers the click probability. Leave targets out"
        )
    note("save_inference_model needs no feeds and targets: inputs and output are the model's own")


def _is_path(value: Any) -> bool:
    return isinstance(value, str | os.PathLike)
