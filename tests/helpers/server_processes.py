"""Real parameter servers for tests: processes on free loopback ports, ended whatever happens."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from sparsefleet.crew import CutMember, Reports
from sparsefleet.store.base import RunFacts
from sparsefleet.store.remote import RemoteStore
from sparsefleet.store.remote.config import RemoteConfig

HELPERS = Path(__file__).parent
SOURCES = HELPERS.parents[1] / "src"


class Servers:
    """Some server processes. `stores` made here are closed with them."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[str]] = []
        self.endpoints: list[str] = []
        self.stores: list[RemoteStore] = []

    def start(
        self, count: int = 1, *options: str, script: str | None = None, env: dict[str, str] | None = None
    ) -> Servers:
        command = [sys.executable, str(HELPERS / script)] if script else [sys.executable, "-m", "sparsefleet.server"]
        paths = os.pathsep.join([str(SOURCES), os.environ.get("PYTHONPATH", "")])
        for _ in range(count):
            index = len(self.processes)
            self.processes.append(
                subprocess.Popen(
                    [*command, "--index", str(index), "--watch-parent", *options],
                    stdout=subprocess.PIPE,
                    text=True,
                    env={**os.environ, "PYTHONPATH": paths, **(env or {})},
                )
            )
        for process in self.processes[len(self.endpoints) :]:
            self.endpoints.append(json.loads(_line(process))["endpoint"])
        return self

    def store(self, worker: int = 0, workers: int = 1, **settings: object) -> RemoteStore:
        settings = {"timeout": 20.0, "connect_timeout": 20.0, **settings}
        store = RemoteStore(RemoteConfig(tuple(self.endpoints), worker, workers, **settings))  # type: ignore[arg-type]
        self.stores.append(store)
        return store

    def stores_of_all(self, workers: int, **settings: object) -> list[RemoteStore]:
        return [self.store(worker, workers, **settings) for worker in range(workers)]

    def end(self) -> None:
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
        for store in self.stores:
            store.close()
        for process in self.processes:
            process.kill()
            process.wait(timeout=10)
            if process.stdout:
                process.stdout.close()


def save_together(store: RemoteStore, path: str, member: CutMember, facts: Callable[[Reports], RunFacts]) -> None:
    """A checkpoint of all trainers' work at one moment, as a run makes it; this one's part in it is `member`."""
    cut, known = store.crew.at_one_moment(member, store.hold(), lambda reports: (store.cut(), facts(reports)))
    with cut:
        cut.write(path, known)


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    timer = threading.Timer(30, process.kill)
    timer.start()
    try:
        line = process.stdout.readline()
    finally:
        timer.cancel()
    assert line, f"the server said nothing and ended with {process.wait(timeout=5)}"
    return line


@contextlib.contextmanager
def servers() -> Iterator[Servers]:
    made = Servers()
    try:
        yield made
    finally:
        made.end()
