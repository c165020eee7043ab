"""Geo: local copies, deltas divided by the trainers, and in the end nothing left behind."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import pytest
from communicator_contract import (
    CommunicatorContract,
    OnServers,
    gradients,
    parameters_in,
    rows_of,
    run_lanes,
    train,
    u64,
)
from small_jobs import cluster

from sparsefleet import optim
from sparsefleet.communicator import CommunicatorConfig, GeoCommunicator
from sparsefleet.core.errors import ConfigError, StoreError
from sparsefleet.core.initializer import Constant
from sparsefleet.store import LocalStore
from sparsefleet.store.base import RunFacts
from sparsefleet.table import TableSpec, WorkingCopy


class TestGeo(OnServers, CommunicatorContract):
    kind = GeoCommunicator


class TestGeoRarely(OnServers, CommunicatorContract):
    kind = GeoCommunicator
    config = CommunicatorConfig(k_steps=7)


@pytest.fixture
def pair():
    """Two trainers on two servers that exchange after every step, and a server's view."""
    with cluster(2) as fleet:
        made = []
        for worker in range(2):
            communicator = GeoCommunicator(fleet.store(worker, 2), CommunicatorConfig(k_steps=1, trainers=2))
            communicator.start(parameters_in(communicator.store))
            made.append((communicator, *communicator.begin_epoch(0, 1)))
        yield made


def local(lane, key):
    return float(lane.pull("ads", u64(key)).wait()[0, 0])


def dense(communicator):
    return float(communicator.parameters.dense_values[0])


def test_the_formulas(pair):
    """delta = (local - old) / trainers, old += delta; on pull local += server - old."""
    (a, lane_a), (b, lane_b) = pair
    assert local(lane_a, 5) == 0
    lane_a.push(gradients(-4.0, 5))  # delta 2
    assert (local(lane_a, 5), dense(a), rows_of(a.store, 5)) == (4, 4, [2])
    assert local(lane_b, 5) == 0
    lane_b.push(gradients(-1.0, 5))  # old 0, local 1, delta 0.5, server 2.5, local 1 + 2.5 - 0.5; dense alike
    assert (local(lane_b, 5), rows_of(b.store, 5)) == (3, [2.5])
    assert dense(b) == 1 + 2
    lane_a.push(gradients(0.0, 5))  # delta (4 - 2) / 2 = 1, server 3.5, local 4 + 3.5 - 3
    assert (local(lane_a, 5), dense(a), rows_of(a.store, 5)) == (4.5, 4.5, [3.5])
    a.flush()  # the rest, 4.5 - 3.5
    assert (local(lane_a, 5), rows_of(a.store, 5)) == (4.5, [4.5])
    b.flush()  # the rest, 3 - 2.5
    assert rows_of(a.store, 5) == [5]
    a.flush()
    b.flush()
    # The dense block ends as the servers have it, the same for all.
    there = np.zeros(3, np.float32)
    a.store.pull_dense("dense", there).wait()
    assert dense(a) == dense(b) == there[0]


def test_what_others_changed_comes_with_the_next_exchange_though_not_touched_here(pair):
    (_, lane_a), (_, lane_b) = pair
    assert local(lane_a, 8) == local(lane_b, 8) == 0
    lane_a.push(gradients(-4.0, 8))
    assert local(lane_b, 8) == 0
    lane_b.push(gradients(-1.0, 9))
    assert local(lane_b, 8) == 2


def test_rows_not_touched_again_send_the_whole_rest_with_the_next_exchange(pair):
    """Of a rare row only 1/trainers was sent with the step that touched it."""
    (a, lane_a), (b, _) = pair
    for key in range(10, 40):
        local(lane_a, key)
        lane_a.push(gradients(-2.0, key))
    assert rows_of(b.store, *range(10, 40)) == [2.0] * 29 + [1.0]
    lane_a.push(gradients(0.0, 99))
    assert rows_of(b.store, 39) == [2.0]
    a.flush()
    assert rows_of(b.store, *range(10, 40)) == [2.0] * 30
    assert local(lane_a, 10) == 2


