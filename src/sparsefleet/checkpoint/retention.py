"""A run's folder of checkpoints: `step-00001234/` each, and `latest`, a text file that names the newest.

Cuts of a job that heals lie in folders of the same kind, with a number of their own: `step-00001234-0017/`. A run may
replace its checkpoint of a step; a cut never takes another's place, for servers may be reading that one. The newest cut
is the one with the highest number, whatever the clocks of those that wrote them say.

Which one is best, by the run's validation data, the newest says (`extra.best` in its manifest); `best` is a text file
that names it, for people. It stays, however many newer ones there are.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sparsefleet.checkpoint.draft import replaced
from sparsefleet.checkpoint.manifest import FILE_NAME
from sparsefleet.checkpoint.reader import Checkpoint, Opened
from sparsefleet.checkpoint.storage import AnyPath, Location, locate
from sparsefleet.checkpoint.storage.base import reading, writing
from sparsefleet.core.errors import CheckpointError

logger = logging.getLogger("sparsefleet.checkpoint")

POINTER = "latest"
BEST = "best"
STEP = re.compile(r"step-(\d{8,19})(?:-(\d{4,7}))?")
KILLED = re.compile(rf"\.({STEP.pattern})\.old-[0-9a-f]{{12}}")


def step_path(folder: AnyPath, step: int) -> Location:
    """Where a run saves its checkpoint of this step."""
    if step < 0:
        raise CheckpointError(f"step={step} must be 0 or above")
    return locate(folder) / f"step-{step:08d}"


def cut_path(folder: AnyPath, step: int) -> Location:
    """Where a job that heals writes its next cut: a name that no cut of this folder has had.

    By the folder, not by a count of who asks: when the trainer that takes the cuts is lost, another one goes on. The
    newest cut is never pruned, so numbers do not come again.
    """
    place = locate(folder)
    with reading(place):
        number = 1 + max((_cut_number(entry.name) for entry in place.list()), default=0)
    return place / f"{step_path(place, step).name}-{number:04d}"


def point_latest(checkpoint: AnyPath) -> None:
    """Make the folder's `latest` name this checkpoint: after each commit."""
    location = locate(checkpoint)
    _point(location.parent / POINTER, location.name)


def _point(pointer: Location, name: str | None) -> None:
    """Make a text file name a checkpoint; None: there is no such file."""
    with writing(pointer):
        if name is not None:
            pointer.storage.replace_file(pointer.path, f"{name}\n".encode())
        elif pointer.size() is not None:
            pointer.storage.delete_file(pointer.path)


def best(path: AnyPath) -> Location | None:
    """The checkpoint of a run's folder that did best on validation data, as its newest one says; None: none did."""
    found = _best_of(_by_age(locate(path), []))
    return None if found is None else found.location


def _best_of(by_age: Sequence[Checkpoint]) -> Checkpoint | None:
    if not by_age:
        return None
    step = best_step(by_age[0].manifest.extra)
    return next((checkpoint for checkpoint in by_age if checkpoint.manifest.step == step), None)


def best_step(extra: Mapping[str, Any]) -> int | None:
    """The step of the run's best checkpoint, by what one of its checkpoints says of it."""
    told = extra.get("best")
    step = told.get("step") if isinstance(told, Mapping) else None
    return step if type(step) is int else None


def chosen(path: AnyPath, which: str = "") -> tuple[Location, str]:
    """The checkpoint that `path` means, and in words which one that is.

    `path`: a checkpoint, or a run's folder. `which`: latest, best or step-N of the folder; "": the best one where there
    is one, else the newest.
    """
    folder = locate(path)
    with reading(folder):
        itself = (folder / FILE_NAME).size() is not None or replaced(folder)
    if itself:
        if which:
            raise CheckpointError(f"{folder} is a checkpoint: leave --checkpoint {which} out, or give its run's folder")
        return folder, "the checkpoint that was given"
    newest = latest(folder)
    if which == "latest":
        return newest, "the newest one"
    if match := re.fullmatch(r"(?:step-)?(\d+)", which):
        return Checkpoint.open(step_path(folder, int(match[1]))).location, "the one that was asked for"
    if which not in ("", "best"):
        raise CheckpointError(f"--checkpoint {which}: choose latest, best or a step's, such as {newest.name}")
    found = best(folder)
    if found is not None:
        return found, "the best one on validation data" + (", and the newest" if found == newest else "")
    if which == "best":
        raise CheckpointError(
            f"{folder} has no best checkpoint: its run had no validation data (train --valid-data), or the best one is "
            f"gone; the newest is {newest.name}"
        )
    return newest, "the newest one; none is marked best"


