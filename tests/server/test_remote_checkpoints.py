"""Checkpoints of several servers: one moment, loadable on any number of servers and in one process."""

from __future__ import annotations

import os
import signal
import threading
import time

import numpy as np
import pytest
from server_processes import servers
from waiting import wait_until

from sparsefleet import optim
from sparsefleet.checkpoint import Checkpoint
from sparsefleet.core.errors import CheckpointError, StoreError
from sparsefleet.core.initializer import Constant
from sparsefleet.store.base import RunFacts
from sparsefleet.store.local import LocalStore
from sparsefleet.store.remote import checkpoints
from sparsefleet.table import TableSpec

SPEC = TableSpec("ads", 3, optim.Adam(0.1))
KEYS = np.arange(3000, dtype=np.uint64)
LAYOUT = [("a", (4, 25)), ("b", (7,))]


def create(store, values=0.0):
    block = np.full(107, values, np.float32)
    store.create_table(SPEC)
    store.create_dense("net", block, optim.Adam(0.1), LAYOUT)
    return block


def train(store, steps, seed=0):
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        keys = rng.permutation(3000)[:700].astype(np.uint64)
        store.push("ads", keys, rng.standard_normal((700, 3)).astype(np.float32)).wait()
        store.push_dense("net", rng.standard_normal(107).astype(np.float32)).wait()


def contents(store):
    block = np.empty(107, np.float32)
    store.pull_dense("net", block).wait()
    return store.pull("ads", KEYS).wait(), block


def same(one, other):
    for left, right in zip(contents(one), contents(other), strict=True):
        np.testing.assert_array_equal(left, right)


def test_saved_on_two_loads_anywhere_and_goes_on_alike(fleet, tmp_path):
    path = str(tmp_path / "checkpoint")
    store = fleet.start(2).store()
    create(store)
    train(store, 5)
    facts = RunFacts(
        step=5, model={"name": "ctr"}, positions={"0": {"row": 9}}, extra={"x": 1}, buffers={"mean": np.arange(3.0)}
    )
    store.save(path, facts)
    Checkpoint.open(path).verify()
    saved = contents(store)
    train(store, 5, seed=1)
    local = LocalStore()
    for count in (1, 3):
        with servers() as others:
            other = others.start(count).store()
            create(other, values=9.0)
            loaded = other.load(path)
            assert (loaded.step, loaded.model, loaded.positions, loaded.extra) == (
                5, {"name": "ctr"}, {"0": {"row": 9}}, {"x": 1},
            )  # fmt: skip
            np.testing.assert_array_equal(loaded.buffers["mean"], np.arange(3.0))
            for left, right in zip(contents(other), saved, strict=True):
                np.testing.assert_array_equal(left, right)
            train(other, 5, seed=1)
            same(other, store)
    create(local)
    local.load(path)
    train(local, 5, seed=1)
    same(local, store)


def test_servers_may_start_from_a_checkpoint(fleet, tmp_path):
    path = str(tmp_path / "checkpoint")
    local = LocalStore()
    create(local)
    train(local, 4)
    local.save(path, RunFacts(step=4))
    store = fleet.start(3, "--load-from", path).store()
    block = create(store)
    np.testing.assert_array_equal(block, contents(local)[1])
    same(store, local)


def test_a_cut_is_one_moment_while_trainers_push(fleet, tmp_path):
    """Each push adds 1 everywhere; whatever moment is cut, all rows and the block must show the same count."""
    stores = fleet.start(3).stores_of_all(2)
    spec = TableSpec("ads", 3, optim.SGD(1.0), Constant(0.0))
    stop, pushed = threading.Event(), [0]
    for store in stores:
        store.create_table(spec)
    ones = np.full((3000, 3), -1.0, np.float32)

    def push():
        while not stop.is_set():
            for pending in [stores[1].push("ads", KEYS, ones) for _ in range(3)]:
                pending.wait()
                pushed[0] += 1

    thread = threading.Thread(target=push)
    thread.start()
    try:
        for number in range(4):
            before = pushed[0]
            wait_until(lambda before=before: pushed[0] > before + 1, 20, "pushes between two saves")
            stores[0].save(str(tmp_path / f"step-{number}"), RunFacts(step=number))
    finally:
        stop.set()
        thread.join(timeout=20)
    counts = []
    for number in range(4):
        checkpoint = Checkpoint.open(str(tmp_path / f"step-{number}"))
        values = {float(value) for rows in checkpoint.sparse_rows("ads") for value in rows.values.reshape(-1)}
        assert values == {float(checkpoint.manifest.table("ads").step)}
        counts += values
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]


