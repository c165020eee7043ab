"""Clipping by the global norm, beside torch's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_jobs import batches, joined, local_parameters, readers, small_model, train_one

from sparsefleet import optim
from sparsefleet.communicator.base import StepGradients
from sparsefleet.communicator.clipping import clipped
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
