"""RowTable: native against its NumPy twin, and what only the native one must stand."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from table_cases import (
    ADAM,
    BOTH,
    CONSTANT,
    HYPER,
    NOTING_SGD,
    SGD,
    UNIFORM,
    all_rows,
    hyper,
    keys_of,
    make,
    pulled,
    run_threads,
    u64,
    width,
)

from sparsefleet.kernels import table as native
from sparsefleet.kernels.reference import table as reference


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(sorted(HYPER)),
    st.integers(1, 70),
    st.lists(st.tuples(st.sampled_from(["pull", "peek", "push", "count", "insert"]), keys_of), max_size=8),
    st.integers(0, 2**32 - 1),
)
def test_any_history_leaves_the_rows_of_the_twin(kind, dim, history, seed):
    tables = [make(native, dim, kind, 0.5), make(reference, dim, kind, 0.5)]
    rng = np.random.default_rng(seed)
    for step, (call, keys) in enumerate(history, start=1):
        keys = u64(keys)
        grads = rng.standard_normal((len(keys), dim)).astype(np.float32)
        state = np.abs(rng.standard_normal((len(keys), width(kind, dim)))).astype(np.float32)
        seen = rng.integers(0, 100, len(keys)).astype(np.uint32)
        answers = []
        for table in tables:
            if call == "push":
                table.push(keys, grads, kind, 0.05, hyper(kind), step, clock=2**32 - 3 + step if step < 3 else step)
            elif call == "count":
                table.push(keys, grads, kind, 0.05, hyper(kind), step, seen, step)
            elif call == "insert":
                table.insert(keys, grads, state, seen, seen[::-1].copy())
            else:
                out = np.full((len(keys), dim), np.nan, np.float32)
                misses = table.pull(keys, out, call == "pull", step)
                answers.append((misses, out.tobytes()))
        assert len(set(answers)) <= 1
        assert len({table.contains(keys).tobytes() for table in tables}) == 1
    assert len(tables[0]) == len(tables[1])
    assert all_rows(tables[0], 7) == all_rows(tables[1], 7)


@BOTH
def test_every_64_bit_number_is_a_key(kernels):
    table = make(kernels, 4, SGD)
    keys = u64([0, 2**64 - 1, 1, 2**63, 2**32])
    assert not table.contains(keys).any()
    rows = pulled(table, keys)
    assert len(np.unique(rows, axis=0)) == 5
    assert table.contains(keys).all()
    table.push(keys, rows, SGD, 1.0, np.zeros(1), 1)
    assert (pulled(table, keys) == 0).all()
    assert sorted(all_rows(table)) == sorted(keys.tolist())


@BOTH
def test_missing_rows_read_as_zeros_and_are_counted_but_not_created(kernels):
    table = make(kernels, 3, ADAM)
    known = pulled(table, u64([1, 2]))
    out = np.full((4, 3), np.nan, np.float32)
    assert table.pull(u64([1, 50, 2, 60]), out, False) == 2
    np.testing.assert_array_equal(out, [known[0], [0, 0, 0], known[1], [0, 0, 0]])
    assert len(table) == 2


@BOTH
def test_push_counts_how_often_a_row_was_seen_and_stops_at_the_largest_count(kernels):
    table = make(kernels, 2, SGD)
    keys = u64([7, 8])
    for step in (1, 2):
        table.push(keys, np.zeros((2, 2), np.float32), SGD, 0.1, hyper(SGD), step)
    pulled(table, u64([9]))
    assert {key: row[2] for key, row in all_rows(table).items()} == {7: 2, 8: 2, 9: 0}


def test_seen_does_not_wrap_around():
    table = make(native, 1, SGD)
    key, one = u64([1]), np.ones((1, 1), np.float32)
    most = np.array([2**32 - 1], np.uint32)
    table.insert(key, one, np.empty((1, 0), np.float32), most, key.astype(np.uint32))
    table.push(key, one, SGD, 0.1, hyper(SGD), 1)
    assert all_rows(table)[1][2] == 2**32 - 1
    table.insert(key, one, np.empty((1, 0), np.float32), most - 5, key.astype(np.uint32))
    for occurrences, expected in ((3, 2**32 - 3), (1000, 2**32 - 1), (2**32 - 1, 2**32 - 1)):
        table.push(key, one, SGD, 0.1, hyper(SGD), 1, np.array([occurrences], np.uint32))
        assert all_rows(table)[1][2] == expected


@BOTH
def test_rows_are_touched_when_they_are_pushed_or_made(kernels):
    table = make(kernels, 2, NOTING_SGD)
    grads, out = np.ones((1, 2), np.float32), np.empty((1, 2), np.float32)
    table.pull(u64([1]), out, True, 7)
    table.pull(u64([1]), out, True, 8)
    table.push(u64([2]), grads, NOTING_SGD, 0.1, hyper(NOTING_SGD), 1, clock=2**32 - 1)
    table.push(u64([3]), grads, NOTING_SGD, 0.1, hyper(NOTING_SGD), 1, clock=9)
    table.take(u64([3]), 1.0, out, np.empty(1, np.uint32))
    table.rebase(u64([3, 4]), np.ones((2, 2), np.float32), True, NOTING_SGD, 0.1, hyper(NOTING_SGD), 1)
    assert {key: row[3] for key, row in all_rows(table).items()} == {1: 7, 2: 2**32 - 1, 3: 9, 4: 0}


@BOTH
def test_duplicate_keys_in_a_call_are_updated_one_after_the_other(kernels):
    """They are the caller's mistake, but must not harm the table."""
    table = kernels.RowTable(2, 0, 1, CONSTANT, 0.0, 0.0)
    keys = u64([5] * 200 + [6])
    assert (pulled(table, keys) == 0).all()
    table.clear()
    table.push(keys, np.full((201, 2), -0.5, np.float32), SGD, 1.0, np.zeros(1), 1)
    np.testing.assert_array_equal(pulled(table, u64([5, 6])), [[100, 100], [0.5, 0.5]])
    table.insert(keys, np.ones((201, 2), np.float32), np.empty((201, 0), np.float32), *[np.ones(201, np.uint32)] * 2)
    assert len(table) == 2
    assert (pulled(table, u64([5, 6])) == 1).all()