def test_a_saver_that_dies_freezes_nobody_for_long(fleet):
    stores = fleet.start(1).stores_of_all(2)
    create(stores[0])
    stores[1]._links[0].action("freeze", {**stores[1].connection.identity, "seconds": 2.0})
    start = time.monotonic()
    train(stores[0], 1)
    assert 1.0 < time.monotonic() - start < 8


def test_two_saves_at_once_are_not_mixed(fleet, tmp_path):
    store, other = fleet.start(1).stores_of_all(2)
    create(store)
    other._links[0].action("freeze", {**other.connection.identity, "seconds": 5.0})
    with pytest.raises(StoreError, match="another checkpoint is being saved right now"):
        store.save(str(tmp_path / "mine"), RunFacts())
    assert not (tmp_path / "mine").exists()


def test_a_server_that_dies_during_a_save_leaves_the_previous_checkpoint(fleet, tmp_path):
    path = str(tmp_path / "checkpoint")
    store = fleet.start(2).store(timeout=2.0)
    create(store)
    store.save(path, RunFacts(step=1))
    os.kill(fleet.processes[1].pid, signal.SIGSTOP)
    start = time.monotonic()
    with pytest.raises(StoreError, match=rf"server 1 .*resume from {path}"):
        store.save(path, RunFacts(step=2))
    assert time.monotonic() - start < 12
    assert Checkpoint.open(path).manifest.step == 1


def test_a_checkpoint_of_another_shape_is_refused(fleet, tmp_path):
    path = str(tmp_path / "checkpoint")
    local = LocalStore()
    create(local)
    local.save(path, RunFacts())
    store = fleet.start(1).store()
    store.create_table(TableSpec("ads", 4, optim.Adam(0.1)))
    with pytest.raises(CheckpointError, match=r"server 0 .*'ads' was saved with rows of 3 values; the model's have 4"):
        store.load(path)
    with pytest.raises(CheckpointError, match="no checkpoint at"):
        store.load(str(tmp_path / "nothing"))


def test_a_time_out_of_hours_stops_no_checkpoint(fleet, tmp_path):
    store = fleet.start(1).store(timeout=4 * 3600.0)
    create(store)
    store.save(str(tmp_path / "checkpoint"), RunFacts(step=3))
    assert Checkpoint.open(tmp_path / "checkpoint").manifest.step == 3


def test_a_write_that_fails_is_nobody_s_death(fleet, tmp_path, monkeypatch):
    """A full disk, say: the error tells that the checkpoint failed, not that a server did, and the next one works."""
    stores = fleet.start(2, "--lost-trainer", "drop").stores_of_all(2)
    create(stores[0])
    train(stores[0], 2)
    with stores[0].hold():
        cut = stores[0].cut()
    with cut, monkeypatch.context() as patched:
        real = checkpoints._finished

        def elsewhere(link, task, request, check):
            return real(link, task, {**request, "directory": "/dev/null/full"}, check)

        patched.setattr(checkpoints, "_finished", elsewhere)
        with pytest.raises(CheckpointError, match=r"server \d .*, write: cannot write"):
            cut.write(str(tmp_path / "first"), RunFacts())
    assert not (tmp_path / "first").exists()
    train(stores[0], 1)
    stores[0].save(str(tmp_path / "second"), RunFacts(step=7))
    assert Checkpoint.open(tmp_path / "second").manifest.tables[0].step == 3
    assert stores[1].crew.lost() == []
    assert [stores[1].stats()["workers"][worker]["state"] for worker in "01"] == ["present", "present"]


def test_a_cut_that_is_being_written_stops_no_push_and_no_second_cut_is_mixed_with_it(fleet, tmp_path):
    one, other = fleet.start(2).stores_of_all(2)
    create(one)
    create(other)
    train(one, 2)
    with one.hold():
        cut = one.cut()
    with cut:
        train(other, 1)
        with pytest.raises(StoreError, match="another checkpoint is being written right now"):
            other.save(str(tmp_path / "mixed"), RunFacts())
        cut.write(str(tmp_path / "mine"), RunFacts())
        with pytest.raises(StoreError, match="another checkpoint is being written right now"):
            other.save(str(tmp_path / "mixed"), RunFacts())
    assert Checkpoint.open(tmp_path / "mine").manifest.tables[0].step == 2
    other.save(str(tmp_path / "next"), RunFacts())
    assert Checkpoint.open(tmp_path / "next").manifest.tables[0].step == 3
