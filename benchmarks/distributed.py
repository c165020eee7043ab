"""Servers and trainers on this host against one process with two threads: the same rows, from raw text, in one run.

    python benchmarks/distributed.py            about ten minutes
    python benchmarks/distributed.py --quick    fewer rows and rounds, noisier figures
    python benchmarks/distributed.py --leases   what handing data out in pieces costs, in processor seconds

The wire alone (a bare exchange, clients at once, latencies) is measured by benchmarks/wire.py.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent))

from parts.common import criteo_files, in_turn
from parts.leases import compare_leases


@dataclass(frozen=True)
class Case:
    mode: str
    servers: int
    workers: int
    threads: int
    batch: int
    wanted: float
    optimizer: str = "adam"

    @property
    def name(self) -> str:
        return f"{self.mode} {self.servers} x {self.workers}, batch {self.batch}, {self.optimizer}"


CASES = (
    Case("async", 1, 1, 2, 1000, 0.75),
    Case("async", 2, 2, 1, 1000, 0.75),
    Case("async", 1, 1, 2, 100, 0.5),
    Case("async", 2, 2, 1, 100, 0.5),
    Case("geo", 2, 2, 1, 1000, 0.85, "sgd"),
    Case("geo", 2, 2, 1, 100, 0.85, "sgd"),
    Case("sync", 2, 2, 1, 1000, 0.6),
)


def rows_per_second(data: Path, folder: Path, *options: object) -> float:
    train = [sys.executable, "-m", "sparsefleet", "train", "--data", str(data / "train"), "--json"]
    command = [*train, *map(str, options)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, cwd=folder)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return float(json.loads(done.stdout.strip().splitlines()[-1])["samples_per_s"])


def measured(case: Case, data: Path, folder: Path, rounds: int) -> tuple[float, float]:
    """Rows a second of the job, and of one process with two threads; the median of runs taken in turn."""
    common = ("--batch-size", case.batch, "--optimizer", case.optimizer)
    job = ("--servers", case.servers, "--workers", case.workers, "--threads", case.threads, "--mode", case.mode)
    if case.mode == "geo":
        job += ("--k-steps", 100)
    many, one = in_turn(
        [
            lambda: rows_per_second(data, folder, *common, *job),
            lambda: rows_per_second(data, folder, *common, "--threads", 2),
        ],
        rounds,
    )
    return many, one


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    arguments.add_argument("--quick", action="store_true", help="fewer rows and rounds, noisier figures")
    arguments.add_argument("--leases", action="store_true", help="what leases cost against fixed shares")
    options = arguments.parse_args()
    quick = options.quick
    if options.leases:
        rows = 100_000 if quick else 400_000
        with tempfile.TemporaryDirectory() as name:
            data = criteo_files(Path(name), rows)
            compare_leases(rows_per_second, data, Path(name), rows, 2 if quick else 9)
        return
    table = Table("job", "rows/s", "one process, 2 threads", "ratio", "wanted", "", title="SparseFleet on one host")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for case in CASES:
            data = criteo_files(folder, 100_000 if quick else 400_000)
            many, one = measured(case, data, folder, 1 if quick else 3)
            ratio = many / one
            met = "[green]yes[/]" if ratio >= case.wanted else "[red]no[/]"
            table.add_row(case.name, f"{many:,.0f}", f"{one:,.0f}", f"{ratio:.2f}", f">= {case.wanted}", met)
            Console(stderr=True).print(f"{case.name}: {many:,.0f} of {one:,.0f} rows/s")
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
