"""Checkpoints while trainers push and answers are lost: each is of one moment, and every push counts once."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from sparsefleet import optim
from sparsefleet.checkpoint import Checkpoint
from sparsefleet.core.initializer import Constant
from sparsefleet.core.keyed_rows import KeyedRows
from sparsefleet.store.base import RunFacts
from sparsefleet.table import TableSpec

KEYS = np.arange(2000, dtype=np.uint64)
ROWS = KeyedRows(KEYS, np.full((len(KEYS), 2), -1.0, np.float32))
BLOCK = 100
SPECS = [TableSpec(name, 2, optim.SGD(1.0), Constant(0.0)) for name in ("a", "b")]


def counts_in(checkpoint: Checkpoint) -> set[float]:
    """Every push adds 1 everywhere: what rows and block show is how many there were."""
    found = {float(value) for name in "ab" for rows in checkpoint.sparse_rows(name) for value in np.unique(rows.values)}
    return found | {float(value) for value in np.unique(checkpoint.dense_cut("net", 0, BLOCK).values)}


@pytest.mark.parametrize("seconds", [4.0, pytest.param(60.0, marks=pytest.mark.slow)])
def test_saves_are_of_one_moment_and_pushes_count_once(fleet, tmp_path, seconds):
    fleet.start(3, script="faulty_server.py", env={"LOSE_SHARE": "0.03"})
    *pushing, saving = fleet.stores_of_all(3)
    for store in (*pushing, saving):
        for spec in SPECS:
            store.create_table(spec)
        store.create_dense("net", np.zeros(BLOCK, np.float32), optim.SGD(1.0), [("w", (BLOCK,))])
    stop, acknowledged, errors = threading.Event(), [0] * 4, list[BaseException]()

    def push(thread: int) -> None:
        store, fresh, down = pushing[thread // 2], np.empty(BLOCK, np.float32), np.full(BLOCK, -1.0, np.float32)
        try:
            while not stop.is_set():
                store.push_step({"a": ROWS, "b": ROWS}, {"net": down}, steps=1, fresh={"net": fresh}).wait()
                acknowledged[thread] += 1
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=push, args=(thread,), daemon=True) for thread in range(4)]
    for thread in threads:
        thread.start()
    end, steps, gaps = time.monotonic() + seconds, list[int](), list[int]()
    try:
        while (time.monotonic() < end or len(steps) < 3) and not errors:
            with saving.hold():
                cut = saving.cut()
            with cut:
                before = sum(acknowledged)
                cut.write(str(tmp_path / "model"), RunFacts(step=len(steps)))
                gaps.append(sum(acknowledged) - before)
            checkpoint = Checkpoint.open(tmp_path / "model")
            steps.append(checkpoint.manifest.table("a").step)
            assert counts_in(checkpoint) == {float(steps[-1])}
    finally:
        stop.set()
        for thread in threads:
            thread.join(timeout=60)
    assert not errors
    assert steps == sorted(steps)
    assert sum(gaps) > 0, "pushes go on while a cut is written"
    assert set(np.unique(saving.pull("a", KEYS).wait())) == {float(sum(acknowledged))}
