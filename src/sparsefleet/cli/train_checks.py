"""What `sparsefleet train` refuses, or has to say, before it trains. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.markup import escape

from sparsefleet.cli.console import say
from sparsefleet.cli.run_config import given
from sparsefleet.core.elastic import Elastic
from sparsefleet.core.errors import CheckpointError, ConfigError, SparseFleetError
from sparsefleet.fleet.roles import TRAINING_ROLE, Role
from sparsefleet.fleet.strategy import MODE_OF
from sparsefleet.launch.on_ray.options import PLACES, check_ray

_FOR_MANY = (
    "k_steps",
    "max_merge",
    "send_queue_size",
    "staleness",
    "dense_refresh",
    "dense_wire",
    "timeout",
    "connect_timeout",
    "lost_trainer",
)
"""Not `mode`: the same command is to work for one process and for many."""


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
        if not given(context, name):
            continue
        if alone and name in _FOR_MANY:
            raise ConfigError(
                f"{parameter.opts[0]} does nothing in one process: give --servers and --workers too, or leave it out"
            )
        if name in MODE_OF and mode != MODE_OF[name]:
            raise ConfigError(
                f"{parameter.opts[0]} does nothing in mode {mode}: it belongs to --mode {MODE_OF[name]}; leave it out"
            )


def check_regularisation(
    l2: float, exact: bool, clip_norm: float | None, optimizer: str, mode: str, *, many: bool
) -> None:
    """Refuse what a rule or a mode cannot do, before any process is started."""
    if not 0 <= l2 < math.inf:
        raise ConfigError(f"--l2 {l2:g}: give a number, 0 or above")
    if clip_norm is not None and not 0 <= clip_norm < math.inf:
        raise ConfigError(f"--clip-norm {clip_norm:g}: give a number above 0, or 0 for none")
    if optimizer == "ftrl" and (l2 or exact):
        raise ConfigError(
            f"{'--exact' if exact else '--l2'} does not go with --optimizer ftrl: ftrl has an l2 of its own, in full "
            "each time that a value is made, so that there is nothing to catch up; choose another optimizer"
        )
    if exact and mode == "geo" and many:
        raise ConfigError(
            "--exact does not work in --mode geo: there every trainer moves rows of its own, and no row is moved by "
            "all steps of the job; choose sync, half_async or async"
        )


def check_leases(asked: bool | None, reader: str, elastic: Elastic | None, *, many: bool) -> None:
    """Refuse leases, or none, where that cannot be. asked: as the user has said; None: nothing."""
    if asked is not None and not many:
        raise ConfigError(
            f"--{'' if asked else 'no-'}leases says how trainers share their data: give --servers and --workers too, "
            "or leave it out"
        )
    if elastic is not None and not many:
        raise ConfigError("--elastic is for many processes: give --servers and --workers too")
    if elastic is not None and asked is False:
        raise ConfigError(
            "--elastic hands data out in pieces (leases), for trainers come and go: leave out --no-leases"
        )
    if (asked or elastic is not None) and reader != "queue":
        raise ConfigError(
            f"{'--leases' if asked else '--elastic'} hands out files that are streamed; --reader {reader} keeps its "
            "own share: use queue"
        )


def are_leased(
    asked: bool | None, reader: str, elastic: Elastic | None, resume: str | None, save: str | None, *, tell: bool
) -> bool:
    """Whether the trainers of a job take pieces of the training data, or have shares of it.

    Pieces wherever that can be and nobody has said otherwise. A checkpoint that was cut within an epoch of shares can
    only go on with those: so does the run, and (`tell`) says so.
    """
    if asked is not None or elastic is not None or reader != "queue":
        return bool(asked) or elastic is not None
    shares = _shares_within_epoch(resume, save)
    if shares and tell:
        say(
            f"[yellow]without leases[/]: the checkpoint was cut within an epoch whose data {shares} trainers had "
            "shares of, and this run goes on with those"
        )
    return not shares


def _shares_within_epoch(resume: str | None, save: str | None) -> int:
    """How many trainers had shares of the data, and positions in them, where the checkpoint to go on from was cut; 0:
    there is none, or it goes on with pieces as well."""
    from sparsefleet.checkpoint import Checkpoint, latest, to_go_on_from

    try:
        found = to_go_on_from(str(save)) if resume == "auto" else resume and latest(resume)
        positions = Checkpoint.open(found).manifest.positions if found else {}
    except SparseFleetError:
        return 0  # whoever loads it says what is wrong with it
    return len(positions) if len(positions) > 1 else 0


_OF_VALIDATION = ("watch", "patience", "min_delta", "plateau_factor", "plateau_patience")


def check_validation(context: typer.Context, valid_data: str | None) -> None:
    """What decides by validation data needs some."""
    asked = [parameter.opts[0] for parameter in context.command.params
             if parameter.name in _OF_VALIDATION and given(context, str(parameter.name))]  # fmt: skip
    if asked and not valid_data:
        raise ConfigError(f"{asked[0]} goes by validation data: give --valid-data too, or leave it out")


def check_folder(option: str, path: str) -> None:
    """Refuse a place for checkpoints that is a file, or below one, and one without a name: nothing would be saved."""
    if not path.strip():
        raise ConfigError(f"{option} '' names no folder (an unset variable?); give one, or leave {option} out")
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


def check_start(start_from: str | None, fresh_optimizer: bool, resume: str | None, save: str | None) -> None:
    """Refuse what `fit` would only refuse in the processes of a job."""
    from sparsefleet.checkpoint import chosen, locate, same_place

    if fresh_optimizer and not start_from:
        raise ConfigError("--fresh-optimizer is for --start-from; a run without it begins with a fresh one anyway")
    if not start_from:
        return
    if resume not in (None, "auto"):
        raise ConfigError(
            "--resume goes on with a run, --start-from begins a new one: give one of them (or --resume auto)"
        )
    begun = locate(start_from)
    if save and any(same_place(save, place) for place in (begun, begun.parent)):
        raise ConfigError(
            f"--start-from {start_from} begins a new run, and --save {save} holds the old one: save to another folder"
        )
    location, why = chosen(start_from)
    if not same_place(start_from, location):
        say(f"[bold]start from[/] {escape(location.name)}: {why}")


def goes_on_from(resume: str | None, save: str | None) -> str | None:
    """The checkpoint, or the folder of them, that this run goes on from; None: it begins."""
    from sparsefleet.checkpoint import to_go_on_from

    if resume != "auto":
        return resume
    found = to_go_on_from(str(save))
    if found is not None:
        say(f"[bold]goes on[/] from {escape(str(found))}")
    return None if found is None else str(found)


def look_at_labels(name: str, model: object, labels: Sequence[str]) -> None:
    """Say that a model of ours which is made for several labels is given one.

    Of a user's own model, `many_labels` says only that it can take several.
    """
    from sparsefleet.models import registry

    if len(labels) == 1 and type(model) in registry.SHELF.values() and getattr(model, "many_labels", False):
        say(
            f"[yellow]{escape(name)} is made for several labels[/], and the schema has one, {escape(labels[0])}: name "
            "the others as more_labels there; or choose a model for one label (`sparsefleet models`)"
        )


def look_at_used_folder(save: str, resumed: str | None = None) -> None:
    """Only the newest checkpoints of a folder are kept: those of another run in it will not be."""
    from sparsefleet.checkpoint import latest, locate, same_place

    try:
        newest = latest(save)
    except CheckpointError:
        return
    if resumed and any(same_place(save, place) for place in (resumed, locate(resumed).parent)):
        return
    say(
        f"[yellow]{escape(save)} has checkpoints of an earlier run[/], the newest {escape(newest.name)}: this one's "
        "take their place. --resume auto goes on with it, another folder keeps it"
    )


def epochs_done(extra: Mapping[str, Any]) -> int:
    """The epochs that are complete in a checkpoint, by what training has written into its manifest."""
    training = extra.get("training")
    done = training.get("epoch") if isinstance(training, Mapping) else None
    return done if isinstance(done, int) else 0
