"""Start the launcher as a process; whatever it leaves behind is found, and ended, however the test goes."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from waiting import wait_until

import sparsefleet
from sparsefleet.fleet.roles import ROLE_VARIABLES
from sparsefleet.launch.reaper import members

SECONDS = 90.0
"""For what should take seconds, however busy the machine is."""
HELPERS = Path(__file__).parents[1] / "helpers"
IMPORTS = """
import os, signal, subprocess, sys, time
from pathlib import Path
from role_waits import stay, tell, until, until_over
"""
"""What every script of a role begins with."""


class Launcher:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "log"
        self.environment: dict[str, str] = {}
        self.prefix: list[str] = []
        self._mark = f"test-{uuid.uuid4().hex}"
        self._started: list[subprocess.Popen[str]] = []

    def script(self, code: str, name: str = "script.py") -> Path:
        path = self.folder / name
        path.write_text(IMPORTS + textwrap.dedent(code))
        return path

    def start(self, *arguments: object) -> subprocess.Popen[str]:
        environment = {name: value for name, value in os.environ.items() if name not in ROLE_VARIABLES}
        environment["PYTHONPATH"] = os.pathsep.join([str(Path(sparsefleet.__file__).parents[1]), str(HELPERS)])
        environment |= {"LAUNCH_TEST_MARK": self._mark, **self.environment}
        with self._said(len(self._started)).open("w") as said:
            process = subprocess.Popen(
                [*self.prefix, sys.executable, "-m", "sparsefleet.launch", *map(str, arguments)],
                cwd=self.folder,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
            )
        self._started.append(process)
        return process

    def _said(self, number: int) -> Path:
        return self.folder / f"said-{number}"

    def said(self, process: subprocess.Popen[str]) -> str:
        """What the launcher has written to stderr so far."""
        return self._said(self._started.index(process)).read_text()

    def wait_for(self, process: subprocess.Popen[str], said: str) -> None:
        self.wait_until(lambda: said in self.said(process))

    def finish(self, process: subprocess.Popen[str]) -> str:
        """Wait for the launcher's end; what it has written to stderr."""
        process.communicate(timeout=SECONDS)
        return self.said(process)

    def run(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments)
        out, _ = process.communicate(timeout=SECONDS)
        return subprocess.CompletedProcess(process.args, process.returncode, out, self.said(process))

    def left(self) -> list[int]:
        """Every living process that descends from what was started here."""
        return sorted(members(self._mark, ()))

    def wait_until(self, condition: Callable[[], object], seconds: float = SECONDS) -> None:
        wait_until(condition, seconds, lambda: f"a launched job; logs: {self.logs()}")

    def logs(self) -> dict[str, str]:
        return {path.name: path.read_text() for path in sorted(self.log.glob("*"))}

    def end(self) -> None:
        for pid in self.left():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        for process in self._started:
            process.communicate(timeout=10)


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    launcher = Launcher(tmp_path)
    try:
        yield launcher
    finally:
        launcher.end()


@pytest.fixture
def free_port() -> int:
    """A port below those that the system hands out by itself, so that no one gets it by chance."""
    for _ in range(100):
        port = random.randrange(20000, 30000)
        with socket.socket() as first, socket.socket() as second:
            try:
                first.bind(("127.0.0.1", port))
                second.bind(("127.0.0.2", port))
            except OSError:
                continue
            return port
    pytest.fail("no free port")
