"""`sparsefleet train` with many processes: start them all, or play the one role that the environment gives.

```
sparsefleet train --servers 2 --workers 2 …      the parent: starts `sparsefleet train …` once per role, and waits
  TRAINING_ROLE=PSERVER … sparsefleet train …    a server
  TRAINING_ROLE=TRAINER … sparsefleet train …    a trainer
```
The same holds for processes that a scheduler or a person starts: the variables alone make the role.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from sparsefleet import fleet, launch
from sparsefleet.checkpoint import Checkpoint, Manifest, latest
from sparsefleet.cli.run_config import given
from sparsefleet.cli.train_checks import epochs_done
from sparsefleet.core.elastic import Elastic
from sparsefleet.core.errors import ConfigError, SparseFleetError
from sparsefleet.crew import Crew
from sparsefleet.data.files import list_files
from sparsefleet.data.split import split_files
from sparsefleet.fleet.strategy import Resolved
from sparsefleet.launch.logs import last_lines, only_ours
from sparsefleet.launch.on_ray.needs import RayNeeds
from sparsefleet.launch.on_ray.view import ray_view
from sparsefleet.launch.view import view_for
from sparsefleet.train import FitResult

LOG_FOLDER = "log"
PARENTS_OWN = (
    "servers", "workers", "json_output", "config", "on", "server_cpus", "worker_cpus", "server_memory", "worker_memory",
    "restarts", "cut_every", "cuts", "elastic",
)  # fmt: skip
"""Options that are not handed on to the processes of a job."""
_PATHS = (
    "--data", "--test-data", "--valid-data", "--schema", "--save", "--resume", "--start-from", "--log-dir",
    "--tensorboard",
)  # fmt: skip
ROLE_LOG_SECONDS = 5.0
"""A trainer's log gets a line this often; the launcher shows the last one."""
REPORT_SECONDS = 10.0
"""Beyond the time-out after which peers notice a loss: to write down what they noticed."""


def check_inputs(paths: Sequence[str | None], workers: int, cuttable: bool) -> None:
    """Refuse files that are not there, or too few of them, before any process is started."""
    for path in paths:
        if path is not None:
            split_files(list_files(path), 0, workers, cuttable=cuttable)


def launch_roles(
    context: typer.Context,
    servers: int,
    workers: int,
    strategy: Resolved,
    log_dir: Path,
    *,
    words: Sequence[str] = ("train",),
    more: Sequence[str] = (),
    kept: Sequence[str] = (),
    on_ray: RayNeeds | None = None,
    restart: launch.RestartPolicy | None = None,
    elastic: Elastic | None = None,
) -> tuple[int, dict[str, Any]]:
    """Run this very command once per role. The exit status, and what the trainers say of the whole job.

    words: the command's own. more: options that the parent has for its processes besides those it was given. kept:
    names of parameters that it keeps to itself, besides `PARENTS_OWN`. on_ray: what to ask of a Ray cluster; None:
    roles are processes of this host.
    """
    given = handed_on(context, kept) if on_ray is None else paths_in_full(handed_on(context, kept))
    command = [sys.executable, "-m", "sparsefleet", *words, *given, *more, "--json"]
    settings = launch.RunSettings(
        log_dir=log_dir,
        timeout=strategy.timeout + REPORT_SECONDS,
        restart=restart or launch.RestartPolicy(),
        elastic=elastic,
    )
    with only_ours(log_dir):
        return _launch(context, command, servers, workers, settings, words, on_ray)


