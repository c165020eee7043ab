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
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent))

from geo import Ran, median, train
from parts.common import criteo_files
from parts.other_data import other_data

JOB: tuple[object, ...] = ("--servers", 2, "--workers", 2, "--threads", 1)
WAYS: dict[str, tuple[object, ...]] = {
    "one process": ("--threads", 2),
    "sync": (*JOB, "--mode", "sync"),
    "half_async": (*JOB, "--mode", "half_async"),
    "async": (*JOB, "--mode", "async"),
    "geo, k = 10": (*JOB, "--mode", "geo", "--k-steps", 10),
    "geo, k = 100": (*JOB, "--mode", "geo", "--k-steps", 100),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--data", nargs="+", choices=["synth", "other"], default=["synth"])
    parser.add_argument("--batch", nargs="+", type=int, default=[100, 1000])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--rows", type=int, default=400_000, help="samples to train on (%(default)s)")
    parser.add_argument("--keep", type=Path, help="folder for the data, to be used again")
    parser.add_argument("--quick", action="store_true", help="fewer samples, noisier figures")
    given = parser.parse_args()
    rows = 60_000 if given.quick else given.rows
    table = Table("data", "batch", "mode", "test AUC", "difference", "samples/s", "of one process")
    table.title = f"CTR-DNN, Adam, one epoch of {rows:,} samples, 2 x 2"
    with tempfile.TemporaryDirectory() as name:
        folder = given.keep or Path(name)
        folder.mkdir(exist_ok=True, parents=True)
        for data in given.data:
            place = criteo_files(folder, rows) if data == "synth" else folder / f"other-{rows}"
            if data == "other":
                other_data(place, rows, rows // 10)
            for batch in given.batch:
                taken: dict[str, list[Ran]] = {way: [] for way in WAYS}
                for _ in range(given.rounds):
                    for way, options in WAYS.items():
                        taken[way].append(train(place, folder, "--batch-size", batch, *options))
                one = median(taken["one process"])
                for way, runs in taken.items():
                    ran = median(runs)
                    cells = [data, str(batch), way, f"{ran.auc:.4f}", f"{ran.auc - one.auc:+.4f}"]
                    cells += [f"{ran.rows_per_s:,.0f}", f"{ran.rows_per_s / one.rows_per_s:.2f}"]
                    table.add_row(*cells)
                    Console(stderr=True, width=160).print(*cells, sep=" | ")
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
