"""Whole jobs of `sparsefleet train`, taken in turn: test AUC and speed of the same runs, on data of two makers."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from parts.common import criteo_files
from parts.other_data import other_data

ONE_PROCESS: tuple[object, ...] = ("--threads", 2)
JOB: tuple[object, ...] = ("--servers", 2, "--workers", 2, "--threads", 1)
"""As many training threads as `ONE_PROCESS`."""
MAKERS = ("synth", "other")
"""`sparsefleet data synth`, and that of another maker (benchmarks/parts/other_data.py)."""
QUICK = 60_000


@dataclass(frozen=True)
class Ran:
    auc: float
    rows_per_s: float


def train(data: Path, folder: Path, *options: object) -> Ran:
    command = [sys.executable, "-m", "sparsefleet", "train", "--data", str(data / "train")]
    command += ["--test-data", str(data / "test"), "--json", *map(str, options)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, cwd=folder)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    summary = json.loads(done.stdout.strip().splitlines()[-1])
    return Ran(float(summary["test_auc"]), float(summary["samples_per_s"]))


def medians(data: Path, folder: Path, ways: Mapping[str, Sequence[object]], rounds: int) -> dict[str, Ran]:
    """Each way's options of `train`, the ways taken in turn."""
    taken: dict[str, list[Ran]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, options in ways.items():
            taken[way].append(train(data, folder, *options))
    return {way: median(runs) for way, runs in taken.items()}


def median(runs: list[Ran]) -> Ran:
    return Ran(statistics.median(run.auc for run in runs), statistics.median(run.rows_per_s for run in runs))


def add_options(parser: argparse.ArgumentParser, makers: Sequence[str]) -> None:
    """Those that every benchmark of such jobs has; `makers`: whose data, by default."""
    parser.add_argument("--data", nargs="+", choices=MAKERS, default=list(makers))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--rows", type=int, default=400_000, help="samples to train on (%(default)s)")
    parser.add_argument("--keep", type=Path, help="folder for the data, to be used again")
    parser.add_argument("--quick", action="store_true", help="fewer samples, noisier figures")


def samples_of(given: argparse.Namespace) -> int:
    return QUICK if given.quick else int(given.rows)


@contextmanager
def data_folders(given: argparse.Namespace) -> Iterator[Iterator[tuple[str, Path, Path]]]:
    """By maker: its name, where its data lies, and a folder for jobs to run in."""
    with tempfile.TemporaryDirectory() as name:
        folder = given.keep or Path(name)
        folder.mkdir(exist_ok=True, parents=True)
        yield ((maker, _made(maker, folder, samples_of(given)), folder) for maker in given.data)


def _made(maker: str, folder: Path, samples: int) -> Path:
    if maker == "synth":
        return criteo_files(folder, samples)
    place = folder / f"other-{samples}"
    best = other_data(place, samples, samples // 10)
    Console(stderr=True).print(f"other data: best possible AUC {best:.4f}")
    return place
