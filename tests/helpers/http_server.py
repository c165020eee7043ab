"""`sparsefleet serve` as a process of its own, on a free loopback port, ended whatever happens."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx

SOURCES = Path(__file__).resolve().parents[2] / "src"


class Served:
    def __init__(
        self, bundle: Path | str, *options: str, env: dict[str, str] | None = None, code: str | None = None
    ) -> None:
        """`code`: run in place of `-m sparsefleet`."""
        program = ["-m", "sparsefleet"] if code is None else ["-c", code]
        paths = os.pathsep.join([str(SOURCES), os.environ.get("PYTHONPATH", "")])
        self.process = subprocess.Popen(
            [sys.executable, *program, "serve", str(bundle), "--port", "0", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": paths, "SPARSEFLEET_TOKEN": "", **(env or {})},
        )
        assert self.process.stdout is not None
        timer = threading.Timer(60, self.process.kill)
        timer.start()
        line = self.process.stdout.readline()
        timer.cancel()
        if not line:
            _, errors = self.process.communicate(timeout=10)
            raise AssertionError(f"the server ended with {self.process.returncode}: {errors}")
        self.about = json.loads(line)
        self.url = self.about["url"]
        self.client = httpx.Client(base_url=self.url, timeout=30)

    def post(self, path: str, body: object) -> httpx.Response:
        return self.client.post(path, json=body)

    def terminate(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=40)

    def end(self) -> None:
        self.client.close()
        self.process.kill()
        self.process.communicate(timeout=10)


@contextlib.contextmanager
def serving(bundle: Path | str, *options: str, env: dict[str, str] | None = None) -> Iterator[Served]:
    server = Served(bundle, *options, env=env)
    try:
        yield server
    finally:
        server.end()
