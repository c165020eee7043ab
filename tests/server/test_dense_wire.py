"""Dense parameters in fewer bits on the wire: what arrives, and that both sides remember the same."""

from __future__ import annotations

import numpy as np
import pytest
from small_jobs import in_threads

from sparsefleet import optim
from sparsefleet.core.errors import ConfigError
from sparsefleet.store.base import RunFacts
from sparsefleet.store.remote.config import RemoteConfig
from sparsefleet.store.remote.stream import Stream
from sparsefleet.store.wire.coarse import ENCODINGS

SIZE = 3001
LAYOUT = [("w", (SIZE,))]
COARSE = ["bfloat16", "int8"]


def block(store, rule=None):
    values = np.linspace(-1, 1, SIZE).astype(np.float32)
    store.create_dense("net", values, rule or optim.SGD(1.0), LAYOUT)
    return values


def exact(store):
    out = np.empty(SIZE, np.float32)
    store.pull_dense("net", out).wait()
    return out


@pytest.mark.parametrize("wire", COARSE)
@pytest.mark.parametrize("shared", [True, False])
def test_steps_and_values_come_near(fleet, wire, shared):
    store = fleet.start(2).store(dense_wire=wire, shared_memory=shared)
    start, rng = block(store), np.random.default_rng(1)
    total, fresh = np.zeros(SIZE), np.empty(SIZE, np.float32)
    for _ in range(20):
        gradients = rng.standard_normal(SIZE).astype(np.float32) * 0.01
        total += gradients
        store.push_step({}, {"net": gradients}, fresh={"net": fresh}).wait()
    there = exact(store)
    np.testing.assert_allclose(there, start - total, atol=0.001 if wire == "int8" else 0.01)
    np.testing.assert_allclose(fresh, there, atol=0.001 if wire == "int8" else 0.01)
    assert not np.array_equal(fresh, there)  # it did travel in fewer bits


def test_int8_takes_a_quarter():
    assert ENCODINGS["int8"].words(420_000) / 420_000 < 0.26
    assert ENCODINGS["bfloat16"].words(420_000) / 420_000 == 0.5


def test_a_lost_answer_is_followed_by_all_of_the_values(fleet):
    """The server had told a difference that the trainer never heard: both must not go on from different memories."""
    store = fleet.start(2, script="faulty_server.py", env={"LOSE_AFTER": "4,5,9", "LOSE_DELAY": "0"}).store(
        dense_wire="int8"
    )
    block(store)
    fresh = np.empty(SIZE, np.float32)
    for step in range(12):
        store.push_step({}, {"net": np.full(SIZE, 1.0 + step, np.float32)}, fresh={"net": fresh}).wait()
        np.testing.assert_allclose(fresh, exact(store), atol=0.2)
    np.testing.assert_allclose(exact(store), np.linspace(-1, 1, SIZE) - 78, atol=0.2)


def test_after_a_load_all_of_the_values_come(fleet, tmp_path):
    store = fleet.start(1).store(dense_wire="int8")
    block(store)
    fresh, none = np.empty(SIZE, np.float32), np.zeros(SIZE, np.float32)
    store.save(str(tmp_path / "M"), RunFacts())
    for _ in range(3):
        store.push_step({}, {"net": np.full(SIZE, 100.0, np.float32)}, fresh={"net": fresh}).wait()
    store.load(str(tmp_path / "M"))
    store.push_step({}, {"net": none}, fresh={"net": fresh}).wait()
    # The gradient's own rest is less than a step of int8; as a difference, 300 would have left more than one.
    np.testing.assert_allclose(fresh, exact(store), atol=1e-6)


def test_two_trainers_each_hear_the_others_steps(fleet):
    first, second = fleet.start(1).stores_of_all(2, dense_wire="int8")
    for store in (first, second):
        block(store)
    heard = [np.empty(SIZE, np.float32), np.empty(SIZE, np.float32)]
    for _ in range(10):
        for store, fresh in zip((first, second), heard, strict=True):
            store.push_step({}, {"net": np.full(SIZE, 0.5, np.float32)}, fresh={"net": fresh}).wait()
    np.testing.assert_allclose(heard[1], np.linspace(-1, 1, SIZE) - 10, atol=0.02)


def test_an_unknown_encoding_is_refused():
    with pytest.raises(ConfigError, match="dense_wire='int4': choose float32, bfloat16, int8"):
        RemoteConfig(("127.0.0.1:1",), dense_wire="int4")


LARGE = 300_000
"""Its cuts are more than what goes in one wave with the rest."""


def trained_in_rounds(stores, steps: int) -> list[np.ndarray]:
    """What each trainer knows of the block after so many rounds, each of which takes 2 from it."""
    heard = {}

    def train(worker):
        store, values, fresh = stores[worker], np.zeros(LARGE, np.float32), np.empty(LARGE, np.float32)
        store.create_dense("net", values, optim.SGD(1.0), [("w", (LARGE,))])
        numbers = [
            store.rounds.push({}, {"net": np.ones(LARGE, np.float32)}, steps=1, fresh={"net": fresh}).wait()
            for _ in range(steps)
        ]
        assert numbers == list(range(1, steps + 1))
        heard[worker] = fresh

    in_threads([lambda worker=worker: train(worker) for worker in range(len(stores))])
    return [heard[worker] for worker in range(len(stores))]


@pytest.mark.parametrize(("wire", "shared", "waves"), [("int8", False, 4), ("int8", True, 0), ("float32", False, 0)])
def test_a_round_goes_out_in_two_waves_where_the_network_is_slow(fleet, monkeypatch, wire, shared, waves):
    """Servers of the first half have theirs before the others' is sent, and answer while it is on its way."""
    waited, wait = [], Stream.wait_until_received

    def noted(stream, call, seconds):
        wait(stream, call, seconds)
        waited.append((stream.link.index, call.received))

    monkeypatch.setattr(Stream, "wait_until_received", noted)
    stores = fleet.start(2).stores_of_all(2, dense_wire=wire, shared_memory=shared)
    for heard in trained_in_rounds(stores, 2):
        np.testing.assert_allclose(heard, -4, atol=0.1)
    assert waited == [(0, True)] * waves


def test_a_round_in_two_waves_counts_once_though_answers_are_lost(fleet):
    servers = fleet.start(2, script="faulty_server.py", env={"LOSE_AFTER": "2,3,5", "LOSE_DELAY": "0"})
    for heard in trained_in_rounds(servers.stores_of_all(2, dense_wire="int8", shared_memory=False), 6):
        np.testing.assert_allclose(heard, -12, atol=0.2)
