"""Jobs under a killer: `counting_job.py`, started by the launcher, and what its model says of each sample."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from waiting import wait_until

from sparsefleet import launch
from sparsefleet.checkpoint import Checkpoint
from sparsefleet.core.elastic import Elastic
from sparsefleet.launch.process import RoleProcess
from sparsefleet.launch.view import View

HERE = Path(__file__).parent
TOKEN = "0123456789abcdef0123456789abcdef"
LIMIT = 120.0
"""Seconds that a job may take, on a busy machine."""


class Watching(View):
    """Keeps the processes at hand for the killer, and what the launcher says."""

    wants_progress = False

    def __init__(self) -> None:
        self.said: list[str] = []
        self.processes: dict[str, RoleProcess] = {}

    def say(self, text: str) -> None:
        self.said.append(text)

    def quote(self, lines: Sequence[str]) -> None:
        self.said += lines

    def update(self, processes: Sequence[RoleProcess]) -> None:
        self.processes = {str(process.role): process for process in processes}


@dataclass
class Job:
    folder: Path
    mode: str
    samples: int = 400
    servers: int = 2
    workers: int = 2
    pace: float = 0.02
    timeout: float = 20.0
    restarts: int = 5
    cut_every: float = 0.3
    cuts: str | None = None
    """Where they go; None: into the folder of logs."""
    script: str = "counting_job.py"
    options: Sequence[str] = ()
    """For `counting_job.py`."""
    epochs: int = 1
    elastic: str | None = None
    view: Watching = field(default_factory=Watching)
    outcome: launch.Outcome | None = None

    def log(self, role: str) -> str:
        kind, index = role.split()
        path = self.folder / "log" / f"{kind}log.{index}"
        return path.read_text() if path.exists() else ""

    def logs(self) -> str:
        parts = [f"--- {path.name}\n{path.read_text()}" for path in sorted((self.folder / "log").glob("*log.*"))]
        return "\n".join([*self.view.said, *parts])

    def make_data(self) -> str:
        data = self.folder / "data"
        if data.exists():  # of a job before it
            return str(data)
        data.mkdir()
        for part in range(2):
            keys = range(part * self.samples // 2, (part + 1) * self.samples // 2)
            line = _counted if self.script == "counting_job.py" else _clicked
            (data / f"part-{part}").write_text("".join(map(line, keys)))
        return str(data)

    def run(self, killer: Callable[[Job], None] = lambda job: None) -> launch.Outcome:
        """The whole job, with the killer at work beside it."""
        data, saved = self.make_data(), str(self.folder / "saved")
        arguments = [self.mode, data, saved, str(self.pace), str(self.timeout), *self.options]
        command = [sys.executable, str(HERE / self.script), *arguments]
        settings = launch.RunSettings(
            log_dir=self.folder / "log",
            timeout=self.timeout,
            grace=2.0,
            restart=launch.RestartPolicy(
                self.restarts, cut_every=self.cut_every if self.restarts else None, cuts=self.cuts
            ),
            elastic=None if self.elastic is None else Elastic.parse("elastic", self.elastic),
        )
        errors: list[BaseException] = []

        def kill() -> None:
            try:
                killer(self)
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=kill, daemon=True)
        thread.start()
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "SPARSEFLEET_TOKEN": TOKEN}
        self.outcome = launch.run_local(
            lambda role: command, self.servers, self.workers, settings, view=self.view, environment=environment
        )
        thread.join(10)
        assert not errors, f"{errors[0]!r}\n{self.logs()}"
        return self.outcome

    def wait_for(self, condition: Callable[[], object], seconds: float = LIMIT) -> None:
        wait_until(lambda: self.outcome is not None or condition(), seconds, lambda: self.logs())

    def wait_for_step(self, step: int, role: str = "worker 0") -> None:
        self.wait_for(lambda: f"step {step}\n" in self.log(role))

    def wait_for_cut(self) -> None:
        """One that was taken after training had begun."""
        if self.cuts is not None:
            self.wait_for(lambda: "a cut of what changed since" in self.log("worker 0"))
            return
        self.wait_for(lambda: len(list((self.folder / "log").glob("cuts-*/attempt-*/step-*/manifest.json"))) > 1)

    def wait_for_attempt(self, number: int) -> None:
        self.wait_for(lambda: any(f"attempt {number} trains on" in line for line in self.view.said))

    def hurry(self) -> None:
        """What was to happen while the job runs has happened: it may come to its end."""
        (self.folder / "hurry").touch()

    def send(self, role: str, number: signal.Signals) -> None:
        process = self.view.processes[role]
        if process.running:
            os.kill(process.pid, number)

    def counts(self) -> tuple[np.ndarray, float]:
        """How often each sample is in the model, by its key; and how many samples its dense parameter has seen."""
        checkpoint = Checkpoint.open(self.folder / "saved")
        rows = list(checkpoint.sparse_rows("counts"))
        counts = np.zeros(self.samples)
        for part in rows:
            counts[part.keys.astype(np.int64)] = part.values.reshape(-1)
        return counts, float(checkpoint.dense_cut("dense", 0, 1).values[0])

    def check_model(self) -> None:
        counts, everything = self.counts()
        wrong = counts != self.epochs
        assert not wrong.any(), f"not once: {np.flatnonzero(wrong)[:10]}, {counts[wrong][:10]}"
        assert everything == self.samples * self.epochs

    def check_counts(self) -> None:
        """The model, and what the trainers say: where one that was lost goes back to a cut, not where others go on."""
        self.check_model()
        rows = sum(int(line.split()[1]) for role in range(self.workers) for line in self._last_rows(role))
        assert rows == self.samples * self.epochs

    def _last_rows(self, worker: int) -> list[str]:
        return [line for line in self.log(f"worker {worker}").splitlines() if line.startswith("rows ")][-1:]


def _counted(key: int) -> str:
    """A sample in MultiSlot text, with a key of its own."""
    return f"1 {key} 1 1\n"


def _clicked(number: int) -> str:
    """A sample in Criteo's text."""
    chance = random.Random(number)
    dense = [str(chance.randrange(50)) for _ in range(13)]
    slots = [f"{chance.randrange(20):x}" for _ in range(26)]
    return "\t".join([str(chance.randrange(2)), *dense, *slots]) + "\n"
