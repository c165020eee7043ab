"""One trainer on servers, with nobody to wait for or to merge with, is one process."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from small_jobs import Given, batches, cluster, local_parameters, train_local

from sparsefleet import optim
from sparsefleet.fleet import DistributedStrategy

STEPS = 50


def check(strategy, rule, servers, tolerance=1e-5):
    given = batches(STEPS, seed=3)
    one, store = train_local(Given(given), rule)
    with cluster(servers) as fleet:
        (outcome,) = fleet.train([Given(given)], rule, strategy)
        there = fleet.parameters()
    np.testing.assert_allclose(outcome.losses, one.losses, rtol=1e-5)
    here = local_parameters(store)
    if strategy.mode == "geo":  # servers count exchanges, not steps, and the state is the trainer's
        assert not there.state.size
        assert not there.dense_state.size
        there = replace(here, keys=there.keys, values=there.values, dense=there.dense)
    there.assert_close(here, tolerance)
    assert outcome.result.train["auc"] == pytest.approx(one.result.train["auc"], abs=1e-4)


@pytest.mark.parametrize("servers", [1, 2, 3])
@pytest.mark.parametrize("rule", [optim.Adam(1e-3), optim.SGD(1e-2), optim.Adagrad(1e-2), optim.FTRL(1e-2)])
def test_async_without_merging(rule, servers):
    check(DistributedStrategy(mode="async", max_merge=1), rule, servers)


def test_async_that_waits_for_every_step():
    check(DistributedStrategy(mode="async", max_merge=4, staleness=0), optim.Adam(1e-3), 2)


def test_half_async_of_one_thread():
    check(DistributedStrategy(mode="half_async"), optim.Adam(1e-3), 2)


@pytest.mark.parametrize("servers", [1, 3])
@pytest.mark.parametrize("k_steps", [1, 10])
@pytest.mark.parametrize(
    "rule", [optim.SGD(1e-2), optim.Adam(1e-3), optim.Adagrad(1e-2), optim.RowwiseAdagrad(1e-2), optim.FTRL(1e-2)]
)
def test_geo_is_local_training(rule, k_steps, servers):
    check(DistributedStrategy(mode="geo", k_steps=k_steps), rule, servers)
