"""What the parts of a benchmark share."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sparsefleet.datasets.synth import SynthSpec, synth

BENCHMARKS = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Scale:
    """How much work a measurement does."""

    rows: int
    rounds: int
    seconds: float
    table_rows: int


@dataclass(frozen=True)
class Line:
    """One line of the table: a figure, what it is measured against, and what is wanted of it."""

    what: str
    figure: str
    against: str
    ratio: str
    wanted: str
    met: bool | None
    """None: this machine cannot show it."""


def in_turn(measures: Sequence[Callable[[], float]], rounds: int) -> list[float]:
    """The median of each measure, taken in turn."""
    taken: list[list[float]] = [[] for _ in measures]
    for _ in range(rounds):
        for values, measure in zip(taken, measures, strict=True):
            values.append(measure())
    return [statistics.median(values) for values in taken]


def criteo_files(folder: Path, rows: int) -> Path:
    """A folder with train/ and test/ part files of Criteo-like rows; made once."""
    data = folder / f"criteo-{rows}"
    if not data.exists():
        synth(data, SynthSpec(rows, rows // 10))
    return data


def in_child(script: str, *arguments: object) -> list[float]:
    """The numbers that a script of this folder prints last, from a process of its own: nothing is warm or shared."""
    command = [sys.executable, str(BENCHMARKS / script), *map(str, arguments)]
    quiet = os.environ | {"PYTHONWARNINGS": "ignore"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, env=quiet)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return [float(word) for word in done.stdout.strip().splitlines()[-1].split()]