@BOTH
def test_clear_forgets_rows_and_the_table_goes_on(kernels):
    table = make(kernels, 3, ADAM)
    before = pulled(table, np.arange(5000, dtype=np.uint64))
    full = table.memory_bytes()
    table.clear()
    assert len(table) == 0
    assert table.memory_bytes() < full / 4
    assert all_rows(table) == {}
    np.testing.assert_array_equal(pulled(table, np.arange(5000, dtype=np.uint64)), before)


@BOTH
def test_new_rows_do_not_depend_on_order_or_call(kernels):
    keys = np.random.default_rng(0).integers(0, 2**64 - 1, 3000, dtype=np.uint64)
    forward, backward, pushed = (make(kernels, 5, ADAM) for _ in range(3))
    one = pulled(forward, keys)
    for part in np.array_split(keys[::-1], 7):
        pulled(backward, np.ascontiguousarray(part))
    pushed.push(keys, np.zeros((3000, 5), np.float32), ADAM, 0.0, np.array([0.9, 0.999, 1e-8]), 1)
    np.testing.assert_array_equal(pulled(backward, keys), one)
    np.testing.assert_array_equal(pulled(pushed, keys), one)


def test_native_refuses_arrays_of_a_wrong_size_or_type():
    table = make(native, 3, ADAM)
    with pytest.raises(ValueError, match=r"pull: out must be \[keys, dim\]"):
        table.pull(u64([1, 2]), np.empty((2, 4), np.float32), True)
    with pytest.raises(ValueError, match=r"push: grads must be \[keys, dim\]"):
        table.push(u64([1, 2]), np.empty((1, 3), np.float32), ADAM, 0.1, hyper(ADAM), 1)
    counts = np.ones(3, np.uint32)
    with pytest.raises(ValueError, match="push: one count per key"):
        table.push(u64([1, 2]), np.empty((2, 3), np.float32), ADAM, 0.1, hyper(ADAM), 1, counts)
    with pytest.raises(TypeError):
        table.push(u64([1, 2, 3]), np.empty((3, 3), np.float32), ADAM, 0.1, hyper(ADAM), 1, counts.astype(np.int64))
    with pytest.raises(ValueError, match="insert: one `seen` and `touched` per key"):
        table.insert(u64([1]), np.empty((1, 3), np.float32), np.empty((1, 6), np.float32), counts[:1], counts)
    with pytest.raises(ValueError, match="another state width"):
        table.push(u64([1]), np.empty((1, 3), np.float32), SGD, 0.1, hyper(SGD), 1)
    with pytest.raises(TypeError):
        table.pull(np.array([1, 2], np.int64), np.empty((2, 3), np.float32), True)
    with pytest.raises(ValueError, match="1 to 1048576 values"):
        native.RowTable(0, 0, 1, CONSTANT, 0.0, 0.0)


