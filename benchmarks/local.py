"""Speed and memory on one machine, as ratios in one run. What was found is written down in benchmarks/local.md.

    python benchmarks/local.py            the whole table, about eight minutes
    python benchmarks/local.py --quick    shorter runs, noisier figures
    python benchmarks/local.py training   one part: reader, training, tables or memory

Machines are noisy, so every figure of a ratio is taken several times, in turn with its partner, and the median counts.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent))

from parts import memory, reader, tables, training
from parts.common import Scale
from sparsefleet.kernels import levels

MARKS = {True: "[green]yes[/]", False: "[red]no[/]", None: "not on this machine"}
TITLE = f"SparseFleet on one machine, 2 threads, level {levels.chosen.level} ({levels.this_processor().name})"
PARTS = {"reader": reader.lines, "training": training.lines, "tables": tables.lines, "memory": memory.lines}


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    arguments.add_argument("parts", nargs="*", metavar="PART", help=f"any of {', '.join(PARTS)}; default: all")
    arguments.add_argument("--quick", action="store_true", help="shorter runs, noisier figures")
    given = arguments.parse_args()
    unknown = [name for name in given.parts if name not in PARTS]
    if unknown:
        arguments.error(f"no part {', '.join(unknown)}; choose from {', '.join(PARTS)}")
    scale = Scale(100_000, 1, 2.0, 1_000_000) if given.quick else Scale(400_000, 3, 4.0, 10_000_000)
    console = Console(width=150)
    table = Table("what", "figure", "against", "ratio", "wanted", "", title=TITLE)
    with tempfile.TemporaryDirectory() as folder:
        for name in given.parts or PARTS:
            Console(stderr=True).print(f"measuring: {name}")
            for line in PARTS[name](Path(folder), scale):
                mark = MARKS[line.met]
                table.add_row(line.what, line.figure, line.against, line.ratio, line.wanted, mark)
            table.add_section()
    console.print(table)


if __name__ == "__main__":
    main()
