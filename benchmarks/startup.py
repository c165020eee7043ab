"""Startup: seconds from the command to the first step of a job, on a warm Ray cluster and by the local launcher.

    python benchmarks/startup.py                five runs of each, in turn; medians
    RAY_ADDRESS=head:6379 python benchmarks/startup.py --data /shared/train --folder /shared/startup

Without RAY_ADDRESS it starts a cluster of three nodes on loopback (tests/helpers/ray_cluster.py). Warm: a
job has run there before. 2 servers and 2 trainers, async, CTR-DNN; the first step of the trainer that is first counts.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent))

from parts.common import BENCHMARKS, criteo_files

JOB_SECONDS = 300.0
ROWS = 4000
CLUSTER = BENCHMARKS.parent / "tests" / "helpers" / "ray_cluster.py"


@dataclass(frozen=True)
class Startup:
    """Seconds since the command was given."""

    begun: float
    """Until a trainer's script began, its imports done."""
    connected: float
    """Until a trainer was connected to all servers."""
    step: float
    """Until its first step was done."""
    over: float
    """Until the command had ended."""


def startup(on: str, data: Path, folder: Path, environment: dict[str, str]) -> Startup:
    command = [sys.executable, "-m", "sparsefleet.launch", "--on", on, "--server_num=2", "--worker_num=2"]
    command += ["--log_dir", str(folder / "log"), str(BENCHMARKS / "parts" / "first_step.py"), str(data)]
    begun = time.time()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=JOB_SECONDS, check=False)
    over = time.time() - begun
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed ({done.returncode}):\n{done.stderr[-3000:]}")
    logs = [(folder / "log" / f"workerlog.{index}").read_text() for index in range(2)]
    moments = {
        what: min(float(line.split()[1]) for log in logs for line in log.splitlines() if line.startswith(f"{what} "))
        for what in ("begun", "connected", "step")
    }
    return Startup(*(moments[what] - begun for what in ("begun", "connected", "step")), over)


@contextlib.contextmanager
def ray_address() -> Iterator[str]:
    if address := os.environ.get("RAY_ADDRESS"):
        yield address
        return
    process = subprocess.Popen(
        [sys.executable, str(CLUSTER), "2,2,2", "0"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        line = next((line for line in process.stdout if line.startswith("{")), None)
        if line is None:
            sys.exit("error: the Ray cluster did not start")
        yield json.loads(line)["address"]
    finally:
        process.stdin.close()
        process.wait(60)


def main() -> None:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    arguments.add_argument("--rounds", type=int, default=5, help="runs of each, taken in turn (%(default)s)")
    arguments.add_argument("--data", type=Path, help="Criteo-like files, as all nodes see them (made, without it)")
    arguments.add_argument("--folder", type=Path, help="for logs (a temporary one)")
    given = arguments.parse_args()
    taken: dict[str, list[Startup]] = {"local": [], "ray": []}
    with tempfile.TemporaryDirectory() as name, ray_address() as address:
        folder = given.folder or Path(name)
        data = given.data or criteo_files(Path(name), ROWS) / "train"
        environment = {**os.environ, "RAY_ADDRESS": address}
        for on in taken:
            startup(on, data, folder, environment)  # files are cached, the cluster is warm
        for _ in range(given.rounds):
            for on, measured in taken.items():
                measured.append(startup(on, data, folder, environment))
    table = Table("seconds", "script begins", "connected", "first step", "command over", title="startup, 2 x 2")
    for on, measured in taken.items():
        columns = list(zip(*map(astuple, measured), strict=True))
        shown = [f"{statistics.median(one):.1f} ({min(one):.1f} to {max(one):.1f})" for one in columns]
        table.add_row({"local": "local launcher", "ray": "warm Ray cluster"}[on], *shown)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