def test_exchanges_come_every_k_steps():
    with cluster(1) as fleet:
        store = fleet.store()
        communicator = GeoCommunicator(store, CommunicatorConfig(k_steps=4))
        communicator.start(parameters_in(store))
        (lane,) = communicator.begin_epoch(0, 1)
        seen = []
        for _ in range(9):
            train(lane, 1, 3)
            seen += rows_of(store, 3)
        assert seen == [0, 0, 0, 4, 4, 4, 4, 8, 8]


def test_threads_lose_nothing_while_one_exchanges():
    with cluster(2) as fleet:
        communicator = GeoCommunicator(fleet.store(), CommunicatorConfig(k_steps=3))
        communicator.start(parameters_in(communicator.store))
        assert run_lanes(communicator.begin_epoch(0, 4), lambda i, lane: train(lane, 50, i + 1)) == [None] * 4
        communicator.flush()
        np.testing.assert_allclose(rows_of(communicator.store, 0, 1, 2, 3, 4), [200, 50, 50, 50, 50], rtol=1e-5)
        np.testing.assert_allclose(communicator.parameters.dense_values, 200, rtol=1e-5)


def test_only_sgd_is_taken():
    with cluster(1) as fleet:
        store = fleet.store()
        parameters = parameters_in(store, optim.Adam())
        with pytest.raises(ConfigError, match="geo works with SGD only, but table 'ads' has adam; use sgd, or another"):
            GeoCommunicator(store).start(parameters)
        spec = replace(parameters.tables["ads"], rule=optim.SGD(1.0))
        with pytest.raises(ConfigError, match="geo works with SGD only, but the dense block has adam"):
            GeoCommunicator(store).start(replace(parameters, tables={"ads": spec}))


def test_one_process_has_nobody_to_meet():
    store = LocalStore()
    communicator = GeoCommunicator(store, CommunicatorConfig(k_steps=1))
    with pytest.raises(StoreError, match="geo needs parameter servers"):
        communicator.start(parameters_in(store))


@pytest.mark.parametrize("how", ["another fit", "loaded"])
def test_rows_that_were_learnt_before_are_fetched_when_met(how, tmp_path):
    with ExitStack() as stack:
        store = stack.enter_context(cluster(2)).store()
        parameters = parameters_in(store)
        store.push("ads", u64(5), np.full((1, 2), -3.0, np.float32)).wait()
        if how == "loaded":
            store.save(str(tmp_path / "c"), RunFacts())
            store = stack.enter_context(cluster(2)).store()
            parameters = parameters_in(store)
            store.load(str(tmp_path / "c"))
        communicator = GeoCommunicator(store, CommunicatorConfig(k_steps=100))
        communicator.start(parameters)
        (lane,) = communicator.begin_epoch(0, 1)
        assert (local(lane, 5), local(lane, 6)) == (3, 0)
        lane.push(gradients(-1.0, 5, 6))
        communicator.flush()
        assert rows_of(store, 5, 6) == [4, 1]


def test_the_learning_rate_goes_on_where_the_run_stood():
    """Each step counts once, for rows and dense parameters alike, and those of an earlier fit count too."""
    rule = optim.SGD(1.0, schedule=optim.schedule.LinearWarmup(4))
    with cluster(1) as fleet:
        store = fleet.store()
        communicator = GeoCommunicator(store, CommunicatorConfig(k_steps=1))
        communicator.start(parameters_in(store, rule), done=2)
        (lane,) = communicator.begin_epoch(0, 1)
        seen = []
        for _ in range(3):
            train(lane, 1, 3)
            seen.append((*rows_of(store, 3), dense(communicator)))
        rates = np.cumsum([rule.rate(step) for step in (3, 4, 5)])
        np.testing.assert_allclose(seen, np.stack([rates, rates], axis=1), rtol=1e-5)


def test_a_copy_is_for_sgd_only():
    with pytest.raises(StoreError, match="adam keeps state; a working copy is for sgd only"):
        WorkingCopy(TableSpec("ads", 2, optim.Adam(), Constant(0.0)))
