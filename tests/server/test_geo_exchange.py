"""Geo: deltas add up, and trainers hear of what others changed among the keys they know."""

from __future__ import annotations

import numpy as np
import pytest
from waiting import wait_until

from sparsefleet import optim
from sparsefleet.core.errors import StoreError
from sparsefleet.core.initializer import Uniform
from sparsefleet.core.keyed_rows import KeyedRows
from sparsefleet.server.geo import Geo
from sparsefleet.server.holdings import BoundRows
from sparsefleet.table import SparseTable, TableSpec

SPEC = TableSpec("ads", 2, optim.SGD(0.1), Uniform(-1, 1))


def rows(keys, value):
    keys = np.array(keys, np.uint64)
    return KeyedRows(keys, np.full((len(keys), 2), value, np.float32))


def told(exchange):
    """The keys that an answer tells of, in order, and their values."""
    changed = exchange.wait().changed["ads"]
    order = np.argsort(changed.keys)
    return changed.keys[order], changed.rows[order]


@pytest.mark.parametrize("count", [1, 3])
def test_trainers_hear_of_each_others_changes(fleet, count):
    stores = fleet.start(count).stores_of_all(3)
    first = SparseTable(SPEC).pull(np.arange(100, dtype=np.uint64))
    for store in stores:
        store.create_table(SPEC)
    np.testing.assert_array_equal(stores[0].geo.pull("ads", np.arange(10, dtype=np.uint64)).wait(), first[:10])
    stores[1].geo.pull("ads", np.arange(5, 50, dtype=np.uint64)).wait()

    keys, values = told(stores[0].geo.exchange({"ads": rows(range(20), 0.5)}))
    np.testing.assert_array_equal(keys, np.arange(10, 20))  # new to it: others may have changed them
    np.testing.assert_array_equal(values, first[10:20] + np.float32(0.5))

    keys, values = told(stores[1].geo.exchange({"ads": rows([5, 40], 0.25)}))
    np.testing.assert_array_equal(keys, np.arange(5, 20))  # of 40 it knows what it has become
    np.testing.assert_array_equal(values[0], first[5] + np.float32(0.75))
    np.testing.assert_array_equal(values[1:], first[6:20] + np.float32(0.5))
    there = stores[1].pull("ads", np.array([40], np.uint64)).wait()
    np.testing.assert_array_equal(there[0], first[40] + np.float32(0.25))

    answer = stores[0].geo.exchange({"ads": rows([], 0)}).wait()
    np.testing.assert_array_equal(answer.changed["ads"].keys, [5])  # 40 is not one it knows
    np.testing.assert_array_equal(answer.changed["ads"].rows[0], first[5] + np.float32(0.75))
    assert len(stores[0].geo.exchange({"ads": rows([], 0)}).wait().changed["ads"]) == 0
    assert len(stores[2].geo.exchange({"ads": rows([], 0)}).wait().changed["ads"]) == 0


def test_dense_deltas_add_up(fleet):
    stores = fleet.start(2).stores_of_all(2)
    for store in stores:
        store.create_dense("net", np.zeros(5, np.float32), optim.SGD(0.1), [("w", (5,))])
    one = np.arange(5, dtype=np.float32)
    np.testing.assert_array_equal(stores[0].geo.exchange({}, {"net": one}).wait().dense["net"], one)
    np.testing.assert_array_equal(stores[1].geo.exchange({}, {"net": one}).wait().dense["net"], 2 * one)


def test_tables_that_keep_state_are_not_added_to(fleet):
    store = fleet.start(1).store()
    store.create_table(TableSpec("ads", 2, optim.Adam()))
    with pytest.raises(StoreError, match="geo adds differences to values, but 'ads' has adam's state on this server"):
        store.geo.exchange({"ads": rows([1], 1.0)}).wait()


@pytest.mark.parametrize("rule", [optim.Adam(), optim.Adagrad(), optim.RowwiseAdagrad(), optim.FTRL()])
def test_differences_add_up_whatever_rule_made_them(fleet, rule):
    store, spec = fleet.start(2).store(), TableSpec("ads", 2, optim.values_only(rule), Uniform(-1, 1))
    store.create_table(spec)
    first = SparseTable(SPEC).pull(np.arange(10, dtype=np.uint64))
    for times in (1, 2):
        store.geo.exchange({"ads": rows(range(10), 0.5)}).wait()
        there = store.pull("ads", np.arange(10, dtype=np.uint64)).wait()
        np.testing.assert_allclose(there, first + np.float32(0.5) * times, rtol=1e-6)


