"""How long training stands still for a checkpoint: the longest time without a finished step while one is written.

    python benchmarks/save_pause.py                       ten million rows, in one process and on two servers
    python benchmarks/save_pause.py --rows 1000000        fewer

Wanted: at most one step plus 100 ms plus 1 % of the time of the write, whatever the table's size. The longest time
between two steps of the same run while nothing is saved stands beside it, for the noise of the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent))

import sparsefleet as sf
from parts.common import criteo_files
from sparsefleet.store import LocalStore, ParameterStore
from sparsefleet.store.remote import RemoteConfig, RemoteStore

SAMPLES, BATCH, THREADS = 200_000, 1000, 2
PULLED = 1 << 18
TABLE = "SparseFeatFactors"
LIMIT = 900.0


class Steps(sf.FetchHandler):
    """When every step was finished. Saves once, in a thread of its own, when the run is warm."""

    def __init__(self, folder: Path) -> None:
        super().__init__(["step"], period_batches=1)
        self._folder = folder
        self.finished: list[float] = []
        self.saved: tuple[float, float] | None = None
        """From when to when a checkpoint was made."""
        self.trainer: sf.Trainer | None = None
        self._saving: threading.Thread | None = None

    def handler(self, fetched: list[Any]) -> None:
        self.finished.append(time.monotonic())
        if len(self.finished) == 30:
            self._saving = threading.Thread(target=self._save)
            self._saving.start()

    def _save(self) -> None:
        assert self.trainer is not None
        begun = time.monotonic()
        self.trainer.save(str(self._folder / "checkpoint"))
        self.saved = (begun, time.monotonic())

    def wait(self) -> None:
        if self._saving is not None:
            self._saving.join(LIMIT)


@dataclass(frozen=True)
class Pause:
    step: float
    """The median time between two finished steps, seconds."""
    noise: float
    """The longest, while nothing is saved."""
    longest: float
    """The longest, while a checkpoint is made."""
    write: float
    """How long that took."""

    @property
    def bound(self) -> float:
        return self.step + 0.1 + 0.01 * self.write


def pause_of(steps: Steps) -> Pause:
    assert steps.saved is not None
    begun, ended = steps.saved
    gaps = [(later - earlier, later) for earlier, later in pairwise(steps.finished)]
    within = [gap for gap, at in gaps if begun <= at <= ended + 1.0]
    outside = [gap for gap, at in gaps if not begun <= at <= ended + 1.0]
    return Pause(float(np.median(outside)), max(outside), max(within), ended - begun)


def train(store: ParameterStore, data: Path, folder: Path, rows: int) -> Pause:
    steps = Steps(folder)
    steps.trainer = trainer = sf.Trainer(sf.optim.Adam(), reporters=(), threads=THREADS, store=store)
    model = sf.CTRDNN()
    reader = sf.open_reader(data / "test", sf.CRITEO, batch_size=BATCH)
    trainer.evaluate(model, reader)  # makes the tables
    fill(store, rows)
    train_reader = sf.open_reader(data / "train", sf.CRITEO, batch_size=BATCH)
    while steps.saved is None:
        trainer.fit(model, train_reader, fetch=[steps])
        if len(steps.finished) > 100_000:
            raise RuntimeError("the save does not end")
    steps.wait()
    return pause_of(steps)


def fill(store: ParameterStore, rows: int) -> None:
    """So many rows that no sample asks for: a table of the size wanted."""
    for start in range(0, rows, PULLED):
        keys = np.arange(start, min(start + PULLED, rows), dtype=np.uint64) + np.uint64(1 << 62)
        store.pull(TABLE, keys).wait()


@contextlib.contextmanager
def servers(count: int) -> Iterator[RemoteStore]:
    import json

    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "sparsefleet.server", "--index", str(index), "--watch-parent"],
            stdout=subprocess.PIPE,
            text=True,
        )
        for index in range(count)
    ]
    try:
        lines = [process.stdout.readline() for process in processes if process.stdout]
        store = RemoteStore(RemoteConfig(tuple(json.loads(line)["endpoint"] for line in lines)))
        yield store
        store.close()
    finally:
        for process in processes:
            process.terminate()
            process.wait(30)


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    arguments.add_argument("--rows", type=int, default=10_000_000, help="rows of the table")
    rows = arguments.parse_args().rows
    headings = ("where", "a step, median", "longest, no save", "write", "longest while saving", "bound", "")
    table = Table(*headings, title=f"Pause of training for a checkpoint of {rows:,} rows (Adam, {THREADS} threads)")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = criteo_files(folder, SAMPLES)
        with servers(2) as remote:
            found = {"two servers": train(remote, data, folder / "remote", rows)}
        found["one process"] = train(LocalStore(), data, folder / "local", rows)
    for where, pause in found.items():
        met = "[green]yes[/]" if pause.longest <= pause.bound else "[red]no[/]"
        figures = [f"{1000 * seconds:,.0f} ms" for seconds in (pause.step, pause.noise)]
        figures += [f"{pause.write:.1f} s", *(f"{1000 * s:,.0f} ms" for s in (pause.longest, pause.bound))]
        table.add_row(where, *figures, met)
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
