"""Guard: the process that ends a job's roles should the launcher be killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from sparsefleet.core.errors import ConfigError
from sparsefleet.launch import reaper


class Guard:
    """Runs `reaper.py`, which needs only a pipe from us: its end is ours."""

    def __init__(self, job: str, grace: float) -> None:
        self._grace = grace
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", reaper.__file__, job, str(grace)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )

    def watch(self, pid: int) -> None:
        """That process leads a role's session."""
        self._tell(b"%d\n" % pid)

    def remove(self, path: Path) -> None:
        """That file goes with the job."""
        self._tell(os.fsencode(path) + b"\n")

    def _tell(self, line: bytes) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
        except BrokenPipeError:
            raise ConfigError("the process that watches over the launcher has ended; start the job again") from None

    def close(self) -> None:
        """Let it end what there still is, and itself."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
        except OSError:
            self._process.poll()  # it is gone already
        try:
            self._process.wait(self._grace + 2 * reaper.KILLED_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
