"""A trainer that dies between two servers leaves its last push on one of them; the others can save all the same."""

from __future__ import annotations

import time

import numpy as np
import pytest
from server_processes import servers

from sparsefleet import optim
from sparsefleet.checkpoint import Checkpoint
from sparsefleet.core.errors import StoreError
from sparsefleet.core.initializer import Constant
from sparsefleet.store import LocalStore
from sparsefleet.store.base import RunFacts
from sparsefleet.table import TableSpec

SPEC = TableSpec("ads", 2, optim.SGD(1.0), Constant(0.0))
KEYS = np.arange(10, dtype=np.uint64)
ONES = np.ones((10, 2), np.float32)


def push_to_the_first_server_only(store):
    messages = store._messages("push", [store._row_item("ads", KEYS, ONES)], steps=1)
    store._lanes.mine().send("push", {0: messages[0]})[0].wait(5)


@pytest.mark.parametrize("end", ["silent", "failed"])
def test_an_uneven_last_push_stops_no_checkpoint(tmp_path, end):
    with servers() as fleet:
        fleet.start(2, "--timeout", "2", "--lost-trainer", "drop")
        left, dead = fleet.stores_of_all(2, timeout=2.0, heartbeat=0.2)
        for store in (left, dead):
            store.create_table(SPEC)
            store.push("ads", KEYS, ONES).wait()
        push_to_the_first_server_only(dead)
        if end == "failed":
            dead.give_up(StoreError("cut off"))
        else:
            dead._heartbeats.stop()
            time.sleep(2.5)
            left.barrier("the loss is noticed")
        assert len(left.lost_trainers()) == 1
        for turn in range(2):
            left.save(str(tmp_path / f"c{turn}"), RunFacts(step=turn))
            left.push("ads", KEYS, ONES).wait()
    assert [Checkpoint.open(tmp_path / f"c{turn}").manifest.tables[0].step for turn in range(2)] == [3, 4]
    again = LocalStore()
    again.create_table(SPEC)
    again.load(str(tmp_path / "c1"))
    values = again.pull("ads", KEYS).wait()
    assert set(np.unique(values)) == {-4.0, -3.0}  # rows of the server that had the push, and of the other
