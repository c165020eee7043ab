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
    messages = store._calls.messages("push", [store._calls.row_item("ads", KEYS, ONES)], steps=1)
    store.connection.callers.mine().send("push", {0: messages[0]})[0].wait(5)


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
            dead.crew.give_up(StoreError("cut off"))
        else:
            dead.connection.heartbeats.stop()
            left.crew.barrier("the loss is noticed")  # waits for it until it has been silent for the time-out
        assert len(left.crew.lost()) == 1
        for turn in range(2):
            left.save(str(tmp_path / f"c{turn}"), RunFacts(step=turn))
            left.push("ads", KEYS, ONES).wait()
    assert [Checkpoint.open(tmp_path / f"c{turn}").manifest.tables[0].step for turn in range(2)] == [3, 4]
    again = LocalStore()
    again.create_table(SPEC)
    again.load(str(tmp_path / "c1"))
    values = again.pull("ads", KEYS).wait()
    assert set(np.unique(values)) == {-4.0, -3.0}  # rows of the server that had the push, and of the other


def registered_again(fleet, worker, workers):
    """Another life of a trainer that fell silent: its number is free again after the time-out, and not before."""
    deadline = time.monotonic() + 20
    while True:
        try:
            return fleet.store(worker, workers, timeout=2.0, heartbeat=0.2)
        except StoreError:
            assert time.monotonic() < deadline


@pytest.mark.parametrize("pushes", [0, 2], ids=["reads its data", "trains"])
@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_trainer_killed_between_two_servers_and_started_again_stops_no_checkpoint(
    fleet, tmp_path, caplog, workers, pushes
):
    """Nobody noticed that it was gone: what its first life sent last is on one server, and stays there."""
    fleet.start(2, "--timeout", "1", "--lost-trainer", "drop")
    stores = fleet.stores_of_all(workers, timeout=2.0, heartbeat=0.2)
    for store in stores:
        store.create_table(SPEC)
        store.push("ads", KEYS, ONES).wait()
    killed = stores.pop()
    push_to_the_first_server_only(killed)
    killed.connection.heartbeats.stop()
    again = registered_again(fleet, workers - 1, workers)
    again.create_table(SPEC)
    stores.append(again)
    for turn in range(2):
        for _ in range(pushes):
            for store in stores:
                store.push("ads", KEYS, ONES).wait()
        stores[0].save(str(tmp_path / f"c{turn}"), RunFacts(step=turn))
        steps = Checkpoint.open(tmp_path / f"c{turn}").manifest.tables[0].step
        assert steps == workers + 1 + (turn + 1) * pushes * workers
    uneven = [record.message for record in caplog.records if "reached some servers only" in record.message]
    assert len(uneven) == 1, "it is told, once"
    assert f"the last step of worker {workers - 1} before it ended" in uneven[0]


def test_a_step_that_one_server_refused_is_not_taken_for_a_loss(fleet, tmp_path):
    store = fleet.start(2).store()
    store.create_table(SPEC)
    push_to_the_first_server_only(store)
    store.push("ads", KEYS, ONES).wait()  # so that both servers have had the last step
    with pytest.raises(StoreError, match=r"have not applied the same steps of worker 0: server 0 .* 2 up to number"):
        store.save(str(tmp_path / "c"), RunFacts())
