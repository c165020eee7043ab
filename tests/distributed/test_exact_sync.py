"""Exact tables on servers: in sync, any number of trainers and servers is one process on the joint batch."""

from __future__ import annotations

import numpy as np
import pytest
from small_jobs import batches, cluster, joined, local_parameters, readers, small_model, train_local

from sparsefleet import optim
from sparsefleet.fleet import DistributedStrategy

EXACT = optim.Adam(1e-3, weight_decay=1e-3, exact=True)
STEPS = 60


def shares(trainers):
    """Rows that are met often, now and then, and once."""
    many = [batches(STEPS, rows=8, seed=worker, vocabulary=4000) for worker in range(trainers)]
    return [[*batches(5, rows=8, seed=worker + 9, vocabulary=50), *own] for worker, own in enumerate(many)]


@pytest.mark.parametrize(("trainers", "servers"), [(2, 2), (1, 3)])
def test_sync_equals_one_process(trainers, servers):
    given = shares(trainers)
    one, store = train_local(readers([[joined(parts) for parts in zip(*given, strict=True)]])[0], EXACT)
    with cluster(servers) as fleet:
        outcomes = fleet.train(readers(given), EXACT, DistributedStrategy(mode="sync"))
        fleet.parameters().assert_close(local_parameters(store))
    together = [sum(losses) for losses in zip(*(outcome.losses for outcome in outcomes), strict=True)]
    np.testing.assert_allclose(together, one.losses, rtol=1e-5)
    _, lazy_store = train_local(
        readers([[joined(parts) for parts in zip(*given, strict=True)]])[0], optim.Adam(1e-3, weight_decay=1e-3)
    )
    assert np.abs(local_parameters(lazy_store).values - local_parameters(store).values).max() > 1e-3


def test_async_counts_every_push_as_a_step():
    given = batches(30, rows=8, vocabulary=500)
    _, store = train_local(readers([given])[0], EXACT)
    with cluster(2) as fleet:
        fleet.train(readers([given]), EXACT, DistributedStrategy(mode="async"), model=small_model)
        fleet.parameters().assert_close(local_parameters(store))
