"""A job that goes on without lost trainers loads its checkpoint also if it is the first one that is missing."""

from __future__ import annotations

import numpy as np
from server_processes import servers

from sparsefleet import optim
from sparsefleet.core.initializer import Constant
from sparsefleet.store import LocalStore
from sparsefleet.store.base import RunFacts
from sparsefleet.table import TableSpec

SPEC = TableSpec("ads", 2, optim.SGD(1.0), Constant(0.0))
KEYS = np.arange(3, dtype=np.uint64)


def test_the_lowest_trainer_that_is_left_loads(tmp_path):
    before = LocalStore()
    before.create_table(SPEC)
    before.push("ads", KEYS, np.full((3, 2), -7, np.float32)).wait()
    before.save(str(tmp_path / "c"), RunFacts(step=9))
    with servers() as fleet:
        fleet.start(2, "--timeout", "2", "--join-timeout", "2", "--lost-trainer", "drop")
        store = fleet.store(1, 2, heartbeat=0.3)
        store.create_table(SPEC)
        loaded = []
        store.crew.only_first("load", lambda: loaded.append(store.load(str(tmp_path / "c")).step))
        assert loaded == [9]
        assert (store.pull("ads", KEYS).wait() == 7).all()
