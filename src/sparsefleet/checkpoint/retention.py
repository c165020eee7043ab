"""A run's folder of checkpoints: `step-00001234/` each, and `latest`, a text file that names the newest."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sparsefleet.checkpoint.draft import replaced
from sparsefleet.checkpoint.manifest import FILE_NAME
from sparsefleet.checkpoint.reader import Checkpoint
from sparsefleet.checkpoint.storage import AnyPath, Location, locate
from sparsefleet.checkpoint.storage.base import reading, writing
from sparsefleet.core.errors import CheckpointError

POINTER = "latest"
STEP = re.compile(r"step-(\d{8,19})")
KILLED = re.compile(r"\.(step-\d{8,19})\.old-[0-9a-f]{12}")


def step_path(folder: AnyPath, step: int) -> Location:
    """Where a run saves its checkpoint of this step."""
    if step < 0:
        raise CheckpointError(f"step={step} must be 0 or above")
    return locate(folder) / f"step-{step:08d}"


def point_latest(checkpoint: AnyPath) -> None:
    """Make the folder's `latest` name this checkpoint: after each commit."""
    location = locate(checkpoint)
    pointer = location.parent / POINTER
    with writing(pointer):
        pointer.storage.replace_file(pointer.path, (location.name + "\n").encode())


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


def prune(path: AnyPath, keep: int) -> list[str]:
    """Remove all but the newest `keep` checkpoints of a run's folder; returns the names of those removed.

    Called between saves, by the process that saves. A step-… folder without a manifest (a save that died
    on an object store, a prune that was killed) goes too; what is damaged stays, for someone to look at.
    """
    if keep < 1:
        raise CheckpointError(f"keep={keep} must be 1 or above: the newest checkpoint is never pruned")
    folder = locate(path)
    doomed = [checkpoint.location for checkpoint in _by_age(folder, [])[keep:]]
    with writing(folder):
        doomed += [location for location in _steps(folder) if (location / FILE_NAME).size() is None]
        for location in doomed:
            folder.storage.delete_file((location / FILE_NAME).path)
            folder.storage.delete_dir(location.path)
    return sorted(location.name for location in doomed)


def _by_age(folder: Location, refused: list[CheckpointError]) -> list[Checkpoint]:
    """The folder's loadable checkpoints, newest first; `refused` takes the reasons of the others."""
    checkpoints: list[Checkpoint] = []
    for location in _steps(folder):
        try:
            checkpoints.append(Checkpoint.open(location))
        except CheckpointError as error:
            refused.append(error)
    checkpoints.sort(key=lambda checkpoint: (checkpoint.manifest.created, checkpoint.manifest.step), reverse=True)
    return checkpoints


def _steps(folder: Location) -> Iterator[Location]:
    with reading(folder):
        entries = folder.list()
    names = {entry.name for entry in entries if entry.is_dir and STEP.fullmatch(entry.name)}
    # A save killed while it replaced step-N has left it under its old name; Checkpoint.open finds it there.
    names |= {killed[1] for entry in entries if (killed := KILLED.fullmatch(entry.name))}
    for name in sorted(names, reverse=True):
        yield folder / name
