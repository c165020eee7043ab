"""`sparsefleet …` as a user runs it: real processes, found and ended whatever happens."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sparsefleet
from sparsefleet.fleet.roles import ROLE_VARIABLES
from sparsefleet.launch.reaper import members

SMALL = ("--hidden", "16,16", "--batch-size", "100", "--embedding-size", "4")
"""A network that trains a few thousand rows in a moment."""


class CommandLine:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._mark = f"test-{uuid.uuid4().hex}"
        self._started: list[subprocess.Popen[str]] = []

    def start(
        self, *words: object, environment: dict[str, str] | None = None, module: str = "sparsefleet"
    ) -> subprocess.Popen[str]:
        clean = {name: value for name, value in os.environ.items() if name not in ROLE_VARIABLES}
        clean |= {"PYTHONPATH": str(Path(sparsefleet.__file__).parents[1]), "COMMAND_LINE_TEST": self._mark}
        process = subprocess.Popen(
            [sys.executable, "-m", module, *map(str, words)],
            cwd=self.folder,
            env={**clean, **(environment or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._started.append(process)
        return process

    def finish(self, process: subprocess.Popen[str], seconds: float = 100.0) -> subprocess.CompletedProcess[str]:
        out, error = process.communicate(timeout=seconds)
        return subprocess.CompletedProcess(process.args, process.returncode, out, error)

    def run(self, *words: object, **settings: Any) -> subprocess.CompletedProcess[str]:
        return self.finish(self.start(*words, **settings))

    def result(self, *words: object) -> dict[str, Any]:
        """The JSON object of a command that ends well."""
        done = self.run(*words, "--json")
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout.splitlines()[-1]))

    def left(self) -> list[int]:
        """Every living process that descends from what was started here."""
        return sorted(members(self._mark, ()))

    def end(self) -> None:
        for pid in self.left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self._started:
            process.communicate(timeout=10)


@contextlib.contextmanager
def command_line(folder: Path) -> Iterator[CommandLine]:
    made = CommandLine(folder)
    try:
        yield made
    finally:
        made.end()
