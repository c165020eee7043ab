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
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
from math import comb
from pathlib import Path

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent))

from parts.common import criteo_files
from sparsefleet.kernels import _native, levels

ROOT = Path(__file__).resolve().parents[1]
BUILT = ROOT / "build" / "trees"
"""Commits that were built before."""
WANTED = 0.97
SAMPLES = 60_000
CONFIDENCE = 0.95


def checkout(what: str) -> Path:
    """A folder with the tree and its native module, for a folder or a commit."""
    if Path(what).is_dir():
        tree = Path(what).resolve()
        if not list((tree / "src" / "sparsefleet" / "kernels").glob("_native*.so")):
            if tree == ROOT:
                return as_installed()
            raise SystemExit(f"{tree} has no native module in src/sparsefleet/kernels: build it, or name a commit")
        return tree
    git = ["git", "-C", str(ROOT)]
    found = subprocess.run([*git, "rev-parse", "--verify", f"{what}^{{commit}}"], capture_output=True, text=True)
    if found.returncode:
        raise SystemExit(f"{what} is neither a folder nor a commit of {ROOT}")
    commit = found.stdout.strip()
    tree = BUILT / commit
    if not (tree / "ready").exists():
        Console(stderr=True).print(f"building {what} in {tree}")
        tree.mkdir(parents=True, exist_ok=True)
        archive = subprocess.run([*git, "archive", commit], check=True, capture_output=True)
        subprocess.run(["tar", "-x", "-C", tree], input=archive.stdout, check=True)
        build(tree)
        (tree / "ready").touch()
    return tree


def as_installed() -> Path:
    """This tree's sources, with the module that `make setup` has put into the environment."""
    tree = BUILT / "this"
    shutil.rmtree(tree, ignore_errors=True)
    shutil.copytree(ROOT / "src", tree / "src")
    module = Path(str(_native.__file__))
    shutil.copy(module, tree / "src" / "sparsefleet" / "kernels" / module.name)
    return tree


def build(tree: Path) -> None:
    settings = [f"-DPython_EXECUTABLE={sys.executable}", f"-DSPARSEFLEET_LEVELS={';'.join(levels.chosen.available)}"]
    for command in (
        ["cmake", "-S", tree, "-B", tree / "build", "-G", "Ninja", *settings],
        ["cmake", "--build", tree / "build"],
    ):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(map(str, command))} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    (module,) = (tree / "build").glob("_native*.so")
    module.rename(tree / "src" / "sparsefleet" / "kernels" / module.name)


class Tree:
    """A process that runs one tree's code."""

    def __init__(self, tree: Path, environment: Path, data: Path) -> None:
        # An environment of its own with this one's packages: whatever process a job starts uses the same tree.
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
        (packages,) = environment.glob("lib/*/site-packages")
        borrowed = dict.fromkeys([sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *sys.path[1:]])
        (packages / "tree.pth").write_text("\n".join([str(tree / "src"), *filter(None, borrowed)]))
        child = ROOT / "benchmarks" / "parts" / "tree_child.py"
        quiet = {"PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [environment / "bin" / "python", child, tree / "src", data],
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
