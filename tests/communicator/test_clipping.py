"""Clipping by the global norm, beside torch's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_jobs import (
    batches,
    cluster,
    in_threads,
    joined,
    local_parameters,
    readers,
    small_model,
    train_one,
)

from sparsefleet import optim
from sparsefleet.communicator.base import StepGradients
from sparsefleet.communicator.clipping import clipped
from sparsefleet.core.errors import SparseFleetError, StoreError
from sparsefleet.core.keyed_rows import KeyedRows
from sparsefleet.fleet import DistributedStrategy, Role
from sparsefleet.fleet.optimizer import DistributedOptimizer
from sparsefleet.train import Trainer


@pytest.mark.parametrize("max_norm", [0.5, 10.0, 1e4])
def test_gradients_are_scaled_as_torch_scales_them(max_norm):
    rng = np.random.default_rng(0)
    dense = rng.standard_normal(500).astype(np.float32)
    rows = {name: rng.standard_normal((n, 4)).astype(np.float32) for name, n in (("ads", 30), ("users", 0))}
    keys = {name: np.arange(len(each), dtype=np.uint64) for name, each in rows.items()}
    theirs = [torch.nn.Parameter(torch.zeros(each.shape)) for each in (dense, *rows.values())]
    for parameter, gradient in zip(theirs, (dense, *rows.values()), strict=True):
        parameter.grad = torch.from_numpy(gradient.copy())
    torch.nn.utils.clip_grad_norm_(theirs, max_norm)
    step = StepGradients({name: KeyedRows(keys[name], rows[name]) for name in rows}, dense)
    ours = clipped(step, max_norm)
    for parameter, gradient in zip(theirs, (ours.dense, *(each.rows for each in ours.sparse.values())), strict=True):
        np.testing.assert_allclose(gradient, parameter.grad.numpy(), rtol=1e-5)
    assert (ours is step) == (max_norm == 1e4)
    assert clipped(step, None) is step


def trained(shares, threads, **settings):
    strategy = DistributedStrategy(mode="sync", **settings)
    job = DistributedOptimizer(optim.SGD(1e-2), strategy.resolved(), Role("single"))
    outcome = train_one(Trainer(job, threads=threads), readers([shares])[0], small_model(), 1)
    return outcome, local_parameters(job.workplace.store)


def test_threads_in_sync_are_clipped_as_one_on_the_joint_batch():
    given = batches(20)
    pairs = [joined(given[i : i + 2]) for i in range(0, 20, 2)]
    (_, two), (_, one), (_, free) = (
        trained(given, 2, clip_norm=3.0),
        trained(pairs, 1, clip_norm=3.0),
        trained(pairs, 1),
    )
    two.assert_close(one)
    assert np.abs(one.values - free.values).max() > 1e-3


@pytest.mark.parametrize("wire", ["float32", "bfloat16"])
def test_sync_with_servers_clips_the_sum_of_all_trainers(wire):
    """As one process on the joint batch; what is rounded on its way is rounded before it is clipped."""
    shares = [batches(12, seed=1), batches(9, seed=2)]  # the second runs out of samples
    joint = [joined([a, b]) for a, b in zip(*shares, strict=False)] + shares[0][9:]
    (alone, one), (_, free) = trained(joint, 1, clip_norm=3.0), trained(joint, 1)
    with cluster(2) as fleet:
        strategy = DistributedStrategy(mode="sync", clip_norm=3.0, dense_wire=wire)
        outcomes = fleet.train(readers(shares), optim.SGD(1e-2), strategy)
        together = fleet.parameters()
    far = np.abs(one.dense - free.dense).max()
    assert far > 1e-3
    assert np.abs(together.dense - one.dense).max() < 0.2 * far
    if wire == "float32":
        together.assert_close(one, 1e-5)
        losses = [sum(pair) for pair in zip(*(outcome.losses for outcome in outcomes), strict=False)]
        np.testing.assert_allclose(losses, alone.losses[:9], rtol=1e-4)


@pytest.mark.parametrize(
    ("mode", "settings"), [("half_async", {}), ("async", {}), ("async", {"max_merge": 2}), ("geo", {"k_steps": 4})]
)
def test_one_trainer_on_servers_clips_as_one_process(mode, settings):
    given = batches(20)
    _, one = trained(given, 1, clip_norm=3.0)
    with cluster(2) as fleet:
        strategy = DistributedStrategy(mode=mode, clip_norm=3.0, **settings)
        # Merged steps would be fewer than one process's: staleness 0 has each applied before the next.
        strategy.staleness = 0 if "max_merge" in settings else None
        fleet.train(readers([given]), optim.SGD(1e-2), strategy)
        together = fleet.parameters()
    np.testing.assert_allclose(together.dense, one.dense, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(together.values, one.values, rtol=1e-4, atol=1e-5)


def test_trainers_that_disagree_about_clipping_are_told():
    shares = [batches(3, seed=1), batches(3, seed=2)]

    def failure(first, second):
        with cluster(1) as fleet:
            jobs = [
                fleet.job(optim.SGD(1e-2), DistributedStrategy(mode="sync", clip_norm=norm), worker, 2)
                for worker, norm in enumerate((first, second))
            ]
            works = [
                lambda job=job, reader=reader: train_one(Trainer(job), reader, small_model(), 1)
                for job, reader in zip(jobs, readers(shares), strict=True)
            ]
            with pytest.raises(StoreError) as raised:
                in_threads(works)
        return str(raised.value)

    assert "trainers clip gradients at different norms: worker 0 3, worker 1 4" in failure(3.0, 4.0)
    assert "give all of them the same clip_norm" in failure(3.0, None)


def test_gradients_that_are_not_finite_have_no_norm():
    step = StepGradients({}, np.array([1.0, np.nan], np.float32))
    with pytest.raises(SparseFleetError, match="gradients are not finite"):
        clipped(step, 1.0)
