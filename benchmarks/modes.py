"""The four modes on CTR-DNN: what each makes of the same samples, and how fast, beside one process with two threads.

    python benchmarks/modes.py                             batches of 100 and 1000, about twenty minutes
    python benchmarks/modes.py --batch 100 --rounds 3      medians of three runs taken in turn
    python benchmarks/modes.py --quick                     fewer samples, noisier figures

Two servers and two trainers of one thread each, Adam, one epoch from raw text. benchmarks/word2vec.py does the same for
word vectors; docs/modes.md has what was measured, and which settings to choose.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent))

from parts.jobs import JOB, ONE_PROCESS, add_options, data_folders, medians, samples_of

WAYS: dict[str, tuple[object, ...]] = {
    "one process": ONE_PROCESS,
    "sync": (*JOB, "--mode", "sync"),
    "half_async": (*JOB, "--mode", "half_async"),
    "async": (*JOB, "--mode", "async"),
    "geo, k = 10": (*JOB, "--mode", "geo", "--k-steps", 10),
    "geo, k = 100": (*JOB, "--mode", "geo", "--k-steps", 100),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--batch", nargs="+", type=int, default=[100, 1000])
    add_options(parser, makers=["synth"])
    given = parser.parse_args()
    table = Table("data", "batch", "mode", "test AUC", "difference", "samples/s", "of one process")
    table.title = f"CTR-DNN, Adam, one epoch of {samples_of(given):,} samples, 2 x 2"
    with data_folders(given) as folders:
        for maker, data, folder in folders:
            for batch in given.batch:
                ways = {way: ("--batch-size", batch, *options) for way, options in WAYS.items()}
                taken = medians(data, folder, ways, given.rounds)
                one = taken["one process"]
                for way, ran in taken.items():
                    cells = [maker, str(batch), way, f"{ran.auc:.4f}", f"{ran.auc - one.auc:+.4f}"]
                    cells += [f"{ran.rows_per_s:,.0f}", f"{ran.rows_per_s / one.rows_per_s:.2f}"]
                    table.add_row(*cells)
                    Console(stderr=True, width=160).print(*cells, sep=" | ")
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
