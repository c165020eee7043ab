"""A large table in one thread: rows pulled and pushed per second, bytes a row."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from parts.common import Line, Scale, in_turn
from sparsefleet import optim
from sparsefleet.table import SparseTable, TableSpec

DIM, CALL = 10, 20_000


def lines(folder: Path, scale: Scale) -> Iterator[Line]:
    random = np.random.default_rng(0)
    table = SparseTable(TableSpec("bench", DIM, optim.Adam(1e-3)))
    keys = random.permutation(np.arange(scale.table_rows, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    for start in range(0, len(keys), 1_000_000):
        table.pull(keys[start : start + 1_000_000])
    random.shuffle(keys)
    calls = [keys[start : start + CALL] for start in range(0, min(len(keys), 200 * CALL), CALL)]
    grads = random.standard_normal((CALL, DIM)).astype(np.float32)

    def pull() -> float:
        begin = time.perf_counter()
        for call in calls:
            table.pull(call)
        return len(calls) * CALL / (time.perf_counter() - begin)

    def push() -> float:
        begin = time.perf_counter()
        for call in calls:
            table.push(call, grads)
        return len(calls) * CALL / (time.perf_counter() - begin)

    pulled, pushed = in_turn([pull, push], 3)
    what = f"table of {scale.table_rows:,} rows x {DIM}"
    for name, rate, wanted in (("pull", pulled, 10e6), ("push, Adam", pushed, 6e6)):
        yield Line(
            f"{what}, {name}", f"{rate / 1e6:.1f} M rows/s", f"{wanted / 1e6:.0f} M rows/s", f"{rate / wanted:.2f}",
            ">= 1", rate >= wanted,
        )  # fmt: skip
    bare = 8 + 4 * DIM + 4 * table.state_width
    ratio = table.memory_bytes / len(table) / bare
    yield Line(
        f"{what}, bytes a row", f"{table.memory_bytes / len(table):.0f}", f"key + values + state: {bare}",
        f"{ratio:.2f}", "<= 1.3", ratio <= 1.3,
    )  # fmt: skip
