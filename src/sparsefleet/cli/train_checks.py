"""What `sparsefleet train` refuses, or has to say, before it trains. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer
from rich.markup import escape

from sparsefleet.cli.console import say
from sparsefleet.core.errors import CheckpointError, ConfigError
from sparsefleet.fleet.roles import TRAINING_ROLE, Role
from sparsefleet.launch.on_ray.options import PLACES, check_ray

_FOR_MANY = ("k_steps", "max_merge", "send_queue_size", "staleness", "dense_refresh", "timeout", "lost_trainer")
"""Not `mode`: the same command is to work for one process and for many."""
_OF_MODE = {
    "k_steps": "geo",
    "max_merge": "async",
    "send_queue_size": "async",
    "staleness": "async",
    "dense_refresh": "async",
}
"""The only mode that heeds a setting."""


_RAY_ONLY = ("server_cpus", "worker_cpus", "server_memory", "worker_memory")


def check_place(context: typer.Context, on: str, *, many: bool) -> None:
    """Refuse a place that there is not, and what belongs to another one."""
    if on not in PLACES:
        raise ConfigError(f"--on {on!r} is not a place to run; choose {' or '.join(PLACES)}")
    if on == "ray":
        if not many:
            raise ConfigError("--on ray needs --servers and --workers: how many of each to start on the cluster")
        check_ray()
        return
    for name in _RAY_ONLY:
        if context.params.get(name) is not None:
            raise ConfigError(f"--{name.replace('_', '-')} belongs to --on ray")


def check_counts(servers: int | None, workers: int | None, role: Role) -> None:
    """Refuse counts that make no job."""
    if (servers is None) != (workers is None):
        raise ConfigError("--servers and --workers go together: give both, or none to train in one process")
    for name, count in (("--servers", servers), ("--workers", workers)):
        if count is not None and count < 1:
            raise ConfigError(f"{name} {count} must be 1 or above; give neither to train in one process")
    if servers is not None and role.kind != "single":
        raise ConfigError(
            f"--servers starts a job of its own, but the environment makes this process {role} of one "
            f"({TRAINING_ROLE}); leave --servers and --workers out, or unset the variables"
        )


def check_knobs(context: typer.Context, mode: str, *, alone: bool) -> None:
    """Whoever gives an option that only many processes, or another mode, heed expects it to do something."""
    for parameter in context.command.params:
        name = str(parameter.name)
        source = context.get_parameter_source(name)
        if source is None or source.name != "COMMANDLINE":
            continue
        if alone and name in _FOR_MANY:
            raise ConfigError(
                f"{parameter.opts[0]} does nothing in one process: give --servers and --workers too, or leave it out"
            )
        if name in _OF_MODE and mode != _OF_MODE[name]:
            raise ConfigError(
                f"{parameter.opts[0]} does nothing in mode {mode}: it belongs to --mode {_OF_MODE[name]}; leave it out"
            )


def check_folder(option: str, path: str) -> None:
    """Refuse a place for checkpoints that is a file, or below one."""
    for place in (Path(path), *Path(path).parents):
        if place.is_dir():
            return
        if place.exists():
            raise ConfigError(f"{option} {path}: {place} is a file; give a folder, new or of an earlier run")


def look_at_resumed(resume: str, epochs: int, mode: str, *, alone: bool) -> None:
    """Say what a job in mode geo does not go on with; where a run has come to its end, say how to go on."""
    from sparsefleet.checkpoint import Checkpoint, latest

    checkpoint = Checkpoint.open(latest(resume))
    rules = {str(table.rule.get("name")) for table in checkpoint.manifest.tables} - {"sgd"}
    if mode == "geo" and rules and not alone:
        say(
            f"[yellow]{', '.join(sorted(rules))} begins without state[/]: in mode geo every trainer keeps its own, and "
            "takes none from a checkpoint; rows, dense parameters, steps and positions go on"
        )
    done = epochs_done(checkpoint.manifest.extra)
    if epochs <= done:
        which = "its epoch was" if epochs == 1 else f"all {epochs} epochs were"
        say(
            f"[yellow]nothing left to train[/] of {escape(str(checkpoint.location))}: {which} done before; "
            f"--epochs {done + 1} goes on",
        )


def look_at_used_folder(save: str) -> None:
    """Only the newest checkpoints of a folder are kept: those of another run in it will not be."""
    from sparsefleet.checkpoint import latest

    try:
        newest = latest(save)
    except CheckpointError:
        return
    say(
        f"[yellow]{escape(save)} has checkpoints of an earlier run[/], the newest {escape(newest.name)}: this one's "
        "take their place. --resume goes on with it, another folder keeps it"
    )


def epochs_done(extra: Mapping[str, Any]) -> int:
    """The epochs that are complete in a checkpoint, by what training has written into its manifest."""
    training = extra.get("training")
    done = training.get("epoch") if isinstance(training, Mapping) else None
    return done if isinstance(done, int) else 0
