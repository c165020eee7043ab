"""Does geo learn, with every rule? Two servers and two trainers against one process with two threads: the same samples
from raw text, one epoch, test AUC and speed of the same runs.

    python benchmarks/geo.py                         all rules on both data sets, 30 runs: 6 to 30 minutes by machine
    python benchmarks/geo.py --rows 200000           the same in less
    python benchmarks/geo.py --rules adam --rounds 3 one rule, medians of three runs taken in turn
    python benchmarks/geo.py --quick                 fewer samples, one round, noisier figures

The data: `sparsefleet data synth`, and that of another maker (benchmarks/parts/other_data.py).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent))

from parts.jobs import JOB, MAKERS, ONE_PROCESS, add_options, data_folders, medians, samples_of

RATES: dict[str, float | None] = {"sgd": None, "adagrad": 1e-2, "rowwise_adagrad": 1e-2, "adam": None, "ftrl": 1e-1}
"""Learning rates; None: the command's own."""
WITHIN = {10: 0.005, 100: 0.01}
"""How far geo's test AUC may be from one process's, by `k_steps`."""
SPEED = 0.85


def ways_of(rule: str, batch: int) -> dict[str, list[object]]:
    """One process with two threads, and geo with each `k_steps`."""
    common: list[object] = ["--batch-size", batch, "--optimizer", rule]
    if (rate := RATES[rule]) is not None:
        common += ["--learning-rate", rate]
    ways = {f"k = {k}": [*common, *JOB, "--mode", "geo", "--k-steps", k] for k in WITHIN}
    return {"one process": [*common, *ONE_PROCESS], **ways}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--rules", nargs="+", choices=sorted(RATES), default=sorted(RATES))
    parser.add_argument("--batch", type=int, default=100)
    add_options(parser, makers=MAKERS)
    given = parser.parse_args()
    table = Table("data", "rule", "one process: AUC", "samples/s")
    table.title = f"geo, 2 x 2, batch {given.batch}, {samples_of(given):,} samples"
    for k in WITHIN:
        for column in (f"k = {k}: AUC", "difference", "samples/s", "of one process"):
            table.add_column(column)
    with data_folders(given) as folders:
        for maker, data, folder in folders:
            for rule in given.rules:
                taken = medians(data, folder, ways_of(rule, given.batch), given.rounds)
                one = taken["one process"]
                cells = [maker, rule, f"{one.auc:.4f}", f"{one.rows_per_s:,.0f}"]
                for k, within in WITHIN.items():
                    geo = taken[f"k = {k}"]
                    gap, ratio = geo.auc - one.auc, geo.rows_per_s / one.rows_per_s
                    near = "green" if gap >= -within else "red"
                    fast = "green" if ratio >= SPEED else "red"
                    cells += [f"{geo.auc:.4f}", f"[{near}]{gap:+.4f}[/]", f"{geo.rows_per_s:,.0f}"]
                    cells.append(f"[{fast}]{ratio:.2f}[/]")
                table.add_row(*cells)
                Console(stderr=True, width=200).print(*cells, sep=" | ")
    Console(width=180).print(table)


if __name__ == "__main__":
    main()
