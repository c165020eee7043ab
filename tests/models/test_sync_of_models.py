"""Every model on two servers and two trainers in sync is one process on the joint batch."""

from __future__ import annotations

import numpy as np
import pytest
from small_jobs import cluster, parameters_of, readers, train_one
from small_models import MANY, samples, small

from sparsefleet import optim
from sparsefleet.core.batch import Batch
from sparsefleet.fleet import DistributedStrategy
from sparsefleet.models import SHELF
from sparsefleet.store import LocalStore
from sparsefleet.train import Trainer

STEPS = 12
QUICK = ("deepfm", "din", "esmm")


def weighted(batch: Batch, seed: int) -> Batch:
    weights = np.random.default_rng(seed).random(len(batch)).astype(np.float32)
    return Batch(batch.labels, batch.dense, batch.keys, batch.offsets, batch.slots, weights=weights)


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in QUICK else pytest.mark.slow) for n in SHELF])
def test_two_by_two(name):
    labels = 2 if name in MANY else 1
    shares = [
        [weighted(samples(20, labels, seed=100 * trainer + step), step) for step in range(STEPS)]
        for trainer in range(2)
    ]
    joint = [Batch.concat(parts) for parts in zip(*shares, strict=True)]
    store = LocalStore()
    one = train_one(Trainer(optim.SGD(1e-2), store=store), readers([joint])[0], small(name), 1)
    with cluster(2) as fleet:
        strategy = DistributedStrategy(mode="sync")
        outcomes = fleet.train(readers(shares), optim.SGD(1e-2), strategy, model=lambda: small(name))
        alone = parameters_of([*store.sparse_tables().values()], [*store.dense_tables().values()])
        fleet.parameters().assert_close(alone, 1e-4)
    together = [sum(losses) for losses in zip(*(outcome.losses for outcome in outcomes), strict=True)]
    np.testing.assert_allclose(together, one.losses, rtol=1e-4)


def test_batch_norms_of_all_trainers_agree_at_the_end_of_an_epoch():
    shares = [[samples(20, seed=100 * trainer + step) for step in range(4)] for trainer in range(2)]
    with cluster(1) as fleet:
        strategy = DistributedStrategy(mode="sync")
        outcomes = fleet.train(
            readers(shares), optim.SGD(1e-2), strategy, model=lambda: small("dnn", batch_norm=True, hidden=(8,))
        )
    first, second = (outcome.model.tower.norms[0] for outcome in outcomes)
    assert first.running_mean.abs().sum() > 0
    np.testing.assert_array_equal(first.running_mean.numpy(), second.running_mean.numpy())
    np.testing.assert_array_equal(first.running_var.numpy(), second.running_var.numpy())
