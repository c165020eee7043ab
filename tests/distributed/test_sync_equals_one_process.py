"""Sync on any number of trainers and servers is one process on the joint batch."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from small_jobs import batches, cluster, joined, local_parameters, readers, train_local

from sparsefleet import optim
from sparsefleet.fleet import DistributedStrategy

STEPS = 50
SYNC = DistributedStrategy(mode="sync")
RULES = {"adam": optim.Adam(1e-3), "sgd": optim.SGD(1e-2), "adagrad": optim.Adagrad(1e-2), "ftrl": optim.FTRL(1e-2)}


def rounds(shares, threads=1):
    """The joint batch of every round; a trainer that has no batch left is not in it."""
    per_round = [[share[i : i + threads] for i in range(0, len(share), threads)] for share in shares]
    return [joined([batch for part in parts for batch in part or []]) for parts in itertools.zip_longest(*per_round)]


def check(shares, servers, rule, threads=1, epochs=1):
    one, store = train_local(readers([rounds(shares, threads)])[0], rule, epochs)
    with cluster(servers) as fleet:
        outcomes = fleet.train(readers(shares), rule, SYNC, threads=threads, epochs=epochs)
        fleet.parameters().assert_close(local_parameters(store))
    if threads == 1:
        per_epoch = [np.array_split(outcome.losses, epochs) for outcome in outcomes]
        for epoch, wanted in enumerate(np.array_split(one.losses, epochs)):
            together = [sum(parts) for parts in itertools.zip_longest(*(p[epoch] for p in per_epoch), fillvalue=0.0)]
            np.testing.assert_allclose(together, wanted, rtol=1e-5)
    for outcome in outcomes:
        assert outcome.result.train["auc"] == pytest.approx(one.result.train["auc"], abs=1e-4)
        # Everyone ends with the same dense parameters.
        for mine, other in zip(outcome.model.parameters(), outcomes[0].model.parameters(), strict=True):
            np.testing.assert_array_equal(mine.detach().numpy(), other.detach().numpy())
    assert sum(outcome.result.rows for outcome in outcomes) == one.result.rows


@pytest.mark.parametrize("name", ["adam", "sgd"])
@pytest.mark.parametrize("servers", [1, 2, 3])
@pytest.mark.parametrize("trainers", [1, 2, 3])
def test_losses_and_parameters(trainers, servers, name):
    check([batches(STEPS, seed=worker) for worker in range(trainers)], servers, RULES[name])


@pytest.mark.parametrize("name", ["adagrad", "ftrl"])
def test_other_rules(name):
    check([batches(STEPS, seed=worker) for worker in range(2)], 2, RULES[name])


@pytest.mark.parametrize("trainers", [1, 2])
def test_with_two_threads_a_trainer(trainers):
    check([batches(40, seed=worker) for worker in range(trainers)], 2, RULES["adam"], threads=2)


def test_uneven_shares_over_two_epochs():
    """Who runs out of rows leaves, the others go on; in the next epoch all are back from the first round on."""
    shares = [batches(count, seed=count) for count in (12, 30, 21)]
    check(shares, 2, RULES["adam"], epochs=2)


def test_a_trainer_without_any_row():
    check([batches(10, seed=1), []], 2, RULES["sgd"], epochs=2)


def test_uneven_batches_within_a_round():
    check([batches(20, rows=31, seed=1), batches(20, rows=7, seed=2)], 2, RULES["adam"])
