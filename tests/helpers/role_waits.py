"""What scripts of launched roles wait for. Standard library only: these scripts have to start at once."""

from __future__ import annotations

import os
import time
from pathlib import Path


def stay() -> None:
    """Until a signal ends this process; bounded, should nobody send one."""
    time.sleep(60)


def until(*names: str) -> None:
    """Until these files are there."""
    while not all(Path(name).exists() for name in names):
        time.sleep(0.01)


def tell(name: str, text: object = "") -> None:
    """Leave a file for others, whole as soon as it is there."""
    draft = Path(f"{name}.{os.getpid()}")
    draft.write_text(str(text))
    draft.rename(name)


def until_over(name: str) -> None:
    """Until the process has ended whose number that file holds."""
    until(name)
    while _state(int(Path(name).read_text())) not in ("Z", "X"):
        time.sleep(0.01)


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:  # it is not even a zombie any more
        return "X"