def _launch(
    context: typer.Context,
    command: Sequence[str],
    servers: int,
    workers: int,
    settings: launch.RunSettings,
    words: Sequence[str],
    on_ray: RayNeeds | None,
) -> tuple[int, dict[str, Any]]:
    """The same, once the folder of logs is ours: what stands there at the end is what our trainers said."""
    log_dir, elastic = settings.log_dir, settings.elastic
    logs = [log_dir / f"workerlog.{index}" for index in range(workers if elastic is None else elastic.most)]
    for log in logs:
        try:
            log.unlink(missing_ok=True)  # of an earlier job: its result is not ours
        except OSError as error:
            raise ConfigError(f"log_dir={str(log_dir)!r} cannot be used: {error.strerror}; give a folder") from None
    view = (view_for if on_ray is None else ray_view)(program=f"sparsefleet {' '.join(words)}", show_result=False)
    save, resume, epochs = (context.params.get(name) for name in ("save", "resume", "epochs"))
    before = _newest(save)
    if on_ray is None:
        outcome = launch.run_local(lambda role: command, servers, workers, settings, view=view)
    else:
        from sparsefleet.launch.on_ray.jobs import run_on_ray  # late: not everybody has Ray

        if save:  # before: whoever kills this process, or takes the cluster away, leaves it no time to say so
            view.say(f"whatever ends this driver or the cluster: --resume {save} goes on from the newest checkpoint")
        outcome = run_on_ray(lambda role: command, servers, workers, settings, needs=on_ray, view=view)
    if outcome.exit_code and (saved := _newest(save)) is not None:
        name, manifest = saved
        # What was there before is another run's, unless this one began with it; and one that is done needs no advice.
        ours = saved != before or saved == _newest(save if resume == "auto" else resume)
        if ours and epochs_done(manifest.extra) < (epochs or 1):
            view.say(f"go on with: --resume {save} (checkpoint {name})")
    # Every trainer knows the whole job's result; the first of them may be lost.
    return outcome.exit_code, next(filter(None, map(_result, logs)), {})


def handed_on(context: typer.Context, kept: Sequence[str] = ()) -> list[str]:
    """The options that the user has given, but for those that are the parent's own, as `kept` are."""
    arguments = []
    for parameter in context.command.params:
        name, value = str(parameter.name), context.params.get(str(parameter.name))
        if not given(context, name) or name in PARENTS_OWN or name in kept:
            continue
        if isinstance(value, bool):
            arguments += [parameter.opts[0]] if value else parameter.secondary_opts[:1]
        elif isinstance(value, list | tuple):  # an option that may be given several times
            arguments += [f"{parameter.opts[0]}={each}" for each in value]
        else:
            arguments.append(f"{parameter.opts[0]}={value}")
    return arguments


def paths_in_full(arguments: Sequence[str]) -> list[str]:
    """For roles that do not run in this folder: `--data=D` becomes `--data=/home/…/D`. URIs stay."""
    shown = []
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if name in _PATHS and equals and "://" not in value and (name, value) != ("--resume", "auto"):
            argument = f"{name}={os.path.abspath(value)}"
        elif name == "--model" and ".py:" in value:
            file, _, called = value.rpartition(":")
            argument = f"{name}={os.path.abspath(file)}:{called}"
        shown.append(argument)
    return shown


def _newest(folder: str | None) -> tuple[str, Manifest] | None:
    """The checkpoint that `--resume FOLDER` would take, its name and contents; None where there is none."""
    if not folder:
        return None
    try:
        found = latest(folder)
        return found.name, Checkpoint.open(found).manifest
    except SparseFleetError:
        return None


def _result(log: Path) -> dict[str, Any]:
    for line in last_lines(log, 1):
        try:
            result = json.loads(line)
        except ValueError:
            continue
        if isinstance(result, dict):
            return result
    return {}


def share(path: str, cuttable: bool) -> list[str]:
    """This trainer's part of the input; in one process, all of it."""
    return fleet.split_files(list_files(path), cuttable=cuttable)


def whole_job(crew: Crew, result: FitResult) -> dict[str, Any]:
    """Rows, speed and checkpoint of all trainers that are left, since each was started. All call it."""
    mine = {
        "rows": result.rows,
        "steps": result.steps,
        "seconds": result.seconds,
        "skipped": dict(result.skipped),
        "model": result.checkpoint,
    }
    parts: list[Mapping[str, Any]] = crew.reduce("result", mine)
    rows, seconds = sum(part["rows"] for part in parts), max(part["seconds"] for part in parts)
    return {
        "rows": rows,
        "steps": max(part["steps"] for part in parts),  # who has more pieces makes more
        "seconds": seconds,
        "samples_per_s": rows / seconds if seconds else 0.0,
        "skipped": dict(sum((Counter(part["skipped"]) for part in parts), Counter[str]())),
        "model": next((part["model"] for part in parts if part["model"]), None),
        "trainers": len(parts),
        "lost": crew.lost(),  # by now; one may have been lost after its last epoch
    }
