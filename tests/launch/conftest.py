"""Start the launcher as a process; whatever it leaves behind is found, and ended, however the test goes."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import sparsefleet
from sparsefleet.fleet.roles import ROLE_VARIABLES
from sparsefleet.launch.reaper import members


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
        path.write_text("import os, signal, subprocess, sys, time\nfrom pathlib import Path\n" + textwrap.dedent(code))
        return path

    def start(self, *arguments: object) -> subprocess.Popen[str]:
        environment = {name: value for name, value in os.environ.items() if name not in ROLE_VARIABLES}
        environment["PYTHONPATH"] = str(Path(sparsefleet.__file__).parents[1])
        environment |= {"LAUNCH_TEST_MARK": self._mark, **self.environment}
        process = subprocess.Popen(
            [*self.prefix, sys.executable, "-m", "sparsefleet.launch", *map(str, arguments)],
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._started.append(process)
        return process

    def run(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments)
        out, error = process.communicate(timeout=40)
        return subprocess.CompletedProcess(process.args, process.returncode, out, error)

    def left(self) -> list[int]:
        """Every living process that descends from what was started here."""
        return sorted(members(self._mark, ()))

    def wait_until(self, condition: Callable[[], object], seconds: float = 20.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"not within {seconds} s; logs: {self.logs()}"
            time.sleep(0.02)

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
