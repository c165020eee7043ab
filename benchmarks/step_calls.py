"""How many Python functions one training step calls, in how many files; and one push through a store in this process.

    python benchmarks/step_calls.py            the sums, and the calls file by file
    python benchmarks/step_calls.py --sums     the sums only

CTR-DNN, one thread, batch 100, in one process. A step is everything that its training thread does from one batch to the
next: taking the batch, the step itself, the accounting. Two runs of different lengths are counted and subtracted, so
that the beginning and the end of an epoch do not count. Calls of C functions are not counted.
"""

from __future__ import annotations

import argparse
import logging
import sys
import sysconfig
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent))

import sparsefleet
from parts.common import criteo_files
from sparsefleet import optim
from sparsefleet.core.keyed_rows import KeyedRows
from sparsefleet.core.schema import CRITEO
from sparsefleet.data.open import open_reader
from sparsefleet.models import CTRDNN
from sparsefleet.store import LocalStore
from sparsefleet.table import TableSpec
from sparsefleet.train import Trainer

BATCH = 100
STEPS = (20, 60)
"""Of the two runs."""
PACKAGE = Path(sparsefleet.__file__).parent
LIBRARIES = (Path(sysconfig.get_path("purelib")), Path(sysconfig.get_path("stdlib")))

Calls = Counter[CodeType]


def counted(work: Callable[[], object]) -> Calls:
    """What the calling thread calls during `work`."""
    calls: Calls = Counter()
    sys.setprofile(_counter(calls))
    try:
        work()
    finally:
        sys.setprofile(None)
    del calls[work.__code__]
    return calls


def _counter(calls: Calls) -> Callable[[FrameType, str, object], None]:
    def profile(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            calls[frame.f_code] += 1

    return profile


def training(data: Path, steps: int) -> Calls:
    """All calls of the training thread of a run of so many steps."""
    calls: Calls = Counter()
    count = _counter(calls)

    def profile(frame: FrameType, event: str, argument: object) -> None:
        if threading.current_thread().name.startswith("train"):
            count(frame, event, argument)

    reader = open_reader(str(data / f"{steps}"), CRITEO, batch_size=BATCH)
    threading.setprofile(profile)  # of threads that start from now on
    try:
        Trainer(optim.Adam(1e-3), reporters=(), threads=1).fit(CTRDNN(), reader)
    finally:
        threading.setprofile(None)  # type: ignore[arg-type]
    del calls[threading.current_thread.__code__]  # our own
    return calls


def step(folder: Path) -> Calls:
    parts = (criteo_files(folder, STEPS[-1] * BATCH) / "train").iterdir()
    lines = b"".join(part.read_bytes() for part in parts).splitlines(keepends=True)
    for steps in STEPS:
        (folder / f"{steps}").mkdir()
        (folder / f"{steps}" / "part-0").write_bytes(b"".join(lines[: steps * BATCH]))
    short, long = (training(folder, steps) for steps in STEPS)
    difference = STEPS[1] - STEPS[0]
    return Counter({code: round((long[code] - short[code]) / difference) for code in long})


def push() -> Calls:
    """Gradients of one table and of one dense block, as one step."""
    draw, store = np.random.default_rng(0), LocalStore()
    store.create_table(TableSpec("rows", 10, optim.Adam(1e-3)))
    values = draw.normal(size=1000).astype(np.float32)
    store.create_dense("dense", values, optim.Adam(1e-3), [("weight", (1000,))])
    keys = np.arange(100, dtype=np.uint64)
    rows = {"rows": KeyedRows(keys, draw.normal(size=(100, 10)).astype(np.float32))}
    dense = {"dense": np.ones(1000, np.float32)}

    def once() -> None:
        store.push_step(rows, dense, steps=1).wait()

    once()
    return counted(once)


def place(code: CodeType) -> str:
    """The file of a function: ours as a path in the package, others' as that of their library."""
    path = Path(code.co_filename)
    if path.is_relative_to(PACKAGE):
        return str(path.relative_to(PACKAGE))
    for library in LIBRARIES:
        if path.is_relative_to(library):
            return f"(library) {path.relative_to(library)}"
    return f"(made at run time) {path.name}"


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    arguments.add_argument("--sums", action="store_true", help="leave the calls file by file out")
    given = arguments.parse_args()
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        measured = {"one training step": step(Path(folder)), "one push, store in this process": push()}
    sums = Table("what", "calls", "files", "of them ours: calls", "files")
    for what, calls in measured.items():
        calls = +calls  # without what a step does not call each time
        ours = {code: count for code, count in calls.items() if not place(code).startswith("(")}
        sums.add_row(
            what,
            f"{calls.total()}",
            f"{len(set(map(place, calls)))}",
            f"{sum(ours.values())}",
            f"{len(set(map(place, ours)))}",
        )
        if not given.sums:
            by_file: dict[str, list[str]] = {}
            for code, count in calls.items():
                times = f" x {count}" if count > 1 else ""
                by_file.setdefault(place(code), []).append(f"{code.co_qualname}{times}")
            table = Table("file", "calls", title=what)
            for file in sorted(by_file):
                table.add_row(file, ", ".join(sorted(by_file[file])))
            Console(width=150).print(table)
    Console(width=110).print(sums)


if __name__ == "__main__":
    main()
