"""Cuts of a RowTable: all rows as of one moment, whatever happens to them while they are read."""

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
    NOTED,
    SGD,
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


def slice_of(table, max_rows):
    keys, values, state, seen, touched, _ = table.scan_cut(max_rows)
    rows = {
        key: (values[i].tobytes(), state[i].tobytes(), int(seen[i]), int(touched[i]))
        for i, key in enumerate(keys.tolist())
    }
    return rows, len(keys)


def rest_of_cut(table, max_rows=1000, rows=None):
    rows = {} if rows is None else rows
    while True:
        more, count = slice_of(table, max_rows)
        if not count:
            return rows
        assert not rows.keys() & more.keys(), "a row came twice"
        rows.update(more)


def change(table, call, keys, kind, step, rng):
    values = rng.standard_normal((len(keys), table.dim)).astype(np.float32)
    if call == "push":
        table.push(keys, values, kind, 0.05, hyper(kind), step, clock=step)
    elif call == "insert":
        state = np.abs(rng.standard_normal((len(keys), width(kind, table.dim)))).astype(np.float32)
        table.insert(keys, values, state, *[np.full(len(keys), step, np.uint32)] * 2)
    elif call == "take" and kind in NOTED:
        table.take(keys, 2.0, np.empty_like(values), np.empty(len(keys), np.uint32))
    elif call == "rebase" and kind in NOTED:
        table.rebase(keys, values, True, kind, 0.05, hyper(kind), step)
    else:
        pulled(table, keys)


CALLS = st.tuples(st.sampled_from(["push", "insert", "take", "rebase", "pull"]), keys_of)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(sorted(HYPER)),
    st.integers(1, 40),
    st.lists(CALLS, max_size=5),
    st.lists(st.one_of(CALLS, st.integers(1, 60)), max_size=12),
    st.integers(0, 2**32 - 1),
)
def test_a_cut_is_of_its_moment_whatever_comes_between_its_slices(kind, dim, before, meanwhile, seed):
    """An integer in `meanwhile` reads a slice of so many rows; all else changes rows."""
    cuts = []
    for kernels in (native, reference):
        table, rng = make(kernels, dim, kind, 0.5), np.random.default_rng(seed)
        for step, (call, keys) in enumerate(before, start=1):
            change(table, call, u64(keys), kind, step, rng)
        expected, rows = all_rows(table), {}
        assert table.begin_cut() == len(expected)
        for step, what in enumerate(meanwhile, start=10):
            if isinstance(what, int):
                more, _ = slice_of(table, what)
                assert not rows.keys() & more.keys(), "a row came twice"
                rows.update(more)
            else:
                change(table, what[0], u64(what[1]), kind, step, rng)
        rest_of_cut(table, 7, rows)
        assert rows == expected
        table.end_cut()
        cuts.append((rows, all_rows(table)))
    assert cuts[0] == cuts[1]


@BOTH
def test_one_cut_at_a_time_and_no_clearing_meanwhile(kernels):
    table = make(kernels, 2, SGD)
    pulled(table, u64(range(100)))
    with pytest.raises(ValueError, match="there is no open cut"):
        table.scan_cut(10)
    table.begin_cut()
    with pytest.raises(ValueError, match="open already"):
        table.begin_cut()
    with pytest.raises(ValueError, match="cannot be cleared while a cut of it is open"):
        table.clear()
    assert len(table) == 100
    table.end_cut()
    table.end_cut()
    assert table.begin_cut() == 100, "a cut that was not read to its end leaves nothing behind"
    assert rest_of_cut(table) == all_rows(table)
    assert len(table.scan_cut(5).keys) == 0
    table.end_cut()
    table.clear()
    assert table.begin_cut() == 0
    assert rest_of_cut(table) == {}


@pytest.mark.parametrize("dim", [1, 70_000])
def test_rows_of_any_width_are_kept_aside_whole(dim):
    table = make(native, dim, SGD)
    keys = np.arange(2000 if dim == 1 else 70, dtype=np.uint64)
    pulled(table, keys)
    expected = all_rows(table, len(keys))
    table.begin_cut()
    table.push(keys, np.ones((len(keys), dim), np.float32), SGD, 0.1, hyper(SGD), 1)
    assert rest_of_cut(table, 33) == expected
    table.end_cut()


def test_memory_grows_with_what_changes_and_is_given_back():
    dim, rows = 10, 400_000
    table = make(native, dim, ADAM)
    keys = np.arange(rows, dtype=np.uint64)
    pulled(table, keys)
    plain, row = table.memory_bytes(), 16 + 4 * 3 * dim

    def push(some):
        some = np.ascontiguousarray(some)
        table.push(some, np.ones((len(some), dim), np.float32), ADAM, 0.01, hyper(ADAM), 1)

    table.begin_cut()
    assert table.memory_bytes() == plain, "nothing is copied at the moment itself"
    push(keys[::100])
    few = table.memory_bytes() - plain
    push(keys[::100])
    assert table.memory_bytes() - plain == few, "a row is kept once"
    push(keys[::2])
    half = table.memory_bytes() - plain
    assert few < half / 4
    assert rows / 2 * row <= half <= 1.3 * (rows / 2 * row) + 16e6
    while len(table.scan_cut(50_000).keys):
        push(keys[::2])
    assert table.memory_bytes() - plain <= half + 16e6, "chunks of shards that were read serve the others"
    table.end_cut()
    assert table.memory_bytes() - plain < 1e5


