"""The logs of a job's roles: their folder, and what the end of one says."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Iterator
from pathlib import Path

from sparsefleet.core.errors import ConfigError
from sparsefleet.fleet.roles import Role

ERROR_LINES = 20
"""Among so many last lines of a process its error is looked for."""

_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[@-_]|[\x00-\x08\x0b-\x1f\x7f]")
_LOG = re.compile(r"(server|worker)log\.(0|[1-9]\d*)", re.ASCII)
_RAISED = re.compile(r"[\w.]+(Error|Exception): ")
"""The last line of a traceback."""


def make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"log_dir={str(folder)!r} cannot be made: {error.strerror}") from None


@contextlib.contextmanager
def only_ours(folder: Path) -> Iterator[None]:
    """Refuse a folder that a running job writes its logs to, and keep others out until the end.

    A launcher reads there what its own trainers said: another job's result would be taken for this one's. For jobs that
    run from one launcher; launchers of several hosts may share a folder, in which each has its own roles.
    """
    try:
        made = not folder.exists()
        if made:
            folder.mkdir(parents=True, exist_ok=True)
        place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise ConfigError(f"log_dir={str(folder)!r} cannot be used: {error.strerror}; give a folder") from None
    try:
        try:
            fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"log_dir={str(folder)!r} is in use: another job that runs now writes its logs there; give this one a "
                "folder of its own (sparsefleet train --log-dir DIR, fleetrun --log_dir DIR)"
            ) from None
        except OSError:
            pass  # a file system that cannot lock folders
        yield
    finally:
        os.close(place)
        if made:  # a job that was refused before anything started leaves nothing
            with contextlib.suppress(OSError):
                folder.rmdir()


def log_of(folder: Path, role: Role) -> Path:
    return folder / f"{role.kind}log.{role.index}"


def remove_others(folder: Path, servers: int, workers: int) -> None:
    """Remove logs of an earlier, larger job: of roles that one with so many servers and workers does not have."""
    counts = {"server": servers, "worker": workers}
    for path in folder.iterdir():
        name = _LOG.fullmatch(path.name)
        if name is not None and int(name[2]) >= counts[name[1]] and path.is_file():
            with contextlib.suppress(OSError):  # it is someone else's, and no reason not to train
                path.unlink()


def last_lines(log: Path, count: int) -> list[str]:
    """The last lines of a log that are not blank, as a terminal would show them: of a line redrawn, its last state."""
    try:
        with open(log, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 4096 * count))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    lines = []
    for line in reversed(text.split("\n")):
        shown = _ESCAPES.sub("", next((part for part in reversed(line.split("\r")) if part.strip()), ""))
        if shown.strip():
            lines.append(shown.rstrip())
        if len(lines) == count:
            break
    return lines[::-1]


def error_line(log: Path) -> str | None:
    """The error at the end of a log. It is not always the last word: libraries may have theirs afterwards."""
    lines = last_lines(log, ERROR_LINES)
    ours = (line for line in lines if line.startswith("error: "))  # as our commands write it
    return next(ours, None) or next((line for line in reversed(lines) if _RAISED.match(line)), None)
