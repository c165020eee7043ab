"""SparseTable: steps and rates, scans, and errors that name the table."""

from __future__ import annotations

import numpy as np
import pytest

from sparsefleet import optim
from sparsefleet.core.errors import StoreError
from sparsefleet.core.initializer import Constant, Normal, Uniform
from sparsefleet.optim.schedule import LinearWarmup
from sparsefleet.table import SparseTable, TableRows, TableSpec


def u64(*keys: int) -> np.ndarray:
    return np.array(keys, np.uint64)


def table(rule=None, dim=3, **settings) -> SparseTable:
    return SparseTable(TableSpec("ads", dim, rule or optim.SGD(1.0), **settings))


def test_each_push_is_a_step_and_uses_the_rate_of_that_step():
    rows = table(optim.SGD(1.0, schedule=LinearWarmup(4)), initializer=Constant(0.0))
    keys, ones = u64(1, 2), np.full((2, 3), -1.0, np.float32)
    for expected in (0.25, 0.75, 1.5):
        rows.push(keys, ones)
        assert (rows.pull(keys) == expected).all()
    assert rows.step == 3
    rows.push(u64(), np.empty((0, 3), np.float32))
    assert rows.step == 4, "a push without keys is a step too"


def test_bias_correction_goes_on_from_a_restored_step():
    fresh, restored = table(optim.Adam(0.1)), table(optim.Adam(0.1))
    keys, grads = u64(1, 2), np.ones((2, 3), np.float32)
    fresh.push(keys, grads)
    for rows in fresh.scan():
        restored.insert(rows)
    restored.step = fresh.step
    for each in (fresh, restored):
        each.push(keys, 2 * grads)
    np.testing.assert_array_equal(fresh.pull(keys), restored.pull(keys))


def test_new_rows_come_from_seed_name_and_key():
    def first(name="a", seed=0, keys=(1, 2, 3), initializer=None):
        spec = TableSpec(name, 4, optim.SGD(), initializer or Uniform(), seed)
        return SparseTable(spec).pull(u64(*keys))

    np.testing.assert_array_equal(first(), first())
    np.testing.assert_array_equal(first(keys=(3, 1))[::-1], first()[[0, 2]])
    assert not np.isin(first(name="b"), first()).any()
    assert not np.isin(first(seed=1), first()).any()
    assert (first(initializer=Constant(0.5)) == 0.5).all()
    assert first(initializer=Normal(0.0, 10.0)).std() > 1


def test_misses_are_counted_when_rows_are_not_created():
    rows = table()
    rows.pull(u64(1, 2))
    assert rows.misses == 0
    assert (rows.pull(u64(3, 4, 1), create=False)[:2] == 0).all()
    assert (rows.misses, rows.rows) == (2, 2)
    np.testing.assert_array_equal(rows.contains(u64(3, 1)), [False, True])


def test_a_scan_and_an_insert_carry_everything_over():
    source, target = table(optim.Adam(0.1)), table(optim.Adam(0.1))
    keys = np.arange(1000, dtype=np.uint64)
    for some in (keys, keys[:10]):
        source.push(some, np.ones((len(some), 3), np.float32))
    batches = list(source.scan(batch_rows=64))
    assert [len(batch) for batch in batches] == [64] * 15 + [40]
    for batch in batches:
        target.insert(batch)
    np.testing.assert_array_equal(target.pull(keys, create=False), source.pull(keys))
    found = next(target.scan(2000))
    assert sorted(found.seen.tolist()) == [1] * 990 + [2] * 10
    assert (found.state[:, :3] > 0).all()
    assert target.rows == 1000
    target.clear()
    assert (len(target), list(target.scan())) == (0, [])


def test_arrays_that_are_not_contiguous_are_taken_too():
    rows = table(initializer=Constant(0.0))
    keys = np.arange(20, dtype=np.uint64)[::2]
    grads = np.asfortranarray(-np.arange(30, dtype=np.float32).reshape(10, 3))
    rows.push(keys, grads)
    np.testing.assert_array_equal(rows.pull(keys), -grads)


def test_stats_are_plain_numbers():
    rows = table()
    rows.pull(u64(1, 2))
    rows.push(u64(1), np.zeros((1, 3), np.float32))
    rows.pull(u64(5), create=False)
    stats = rows.stats()
    assert stats.pop("memory_bytes") > 0
    assert stats == {"rows": 2, "step": 1, "pulls": 2, "pulled_rows": 3, "pushed_rows": 1, "misses": 1}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda t: t.pull(np.array([1, 2])),
            "table 'ads': keys must be an array of uint64; got an array of int64",
        ),
        (lambda t: t.pull([1, 2]), "table 'ads': keys must be an array of uint64; got list"),
        (lambda t: t.pull(u64(1, 2).reshape(2, 1)), "keys must have shape [any]; got [2, 1]"),
        (
            lambda t: t.push(u64(1, 2), np.zeros((2, 4), np.float32)),
            "table 'ads' (dim 3, sgd state 0): grads must have shape [2, 3]; got [2, 4]",
        ),
        (lambda t: t.push(u64(1, 2), np.zeros((1, 3), np.float32)), "must have shape [2, 3]; got [1, 3]"),
        (
            lambda t: t.push(u64(1), np.zeros((1, 3))),
            "grads must be an array of float32; got an array of float64",
        ),
        (
            lambda t: t.insert(
                TableRows(u64(1), np.zeros((1, 3), np.float32), np.zeros((1, 6), np.float32), np.zeros(1, np.uint32))
            ),
            "state must have shape [1, 0]; got [1, 6]",
        ),
        (lambda t: next(t.scan(0)), "table 'ads': batch_rows=0 must be 1 or above"),
        (lambda t: setattr(t, "step", -1), "table 'ads': step=-1 must be 0 or above"),
    ],
)
def test_wrong_arrays_get_an_error_that_names_the_table(call, message):
    rows = table()
    with pytest.raises(StoreError) as error:
        call(rows)
    assert message in str(error.value)
    assert (rows.rows, rows.step) == (0, 0), "a refused call changes nothing"
