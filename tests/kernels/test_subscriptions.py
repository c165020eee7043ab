"""Who hears of which keys: the native kernel, on every level, and its twin."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from level_faces import others

from sparsefleet.kernels import subscriptions as native
from sparsefleet.kernels.reference import subscriptions as reference

BOTH = pytest.mark.parametrize(
    "kernels", [pytest.param(native, id="native"), *others("subscriptions"), pytest.param(reference, id="reference")]
)
WORKERS = st.sampled_from([0, 1, 2, 7, 8, 15, 16, 31, 63, 64, 65, 130])
CALLS = st.lists(
    st.tuples(
        st.sampled_from(["subscribe", "note", "tell", "take", "forget"]),
        WORKERS,
        st.lists(st.one_of(st.integers(0, 12), st.sampled_from([2**64 - 1, 2**63])), max_size=20),
    ),
    max_size=40,
)


def u64(values) -> np.ndarray:
    return np.array(list(values), np.uint64)


@settings(max_examples=300)
@given(CALLS)
def test_native_and_twin_agree(calls):
    mine, twin = native.Subscriptions(), reference.Subscriptions()
    for call, worker, keys in calls:
        if call in ("subscribe", "note"):
            getattr(mine, call)(u64(keys), worker)
            getattr(twin, call)(u64(keys), worker)
        elif call == "tell":
            mine.tell(u64(keys))
            twin.tell(u64(keys))
        elif call == "take":
            got = mine.take(worker).tolist()
            assert len(got) == len(set(got))
            assert set(got) == set(twin.take(worker).tolist())
        else:
            mine.forget(worker)
            twin.forget(worker)
        assert len(mine) == len(twin)
        assert mine.keys_of(worker) == twin.keys_of(worker)
    for worker in range(131):
        assert mine.keys_of(worker) == twin.keys_of(worker)
        assert sorted(mine.take(worker).tolist()) == sorted(twin.take(worker).tolist())


@BOTH
def test_others_hear_of_a_change_once(kernels):
    who = kernels.Subscriptions()
    who.subscribe(u64([1, 2, 3]), 0)
    who.subscribe(u64([2, 3, 4]), 1)
    for _ in range(5):
        who.note(u64([3, 4, 5]), 2)
    assert who.take(0).tolist() == [3]
    assert sorted(who.take(1).tolist()) == [3, 4]
    assert sorted(who.take(2).tolist()) == [3, 4, 5]  # new to it: others may have changed them before
    assert who.take(0).tolist() == []
    who.note(u64([5]), 0)
    assert who.take(2).tolist() == [5]  # what it has changed it subscribes to
    assert who.take(0).tolist() == [5]
    for _ in range(3):
        who.note(u64([5]), 0)
    assert who.take(0).tolist() == []  # nobody hears of his own, but the first time


@BOTH
def test_who_is_forgotten_hears_nothing_and_leaves_nothing(kernels):
    who = kernels.Subscriptions()
    who.subscribe(u64(range(100)), 0)
    who.subscribe(u64(range(50, 150)), 1)
    who.note(u64(range(60, 70)), 0)
    who.note(u64([60]), 1)
    who.forget(0)
    assert (len(who), who.keys_of(0), who.keys_of(1)) == (100, 0, 100)
    assert who.take(0).tolist() == []
    assert sorted(who.take(1).tolist()) == list(range(60, 70))  # of which it was not told yet
    who.note(u64(range(200)), 2)
    assert who.take(0).tolist() == []
    who.forget(1)
    who.forget(2)
    assert len(who) == 0


@BOTH
def test_a_worker_that_is_too_high_is_refused(kernels):
    with pytest.raises(ValueError, match="below 65536"):
        kernels.Subscriptions().subscribe(u64([1]), 65536)


def test_many_keys():
    """Enough that the index grows, rows fill several chunks, and maps widen while they are full."""
    who = native.Subscriptions()
    keys = np.random.default_rng(0).permutation(u64(range(100_000))) << np.uint64(20)
    who.subscribe(keys, 0)
    who.subscribe(keys[:70_000], 9)
    who.note(keys[30_000:], 70)
    assert (len(who), who.keys_of(0), who.keys_of(9), who.keys_of(70)) == (100_000, 100_000, 70_000, 70_000)
    np.testing.assert_array_equal(who.take(0), keys[30_000:])
    who.forget(0)
    np.testing.assert_array_equal(who.take(9), keys[30_000:70_000])
    who.forget(70)
    assert (len(who), who.keys_of(9)) == (70_000, 70_000)
    who.note(keys, 1)
    np.testing.assert_array_equal(np.sort(who.take(9)), np.sort(keys[:70_000]))


def test_memory_does_not_grow_with_trainers_but_by_bits():
    keys = np.random.default_rng(0).integers(0, 2**63, 400_000, np.uint64)
    who, bytes_a_key = native.Subscriptions(), []
    for worker in range(8):
        who.subscribe(keys, worker)
        bytes_a_key.append(who.memory_bytes() / len(keys))
    assert bytes_a_key[-1] < 1.01 * bytes_a_key[0] < 22
    for worker in range(8, 64):
        who.subscribe(keys, worker)
    assert who.memory_bytes() / len(keys) < 36
    for worker in range(64):
        who.forget(worker)
    assert who.memory_bytes() < 10_000


def test_threads_may_do_anything_at_any_time():
    who, rounds = native.Subscriptions(), 30
    keys = u64(range(2000))
    heard: list[set[int]] = [set(), set(), set()]

    def work(worker: int) -> None:
        who.subscribe(keys, worker)
        for turn in range(rounds):
            who.note(keys[turn * 10 : turn * 10 + 400], worker)
            heard[worker].update(who.take(worker).tolist())
            who.subscribe(keys, 3 + 20 * worker)
            who.forget(3 + 20 * worker)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [who.keys_of(worker) for worker in range(3)] == [2000] * 3
    for worker in range(3):
        assert heard[worker] | set(who.take(worker).tolist()) <= set(range(690))
