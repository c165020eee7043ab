"""Geo: deltas add up, and trainers hear of what others changed among the keys they know."""

from __future__ import annotations

import numpy as np
import pytest

from sparsefleet import optim
from sparsefleet.core.errors import StoreError
from sparsefleet.core.initializer import Uniform
from sparsefleet.core.keyed_rows import KeyedRows
from sparsefleet.table import SparseTable, TableSpec

SPEC = TableSpec("ads", 2, optim.SGD(0.1), Uniform(-1, 1))


def rows(keys, value):
    keys = np.array(keys, np.uint64)
    return KeyedRows(keys, np.full((len(keys), 2), value, np.float32))


@pytest.mark.parametrize("count", [1, 3])
def test_trainers_hear_of_each_others_changes(fleet, count):
    stores = fleet.start(count).stores_of_all(3)
    first = SparseTable(SPEC).pull(np.arange(100, dtype=np.uint64))
    for store in stores:
        store.create_table(SPEC)
    np.testing.assert_array_equal(stores[0].geo_pull("ads", np.arange(10, dtype=np.uint64)).wait(), first[:10])
    stores[1].geo_pull("ads", np.arange(5, 50, dtype=np.uint64)).wait()

    answer = stores[0].geo_exchange({"ads": rows(range(20), 0.5)}).wait()
    np.testing.assert_array_equal(answer.sent["ads"], first[:20] + np.float32(0.5))
    assert len(answer.changed["ads"]) == 0

    answer = stores[1].geo_exchange({"ads": rows([5, 40], 0.25)}).wait()
    np.testing.assert_array_equal(
        answer.sent["ads"], np.stack([first[5] + np.float32(0.75), first[40] + np.float32(0.25)])
    )
    order = np.argsort(answer.changed["ads"].keys)
    np.testing.assert_array_equal(answer.changed["ads"].keys[order], np.arange(6, 20))
    np.testing.assert_array_equal(answer.changed["ads"].rows[order], first[6:20] + np.float32(0.5))

    answer = stores[0].geo_exchange({"ads": rows([], 0)}).wait()
    np.testing.assert_array_equal(answer.changed["ads"].keys, [5])  # 40 is not one it knows
    np.testing.assert_array_equal(answer.changed["ads"].rows[0], first[5] + np.float32(0.75))
    assert len(stores[0].geo_exchange({"ads": rows([], 0)}).wait().changed["ads"]) == 0
    assert len(stores[2].geo_exchange({"ads": rows([], 0)}).wait().changed["ads"]) == 0


def test_dense_deltas_add_up(fleet):
    stores = fleet.start(2).stores_of_all(2)
    for store in stores:
        store.create_dense("net", np.zeros(5, np.float32), optim.SGD(0.1), [("w", (5,))])
    one = np.arange(5, dtype=np.float32)
    np.testing.assert_array_equal(stores[0].geo_exchange({}, {"net": one}).wait().dense["net"], one)
    np.testing.assert_array_equal(stores[1].geo_exchange({}, {"net": one}).wait().dense["net"], 2 * one)


def test_only_sgd(fleet):
    store = fleet.start(1).store()
    store.create_table(TableSpec("ads", 2, optim.Adam()))
    with pytest.raises(StoreError, match="geo works with SGD only; 'ads' has adam"):
        store.geo_exchange({"ads": rows([1], 1.0)}).wait()


def test_the_list_of_changes_stays_bounded(fleet, monkeypatch):
    from sparsefleet.server import geo

    monkeypatch.setattr(geo, "COMPACT_KEYS", 100)
    subscriber = geo.Subscriber("x")
    keys = np.arange(80, dtype=np.uint64)
    subscriber.keys.add(keys)
    for _ in range(1000):
        subscriber.note(np.arange(0, 200, dtype=np.uint64))
    assert sum(map(len, subscriber.changed)) <= 160 + 80
    np.testing.assert_array_equal(subscriber.take(), keys)
    assert len(subscriber.take()) == 0
