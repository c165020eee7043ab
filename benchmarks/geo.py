"""Does geo learn, with every rule? Two servers and two trainers against one process with two threads: the same rows
from raw text, one epoch, test AUC and speed of the same runs.

    python benchmarks/geo.py                         all rules on both data sets, about half an hour
    python benchmarks/geo.py --rules adam --rounds 3 one rule, medians of three runs taken in turn
    python benchmarks/geo.py --quick                 fewer rows, one round, noisier figures

The data: `sparsefleet data synth`, and that of another maker (benchmarks/parts/other_data.py).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent))

from parts.common import criteo_files
from parts.other_data import other_data

RATES: dict[str, float | None] = {"sgd": None, "adagrad": 1e-2, "rowwise_adagrad": 1e-2, "adam": None, "ftrl": 1e-1}
"""Learning rates; None: the command's own."""
EVERY = (10, 100)
WITHIN = {10: 0.005, 100: 0.01}
"""How far geo's test AUC may be from one process's, by `k_steps`."""
SPEED = 0.85


@dataclass(frozen=True)
class Ran:
    auc: float
    rows_per_s: float


@dataclass(frozen=True)
class Case:
    data: str
    rule: str
    batch: int


def train(data: Path, folder: Path, *options: object) -> Ran:
    command = [sys.executable, "-m", "sparsefleet", "train", "--data", str(data / "train")]
    command += ["--test-data", str(data / "test"), "--json", *map(str, options)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, cwd=folder)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    summary = json.loads(done.stdout.strip().splitlines()[-1])
    return Ran(float(summary["test_auc"]), float(summary["samples_per_s"]))


def median(runs: list[Ran]) -> Ran:
    return Ran(statistics.median(run.auc for run in runs), statistics.median(run.rows_per_s for run in runs))


def measured(case: Case, data: Path, folder: Path, rounds: int) -> list[Ran]:
    """One process with two threads, then geo with each `k_steps`; medians of runs taken in turn."""
    common: list[object] = ["--batch-size", case.batch, "--optimizer", case.rule]
    if (rate := RATES[case.rule]) is not None:
        common += ["--learning-rate", rate]
    job = ["--servers", 2, "--workers", 2, "--threads", 1, "--mode", "geo"]
    ways: list[list[object]] = [["--threads", 2], *([*job, "--k-steps", k] for k in EVERY)]
    taken: list[list[Ran]] = [[] for _ in ways]
    for _ in range(rounds):
        for runs, way in zip(taken, ways, strict=True):
            runs.append(train(data, folder, *common, *way))
    return [median(runs) for runs in taken]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--rules", nargs="+", choices=sorted(RATES), default=sorted(RATES))
    parser.add_argument("--data", nargs="+", choices=["synth", "other"], default=["synth", "other"])
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="folder for the data, to be used again")
    parser.add_argument("--quick", action="store_true", help="fewer rows, noisier figures")
    given = parser.parse_args()
    rows = 60_000 if given.quick else 400_000
    table = Table("data", "rule", "one process: AUC", "rows/s", title=f"geo, 2 x 2, batch {given.batch}, {rows:,} rows")
    for k in EVERY:
        for column in (f"k = {k}: AUC", "difference", "rows/s", "of one process"):
            table.add_column(column)
    with tempfile.TemporaryDirectory() as name:
        folder = given.keep or Path(name)
        folder.mkdir(exist_ok=True, parents=True)
        for data in given.data:
            place = criteo_files(folder, rows) if data == "synth" else folder / f"other-{rows}"
            if data == "other":
                best = other_data(place, rows, rows // 10)
                Console(stderr=True).print(f"other data: best possible AUC {best:.4f}")
            for rule in given.rules:
                one, *many = measured(Case(data, rule, given.batch), place, folder, given.rounds)
                cells = [data, rule, f"{one.auc:.4f}", f"{one.rows_per_s:,.0f}"]
                for k, geo in zip(EVERY, many, strict=True):
                    gap, ratio = geo.auc - one.auc, geo.rows_per_s / one.rows_per_s
                    near = "green" if gap >= -WITHIN[k] else "red"
                    fast = "green" if ratio >= SPEED else "red"
                    cells += [f"{geo.auc:.4f}", f"[{near}]{gap:+.4f}[/]", f"{geo.rows_per_s:,.0f}"]
                    cells.append(f"[{fast}]{ratio:.2f}[/]")
                table.add_row(*cells)
                Console(stderr=True, width=200).print(*cells, sep=" | ")
    Console(width=180).print(table)


if __name__ == "__main__":
    main()
