"""One checkout of the project, measured by benchmarks/compare_trees.py: for each job named on its input, its processor
seconds per million samples.

It runs against older and newer trees alike, so it imports nothing but what both have.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

import sparsefleet
from sparsefleet import optim
from sparsefleet.core.schema import CRITEO
from sparsefleet.data.open import open_reader
from sparsefleet.fleet.roles import Role
from sparsefleet.models import CTRDNN
from sparsefleet.table import SparseTable, TableSpec
from sparsefleet.train import Trainer

THREADS = 2
EPOCHS = 4
"""Of a job of many processes: enough that their start does not decide."""
DIM, TABLE_ROWS, CALL, CALLS = 10, 400_000, 10_000, 200
TOKEN = {"SPARSEFLEET_TOKEN": "benchmark"}
Job = Callable[[], float]


def processor_seconds() -> float:
    """Of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def training(data: Path, batch: int) -> Job:
    def job() -> float:
        torch.manual_seed(0)
        reader = open_reader(str(data / "train"), CRITEO, batch_size=batch)
        begin = processor_seconds()
        result = Trainer(optim.Adam(1e-3), reporters=(), threads=THREADS).fit(CTRDNN(), reader)
        return (processor_seconds() - begin) / result.rows * 1e6

    return job


def reading(data: Path) -> Job:
    def job() -> float:
        begin, samples = processor_seconds(), 0
        for _ in range(8):
            with open_reader(str(data / "train"), CRITEO, batch_size=1000).epoch(1) as epoch:
                samples += sum(len(batch) for stream in epoch.streams for batch in stream)
        return (processor_seconds() - begin) / samples * 1e6

    return job


def table_jobs() -> dict[str, Job]:
    """Per million rows of a table."""
    draw = np.random.default_rng(0)
    table = SparseTable(TableSpec("rows", DIM, optim.Adam(1e-3)))
    keys = np.arange(TABLE_ROWS, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    table.pull(keys)
    calls = [np.ascontiguousarray(draw.permutation(keys)[:CALL]) for _ in range(CALLS)]
    grads = draw.normal(size=(CALL, DIM)).astype(np.float32)

    def timed(call: Callable[[np.ndarray], object]) -> Job:
        def job() -> float:
            begin = time.thread_time()
            for chosen in calls:
                call(chosen)
            return (time.thread_time() - begin) / (CALLS * CALL) * 1e6

        return job

    return {"table pull": timed(table.pull), "table push, Adam": timed(lambda chosen: table.push(chosen, grads))}


def train_with_servers(samples: Path, batch: int) -> list[str]:
    command = [sys.executable, "-m", "sparsefleet", "train", f"--data={samples}", f"--batch-size={batch}", "--json"]
    return [*command, f"--threads={THREADS}", "--mode=async", f"--epochs={EPOCHS}"]


def rows_trained(told: str) -> int:
    return int(json.loads(told.strip().splitlines()[-1])["rows"])


def few_samples(data: Path, folder: Path) -> Path:
    """A thousand of them: what a job of these takes is its start and its end."""
    few = folder / "few"
    if not few.exists():
        few.mkdir()
        with next(iter((data / "train").iterdir())).open("rb") as lines:
            (few / "part").write_bytes(b"".join(lines.readline() for _ in range(1000)))
    return few


def without_start(run: Callable[[Path], tuple[float, int]], data: Path, folder: Path) -> Job:
    """`run`: processor seconds and samples of a job on this data; what starting and ending it takes does not count."""
    few = few_samples(data, folder)
    start, started_with = sorted(run(few) for _ in range(3))[1]

    def job() -> float:
        seconds, samples = run(data / "train")
        return (seconds - start) / (samples - started_with) * 1e6

    return job


def one_by_one(data: Path, folder: Path, batch: int) -> Job:
    """A job of a server and a trainer, both of this tree."""

    def run(samples: Path) -> tuple[float, int]:
        command = [*train_with_servers(samples, batch), "--servers=1", "--workers=1"]
        begin = processor_seconds()
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=folder)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
        return processor_seconds() - begin, rows_trained(done.stdout)

    return without_start(run, data, folder)


def served(data: Path, folder: Path, batch: int) -> Job:
    """The server's part of such a job."""

    def run(samples: Path) -> tuple[float, int]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            endpoint = f"127.0.0.1:{free.getsockname()[1]}"
        command = train_with_servers(samples, batch)
        serving, training = (
            {**os.environ, **role.environment(), **TOKEN}
            for role in (Role.server(0, 1, [endpoint]), Role.worker(0, 1, [endpoint]))
        )
        with (folder / "server").open("w+b") as said:
            server = subprocess.Popen(command, env=serving, stdout=said, stderr=said, cwd=folder)
            limit = threading.Timer(600, server.kill)
            limit.start()
            try:
                done = subprocess.run(command, env=training, capture_output=True, text=True, timeout=600, cwd=folder)
                _, status, used = os.wait4(server.pid, 0)
                server.returncode = os.waitstatus_to_exitcode(status)
            finally:
                limit.cancel()
                server.kill()
                server.wait()
            if done.returncode or server.returncode:
                said.seek(0)
                told = f"{said.read().decode()[-2000:]}{done.stderr[-2000:]}"
                raise RuntimeError(f"{' '.join(command)} failed:\n{told}")
        return used.ru_utime + used.ru_stime, rows_trained(done.stdout)

    return without_start(run, data, folder)


def jobs(data: Path, folder: Path) -> dict[str, Callable[[], Job]]:
    """By name, how to get each ready."""
    tables: dict[str, Job] = {}

    def table(name: str) -> Callable[[], Job]:
        return lambda: (tables or tables.update(table_jobs()) or tables)[name]

    return {
        "train, batch 100": lambda: training(data, 100),
        "train, batch 1000": lambda: training(data, 1000),
        "read Criteo text": lambda: reading(data),
        **{name: table(name) for name in ("table pull", "table push, Adam")},
        "async 1 x 1, batch 1000": lambda: one_by_one(data, folder, 1000),
        "the server of async 1 x 1, batch 100": lambda: served(data, folder, 100),
    }


def main(source: Path, data: Path) -> None:
    assert Path(sparsefleet.__file__).is_relative_to(source), f"{sparsefleet.__file__} is not of {source}"
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        known, ready = jobs(data, Path(folder)), dict[str, Job]()
        print(*known, sep="\t", flush=True)
        for line in sys.stdin:
            name = line.strip()
            if name not in ready:
                ready[name] = known[name]()
            print(ready[name](), flush=True)


if __name__ == "__main__":
    os.environ["PYTHONWARNINGS"] = "ignore"
    main(Path(sys.argv[1]), Path(sys.argv[2]))