def subscribed(store):
    """Per server: keys subscribed to, by trainer."""
    return [server["geo_subscribed_keys"].get("ads") for server in store.stats()["servers"]]


def by_trainer(store, worker):
    """Per server how many keys a trainer subscribes to; None: it is not known there."""
    return [counts.get(str(worker)) for counts in subscribed(store)]


@pytest.mark.parametrize("end", ["killed", "failed", "ended", "closed"])
def test_a_trainer_that_is_lost_is_forgotten(fleet, end):
    """The others go on, and nothing is collected for it."""
    stores = fleet.start(2, "--timeout", "1", "--lost-trainer", "drop").stores_of_all(2, heartbeat=0.2)
    for store in stores:
        store.create_table(SPEC)
    keys = np.arange(1000, dtype=np.uint64)
    stores[0].geo.pull("ads", keys[:10]).wait()
    stores[1].geo.pull("ads", keys).wait()
    assert sum(by_trainer(stores[0], 1)) == 1000
    if end == "killed":
        stores[1].connection.heartbeats.stop()
        wait_until(lambda: by_trainer(stores[0], 1) == [None, None], 20, "both servers notice its silence")
    elif end == "failed":
        stores[1].crew.give_up(KeyboardInterrupt())
    elif end == "ended":
        for link in stores[0].connection.links:  # as its launcher says it
            link.action("ended", {"worker": 1, "how": "killed by SIGKILL", "failed": False}, 10.0)
    else:
        stores[1].close()
    assert by_trainer(stores[0], 1) == [None, None]
    stores[0].geo.exchange({"ads": rows(range(1000), 0.5)}).wait()
    assert by_trainer(stores[0], 1) == [None, None]
    assert sum(by_trainer(stores[0], 0)) == 1000


def test_a_second_life_hears_only_of_what_it_asked_for_itself(fleet):
    stores = fleet.start(1, "--timeout", "20").stores_of_all(2)
    for store in stores:
        store.create_table(SPEC)
    stores[1].geo.pull("ads", np.arange(100, dtype=np.uint64)).wait()
    stores[0].geo.exchange({"ads": rows(range(50), 0.5)}).wait()
    stores[1].crew.give_up(KeyboardInterrupt())
    again = fleet.store(1, 2)
    again.create_table(SPEC)
    again.geo.pull("ads", np.arange(40, 60, dtype=np.uint64)).wait()
    assert subscribed(stores[0]) == [{"0": 50, "1": 20}]
    assert len(again.geo.exchange({"ads": rows([], 0)}).wait().changed["ads"]) == 0
    stores[0].geo.exchange({"ads": rows(range(45), 0.5)}).wait()
    changed = again.geo.exchange({"ads": rows([], 0)}).wait().changed["ads"]
    assert sorted(changed.keys.tolist()) == [40, 41, 42, 43, 44]


def exchanged(geo, table, worker, life, keys, number=1):
    """Adds 1 to the rows of the keys; the keys that the trainer is told of."""
    part = BoundRows(table, np.array(keys, np.uint64), np.ones((len(keys), 2), np.float32))
    (changed,) = geo.exchange(worker, life, f"{worker}/{life}/0", number, [part], False)
    np.testing.assert_array_equal(changed[0].keys, changed[1])
    return sorted(changed[1].tolist())


def test_what_was_on_its_way_when_a_trainer_was_forgotten_counts_but_does_not_subscribe_it_again():
    geo, table = Geo(), SparseTable(SPEC)
    keys = np.arange(5, dtype=np.uint64)
    first = table.pull(keys)
    geo.subscribe(0, "other", table, keys)
    geo.subscribe(1, "first", table, keys)
    geo.forget(1)
    with pytest.raises(StoreError, match="worker 1 has left or was lost"):
        geo.subscribe(1, "first", table, keys)
    assert exchanged(geo, table, 1, "first", [1, 2, 77]) == [1, 2, 77], "what it sent: of more nobody has kept count"
    np.testing.assert_array_equal(table.pull(keys)[1:3], first[1:3] + 1)
    assert geo.stats() == {"ads": {"0": 5}}
    assert exchanged(geo, table, 0, "other", [4]) == [1, 2]
    geo.subscribe(1, "second", table, keys)
    assert exchanged(geo, table, 1, "first", [3], 2) == [3]
    assert exchanged(geo, table, 1, "second", [0]) == [3], "of what its first life did it hears as of others'"
    assert geo.stats() == {"ads": {"0": 5, "1": 5}}
    geo.forget(None)
    assert geo.stats() == {"ads": {}}