def latest(path: AnyPath) -> Location:
    """The checkpoint at `path` itself, or the newest loadable one of the folder at `path`."""
    folder = locate(path)
    with reading(folder):
        if (folder / FILE_NAME).size() is not None or replaced(folder):
            return folder
    refused: list[CheckpointError] = []
    found = _by_age(folder, refused)
    if found:
        return found[0].location
    if refused:
        raise CheckpointError(f"no checkpoint in {folder} can be loaded: {refused[0]}")
    raise CheckpointError(f"no checkpoint at {folder}: it holds neither {FILE_NAME} nor a step-… folder")


def loadable(path: AnyPath) -> list[Checkpoint]:
    """The checkpoints of a run's folder that can be opened, newest first."""
    return _by_age(locate(path), [])


def to_go_on_from(path: AnyPath) -> Location | None:
    """The newest checkpoint of a run's folder; None where the run has saved none yet, and may begin.

    Where there are checkpoints and none can be loaded, that is an error: a run that began anew would take their place.
    """
    folder = locate(path)
    with reading(folder):
        if folder.size() is not None:
            raise CheckpointError(f"{folder} is a file; a run's folder is wanted, new or of an earlier run")
        if (folder / FILE_NAME).size() is not None:
            raise CheckpointError(
                f"{folder} is a checkpoint; --resume auto looks for the checkpoints of a run in its folder: "
                f"give {folder.parent}, or go on from this one by --resume {folder}"
            )
    refused: list[CheckpointError] = []
    found = _by_age(folder, refused)
    # Without a manifest it never was a checkpoint: a save that died on an object store, a prune that was killed.
    with reading(folder):
        whole = [location for location in _steps(folder) if (location / FILE_NAME).size() is not None]
    damaged = {str(location) for location in whole} - {str(checkpoint.location) for checkpoint in found}
    if damaged and not found:
        raise CheckpointError(f"no checkpoint in {folder} can be loaded: {refused[0]}")
    for location in sorted(damaged):
        logger.warning("%s is damaged and passed over: %s", location, ", ".join(str(error) for error in refused[:1]))
    return found[0].location if found else None


def same_place(one: AnyPath, other: AnyPath) -> bool:
    """Whether two names mean one folder: `runs/a`, `./runs/a/` and `/home/me/runs/a` may."""
    first, second = locate(one), locate(other)
    return type(first.storage) is type(second.storage) and _place(first) == _place(second)


def _place(location: Location) -> str:
    return location.uri.rstrip("/") or os.path.realpath(location.path)


def prune(path: AnyPath, keep: int) -> list[str]:
    """Remove all but the newest `keep` checkpoints of a run's folder; returns the names of those removed.

    The best one stays besides, and `best` names it; so do those that a delta among the kept stands on. Called between
    saves, by the process that saves. A step-… folder without a manifest (a save that died on an object store, a prune
    that was killed) goes too; what is damaged stays, for someone to look at.
    """
    if keep < 1:
        raise CheckpointError(f"keep={keep} must be 1 or above: the newest checkpoint is never pruned")
    folder = locate(path)
    found = _by_age(folder, [])
    kept = _best_of(found)
    _point(folder / BEST, None if kept is None else kept.location.name)
    staying = [*found[:keep], *([kept] if kept is not None else [])]
    needed = {layer.location.name for checkpoint in staying for layer in checkpoint.layers()}
    # Newest first: a delta goes before what it stands on.
    doomed = [checkpoint.location for checkpoint in found[keep:] if checkpoint.location.name not in needed]
    with writing(folder):
        doomed += [location for location in _steps(folder) if (location / FILE_NAME).size() is None]
        for location in doomed:
            folder.storage.delete_file((location / FILE_NAME).path)
            folder.storage.delete_dir(location.path)
    return sorted(location.name for location in doomed)


def _by_age(folder: Location, refused: list[CheckpointError]) -> list[Checkpoint]:
    """The folder's loadable checkpoints, newest first; `refused` takes the reasons of the others."""
    checkpoints: list[Checkpoint] = []
    opened: Opened = {}  # deltas stand on each other: each manifest is read once
    for location in _steps(folder):
        try:
            checkpoints.append(Checkpoint.open(location, opened))
        except CheckpointError as error:
            refused.append(error)
    checkpoints.sort(key=_age, reverse=True)
    return checkpoints


def _age(checkpoint: Checkpoint) -> tuple[int, str, int]:
    """Cuts go by their number, which the job counts: clocks differ between hosts, and jump."""
    return _cut_number(checkpoint.location.name), checkpoint.manifest.created, checkpoint.manifest.step


def _cut_number(name: str) -> int:
    """0: of what is no cut."""
    found = STEP.fullmatch(name)
    return int(found[2] or 0) if found is not None else 0


def _steps(folder: Location) -> Iterator[Location]:
    with reading(folder):
        entries = folder.list()
    names = {entry.name for entry in entries if entry.is_dir and STEP.fullmatch(entry.name)}
    # A save killed while it replaced step-N has left it under its old name; Checkpoint.open finds it there.
    names |= {killed[1] for entry in entries if (killed := KILLED.fullmatch(entry.name))}
    for name in sorted(names, reverse=True):
        yield folder / name