def test_a_million_rows_stay_found_and_small():
    dim, rows = 10, 1_000_000
    table = make(native, dim, ADAM)
    keys = np.random.default_rng(1).permutation(rows).astype(np.uint64) * np.uint64(64)  # low bits all alike
    for part in np.array_split(keys, 20):
        table.pull(part, np.empty((len(part), dim), np.float32), True)
    assert len(table) == rows
    sample = np.ascontiguousarray(keys[::97])
    np.testing.assert_array_equal(
        pulled(table, sample, create=False), native.init_rows(11, sample, dim, UNIFORM, -0.5, 0.5)
    )
    assert table.contains(keys).all()
    assert not table.contains(keys + np.uint64(1)).any()
    assert table.memory_bytes() / rows <= 1.3 * (8 + 4 * 3 * dim)
    found, batch = [], table.scan(0, 50_000)
    while len(batch.keys):
        found.append(batch.keys)
        batch = table.scan(batch.cursor, 50_000)
    np.testing.assert_array_equal(np.sort(np.concatenate(found)), np.sort(keys))


@pytest.mark.parametrize("dim", [1, 3, 64, 1000, 65536])
def test_rows_of_any_width_come_back_whole(dim):
    table = make(native, dim, ADAM)
    keys = np.arange(300 if dim <= 1000 else 70, dtype=np.uint64)
    values = np.arange(len(keys) * dim, dtype=np.float32).reshape(-1, dim)
    state = np.arange(len(keys) * dim * 2, dtype=np.float32).reshape(-1, 2 * dim)
    numbers = np.arange(len(keys), dtype=np.uint32)
    table.insert(keys, values, state, numbers, numbers + 5)
    np.testing.assert_array_equal(pulled(table, keys, create=False), values)
    found = table.scan(0, len(keys))
    order = np.argsort(found.keys)
    np.testing.assert_array_equal(found.values[order], values)
    np.testing.assert_array_equal(found.state[order], state)
    np.testing.assert_array_equal(found.seen[order], numbers)
    np.testing.assert_array_equal(found.touched[order], numbers + 5)


@pytest.mark.parametrize("shared", [True, False], ids=["same keys", "own keys"])
def test_threads_lose_no_update(shared):
    """Powers of two add up exactly in any order, so every lost update would show."""
    dim, rounds, threads, rows = 4, 40, 4, 5000
    table = native.RowTable(dim, 0, 1, CONSTANT, 0.0, 0.0)

    def work(thread: int):
        rng = np.random.default_rng(thread)
        keys = np.arange(rows, dtype=np.uint64) + np.uint64(0 if shared else thread * rows)
        for step in range(1, rounds + 1):
            mine = rng.permutation(keys)
            table.push(mine, np.full((rows, dim), -0.125, np.float32), SGD, 1.0, np.zeros(1), step)
            out = np.empty((rows, dim), np.float32)
            assert table.pull(mine, out, True) == 0
            assert (out >= 0.125 * step).all()

    run_threads([lambda t=t: work(t) for t in range(threads)])
    assert len(table) == (rows if shared else threads * rows)
    keys = np.arange(len(table), dtype=np.uint64)
    assert (pulled(table, keys) == 0.125 * rounds * (threads if shared else 1)).all()
    assert {row[2] for row in all_rows(table).values()} == {rounds * (threads if shared else 1)}


def test_rows_created_by_many_threads_are_the_same_as_by_one():
    dim, rows = 6, 40_000
    table = make(native, dim, ADAM)
    keys = np.random.default_rng(5).permutation(rows).astype(np.uint64)

    def work(thread: int):
        mine = np.random.default_rng(thread).permutation(keys)
        for part in np.array_split(mine, 30):
            np.testing.assert_array_equal(pulled(table, part), native.init_rows(11, part, dim, UNIFORM, -0.5, 0.5))

    run_threads([lambda t=t: work(t) for t in range(4)])
    assert len(table) == rows
    np.testing.assert_array_equal(pulled(table, keys), native.init_rows(11, keys, dim, UNIFORM, -0.5, 0.5))


def test_scans_and_counts_run_beside_pushes():
    table = make(native, 4, ADAM)
    steady = np.arange(10_000, dtype=np.uint64)
    pulled(table, steady)
    stop = threading.Event()

    def pusher():
        rng = np.random.default_rng(0)
        for step in range(1, 60):
            keys = np.unique(rng.integers(0, 60_000, 3000, dtype=np.uint64))
            table.push(keys, np.ones((len(keys), 4), np.float32), ADAM, 0.01, hyper(ADAM), step)
        stop.set()

    def scanner():
        while not stop.is_set():
            rows = all_rows(table, 3000)
            assert set(range(10_000)) <= rows.keys()
            assert len(table) >= len(steady)
            assert table.memory_bytes() > 0

    run_threads([pusher, scanner])