def test_what_was_read_costs_no_copy_any_more():
    table = make(native, 4, SGD)
    keys = np.arange(100_000, dtype=np.uint64)
    pulled(table, keys)
    plain = table.memory_bytes()
    table.begin_cut()
    while len(table.scan_cut(30_000).keys):
        pass
    table.push(keys, np.ones((len(keys), 4), np.float32), SGD, 0.1, hyper(SGD), 1)
    assert table.memory_bytes() == plain
    table.end_cut()


def test_threads_hammer_the_table_while_cuts_are_read():
    """Every push moves every old row by one, so all old rows of a cut must be at the number of pushes before it."""
    dim, rows, threads, cuts = 3, 30_000, 3, 6
    table = native.RowTable(dim, 0, 1, CONSTANT, 0.0, 0.0)
    keys = np.arange(rows, dtype=np.uint64)
    pulled(table, keys)
    meeting, reading = threading.Barrier(threads + 1, timeout=60), threading.Event()
    pushes, beside = [0] * threads, threading.Semaphore(0)

    def pusher(thread: int):
        rng, young = np.random.default_rng(thread), 10_000_000 * (thread + 1)
        for _ in range(cuts):
            meeting.wait()  # until the next meeting nobody pushes: the reader begins a cut
            meeting.wait()
            for number in range(60):
                if number >= 2 and not reading.is_set():
                    break
                table.push(rng.permutation(keys), np.full((rows, dim), -1.0, np.float32), SGD, 1.0, np.zeros(1), 1)
                pulled(table, np.arange(young, young + 500, dtype=np.uint64))
                young += 500
                pushes[thread] += 1
                if reading.is_set():
                    beside.release()

    def reader():
        for _ in range(cuts):
            meeting.wait()
            while beside.acquire(blocking=False):  # those of the cut before
                pass
            pushed, there = sum(pushes), table.begin_cut()
            reading.set()
            meeting.wait()
            found = 0
            while len((batch := table.scan_cut(777)).keys):
                if not found:
                    assert beside.acquire(timeout=60), "no push was made beside a cut: nothing was tried"
                old = batch.keys < rows
                assert (batch.values[old] == pushed).all()
                assert (batch.seen[old] == pushed).all()
                assert (batch.values[~old] == 0).all()
                found += len(batch.keys)
            reading.clear()
            assert found == there
            table.end_cut()

    run_threads([reader, *[lambda t=t: pusher(t) for t in range(threads)]])
    assert (pulled(table, keys) == sum(pushes)).all()


FEW = st.lists(st.integers(0, 30), unique=True, max_size=10)


@BOTH
@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(FEW, FEW), max_size=6), st.integers(1, 7), st.integers(0, 6))
def test_a_cut_gives_only_what_was_touched_since(kernels, steps, size, since):
    """Whatever is changed while it is read."""
    table = make(kernels, 2, SGD)
    for clock, (pushed, seen) in enumerate(((u64(one), u64(other)) for one, other in steps), 1):
        table.push(pushed, np.ones((len(pushed), 2), np.float32), SGD, 0.1, hyper(SGD), clock, clock=clock)
        table.pull(seen, np.empty((len(seen), 2), np.float32), True, clock + 1)
    expected = {key: row for key, row in all_rows(table).items() if row[3] > since}
    table.begin_cut()
    found = {}
    while True:
        keys, values, state, seen, touched, _ = table.scan_cut(size, 0, since)
        if not len(keys):
            break
        for i, key in enumerate(keys.tolist()):
            assert key not in found
            found[key] = (values[i].tobytes(), state[i].tobytes(), int(seen[i]), int(touched[i]))
        table.push(u64(range(50)), np.ones((50, 2), np.float32), SGD, 0.1, hyper(SGD), 99, clock=99)
    table.end_cut()
    assert found == expected


@BOTH
def test_clocks_go_round(kernels):
    table = make(kernels, 2, SGD)
    for key, clock in enumerate((2**32 - 3, 2**32 - 1, 1)):
        table.push(u64([key]), np.ones((1, 2), np.float32), SGD, 0.1, hyper(SGD), 1, clock=clock)
    table.begin_cut()
    assert sorted(table.scan_cut(10, 0, 2**32 - 2).keys.tolist()) == [1, 2]
    assert len(table.scan_cut(10, 0, 2**32 - 2).keys) == 0
