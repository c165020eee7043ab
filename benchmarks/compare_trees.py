"""Two checkouts of the project side by side: is the newer one slower at anything?

    python benchmarks/compare_trees.py REV              this tree against a commit, which is built first
    python benchmarks/compare_trees.py FOLDER           against another checkout that has its native module
    python benchmarks/compare_trees.py REV --after REV  a commit against a commit
    python benchmarks/compare_trees.py REV --jobs "train, batch 100" "table pull"

One process of each tree stays up. They do the same job in turn and tell the processor seconds, user and system, that a
million samples (or rows of a table) took: what else the machine does meets both alike. The ratio of a pair is before /
after, so above 1 is faster; the table shows the median of all pairs and an interval around it (with nine pairs, from
the second lowest to the second highest, which holds the true median 96 times of 100).
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
from math import comb
from pathlib import Path

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent))

from parts.common import criteo_files
from parts.trees import ROOT, checkout, python_of

WANTED = 0.97
SAMPLES = 60_000
CONFIDENCE = 0.95


class Tree:
    """A process that runs one tree's code."""

    def __init__(self, tree: Path, environment: Path, data: Path) -> None:
        python = python_of(tree, environment)
        child = ROOT / "benchmarks" / "parts" / "tree_child.py"
        quiet = {"PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [python, child, tree / "src", data],
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | quiet,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.jobs = self._answer().split("\t")

    def _answer(self) -> str:
        assert self._process.stdout
        line = self._process.stdout.readline().strip()
        if not line:
            raise RuntimeError("a measuring process ended; its error stands above")
        return line

    def seconds(self, job: str) -> float:
        assert self._process.stdin
        print(job, file=self._process.stdin, flush=True)
        return float(self._answer())

    def close(self) -> None:
        self._process.kill()
        self._process.communicate(timeout=10)


def interval(ratios: list[float]) -> tuple[float, float]:
    """Between which of the sorted ratios the true median lies, 95 times of 100, whatever their distribution."""
    ordered, n = sorted(ratios), len(ratios)
    cut, outside = 0, 2 / 2**n
    while cut < (n - 1) // 2 and outside + 2 * comb(n, cut + 1) / 2**n <= 1 - CONFIDENCE:
        cut += 1
        outside += 2 * comb(n, cut) / 2**n
    return ordered[cut], ordered[n - 1 - cut]


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    arguments.add_argument("before", help="a commit, or the folder of a checkout with its native module")
    arguments.add_argument("--after", default=str(ROOT), help="the same; default: this tree as it stands")
    arguments.add_argument("--pairs", type=int, default=9)
    arguments.add_argument("--samples", type=int, default=SAMPLES, help="of one training run; default %(default)s")
    arguments.add_argument("--jobs", nargs="+", metavar="JOB", help="default: all")
    given = arguments.parse_args()
    trees = [checkout(what) for what in (given.before, given.after)]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        data = criteo_files(folder, given.samples)
        (data / "schema.json").unlink()  # an older tree may not read it; without it every tree takes Criteo's own
        before, after = both = [Tree(tree, folder / name, data) for tree, name in zip(trees, "ab", strict=True)]
        try:
            chosen = given.jobs or before.jobs
            if unknown := [job for job in chosen if job not in before.jobs]:
                arguments.error(f"no job {', '.join(unknown)}; choose from {', '.join(before.jobs)}")
            table = Table("job", "before", "after", "before / after", "interval", f">= {WANTED}")
            table.title = "processor seconds per million samples"
            for job in chosen:
                for tree in both:
                    tree.seconds(job)  # warm
                pairs = []
                for number in range(given.pairs):
                    order = both if number % 2 else both[::-1]  # who begins changes from pair to pair
                    taken = {tree: tree.seconds(job) for tree in order}
                    pairs.append((taken[before], taken[after]))
                was, now = (statistics.median(times) for times in zip(*pairs, strict=True))
                ratios = [old / new for old, new in pairs]
                low, high = interval(ratios)
                mark = "[green]yes[/]" if statistics.median(ratios) >= WANTED else "[red]no[/]"
                shown = f"{was:.2f}", f"{now:.2f}", f"{statistics.median(ratios):.3f}", f"{low:.3f} to {high:.3f}"
                table.add_row(job, *shown, mark)
                Console(stderr=True).print(re.sub(r"\[.*?\]", "", "  ".join([job, *shown])))
            Console(width=110).print(table)
        finally:
            for tree in both:
                tree.close()


if __name__ == "__main__":
    main()
