"""A push whose answer was lost is sent again, and counts once."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from small_jobs import in_threads

from sparsefleet import optim
from sparsefleet.core.initializer import Constant
from sparsefleet.core.keyed_rows import KeyedRows
from sparsefleet.table import TableSpec

SPEC = TableSpec("ads", 2, optim.SGD(1.0), Constant(0.0))
KEYS = np.arange(100, dtype=np.uint64)
ONES = np.full((100, 2), -1.0, np.float32)


def lossy(fleet, numbers: str, count: int = 1, delay: float = 0.0):
    return fleet.start(count, script="faulty_server.py", env={"LOSE_AFTER": numbers, "LOSE_DELAY": str(delay)})


def test_pushes_are_applied_once_when_answers_are_lost(fleet):
    store = lossy(fleet, "2,3,7", count=2).store()
    store.create_table(SPEC)
    for _ in range(10):
        store.push("ads", KEYS, ONES).wait()
    assert (store.pull("ads", KEYS).wait() == 10).all()
    assert store.stats()["tables"]["ads"]["step"] == 10


def test_pushes_in_flight_are_sent_again_in_order(fleet):
    store = lossy(fleet, "5,9").store()
    store.create_table(SPEC)
    pending = []
    for _ in range(10):
        pending.append(store.push("ads", KEYS, ONES))
        pending.append(store.pull("ads", KEYS[:3]))
    for count in range(10):
        pending[2 * count].wait()
        seen = pending[2 * count + 1].wait()
        # A pull that is asked again after a cut may see later pushes that the server had taken in: never fewer.
        assert (seen == seen[0, 0]).all()
        assert count + 1 <= seen[0, 0] <= 10
    assert (store.pull("ads", KEYS).wait() == 10).all()


def test_large_pushes_in_flight_are_sent_again_too(fleet):
    store = lossy(fleet, "3").store()
    store.create_table(SPEC)
    keys = np.arange(100_000, dtype=np.uint64)
    grads = np.full((100_000, 2), -1.0, np.float32)
    pending = [store.push("ads", keys, grads) for _ in range(5)]
    grads[:] = 77  # the store has its own copy
    for one in pending:
        one.wait()
    assert (store.pull("ads", keys).wait() == 5).all()


def six_steps_under_way(store):
    """Six times a push and a pull with much to answer, sent before the connection is cut."""
    keys, grads = np.arange(100_000, dtype=np.uint64), np.full((100_000, 2), -1.0, np.float32)
    block, down = np.zeros(400_000, np.float32), np.full(400_000, -1.0, np.float32)
    store.create_table(SPEC)
    store.create_dense("net", block, optim.SGD(1.0), [("w", (400_000,))])
    store.pull("ads", keys).wait()
    pushed, pulled = [], []
    for _ in range(6):
        pushed.append(store.push_step({"ads": KeyedRows(keys, grads)}, {"net": down}, fresh={"net": block}))
        pulled.append(store.pull("ads", keys))
    return block, pushed, pulled


# Their answers were to come through shared memory, and come in messages now: all at once are more than gRPC holds.


def test_large_answers_of_calls_that_are_sent_again_block_nobody(fleet):
    store = lossy(fleet, "3", delay=1.0).store(timeout=8.0)
    block, pushed, pulled = six_steps_under_way(store)
    for count, (push, pull) in enumerate(zip(pushed, pulled, strict=True), 1):
        push.wait()
        assert (block == count).all()
        assert (pull.wait() == count).all()


def test_a_new_call_goes_behind_those_that_are_sent_again(fleet):
    store = lossy(fleet, "3", delay=1.0).store(timeout=8.0)
    block, pushed, pulled = six_steps_under_way(store)
    time.sleep(1.5)  # longer than the delay: the stream is cut by now, which sending notices
    last = store.pull("ads", KEYS)
    assert (last.wait() == 6).all()
    for one in (*pushed, *pulled):
        one.wait()
    assert (block == 6).all()


def test_a_round_counts_once_when_its_answer_is_lost(fleet):
    stores = lossy(fleet, "2").stores_of_all(2)
    for store in stores:
        store.create_table(SPEC)
    rows = KeyedRows(KEYS, ONES)

    def other():
        for _ in range(4):
            stores[1].rounds.push({"ads": rows}).wait()

    thread = threading.Thread(target=other)
    thread.start()
    assert [stores[0].rounds.push({"ads": rows}).wait() for _ in range(4)] == [1, 2, 3, 4]
    thread.join(timeout=20)
    assert (stores[0].pull("ads", KEYS).wait() == 8).all()


def test_the_rows_of_a_round_come_with_its_answer_though_the_first_was_lost(fleet):
    stores = lossy(fleet, "2").stores_of_all(2)
    for store in stores:
        store.create_table(SPEC)
    rows = KeyedRows(KEYS, ONES)

    def train(store):
        for step in range(1, 5):
            asked = [{"ads": KEYS}, {"ads": KEYS[:1]}]  # of two threads
            first, second = store.rounds.push_and_pull({"ads": rows}, None, asked).wait()
            assert first["ads"].shape == ONES.shape
            assert (first["ads"] == 2 * step).all()
            assert (second["ads"] == 2 * step).all()

    in_threads([lambda: train(stores[0]), lambda: train(stores[1])])


@pytest.mark.parametrize("lost", ["1", "2", "3,4"])
def test_a_clipped_round_counts_once_when_an_answer_is_lost(fleet, lost):
    """The answer to a norm (odd numbers), and to the round that follows it."""
    stores = lossy(fleet, lost).stores_of_all(2)
    for store in stores:
        store.create_table(SPEC)
    rows = KeyedRows(KEYS, ONES)
    together = np.linalg.norm(2 * ONES)

    def train(store):
        for _ in range(4):
            factor = store.rounds.clip_factor({"ads": rows}, None, float(together / 4)).wait()
            store.rounds.push({"ads": rows}, factor=factor).wait()

    thread = threading.Thread(target=train, args=(stores[1],))
    thread.start()
    train(stores[0])
    thread.join(timeout=20)
    np.testing.assert_allclose(stores[0].pull("ads", KEYS).wait(), 4 * 2 / 4, rtol=1e-5)


@pytest.mark.parametrize("numbers", ["3", "4,5"])
def test_a_geo_exchange_counts_once_and_its_news_are_told_again(fleet, numbers):
    stores = lossy(fleet, numbers).stores_of_all(2)
    for store in stores:
        store.create_table(SPEC)
        store.geo.pull("ads", KEYS).wait()
    rows, none = KeyedRows(KEYS, -ONES), KeyedRows(KEYS[:0], ONES[:0])
    for count in range(1, 6):
        stores[0].geo.exchange({"ads": rows}).wait()
        answer = stores[1].geo.exchange({"ads": none}).wait()
        np.testing.assert_array_equal(np.sort(answer.changed["ads"].keys), KEYS)
        assert (answer.changed["ads"].rows == count).all()
