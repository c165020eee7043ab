"""Every rule against torch's optimizer of the same name, on dense blocks and on sparse rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from sparsefleet import optim
from sparsefleet.core.initializer import Uniform
from sparsefleet.table import DenseTable, SparseTable, TableSpec

STEPS = 25

PAIRS: dict[str, tuple[optim.UpdateRule, Callable[[list[torch.Tensor]], torch.optim.Optimizer]]] = {
    "sgd": (optim.SGD(0.1), lambda p: torch.optim.SGD(p, lr=0.1)),
    "sgd decay": (
        optim.SGD(0.1, weight_decay=0.01),
        lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.01),
    ),
    "adagrad": (optim.Adagrad(0.1), lambda p: torch.optim.Adagrad(p, lr=0.1)),
    "adagrad warm": (
        optim.Adagrad(0.1, epsilon=1e-7, initial_accumulator=0.1, weight_decay=0.02),
        lambda p: torch.optim.Adagrad(p, lr=0.1, eps=1e-7, initial_accumulator_value=0.1, weight_decay=0.02),
    ),
    "adam": (optim.Adam(0.01), lambda p: torch.optim.Adam(p, lr=0.01)),
    "adam odd": (
        optim.Adam(0.01, beta1=0.8, beta2=0.95, epsilon=1e-3, weight_decay=0.03),
        lambda p: torch.optim.Adam(p, lr=0.01, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.03),
    ),
}


@pytest.mark.parametrize("case", PAIRS)
def test_a_dense_block_moves_as_in_torch(case):
    rule, make_optimizer = PAIRS[case]
    rng = np.random.default_rng(0)
    values = rng.standard_normal(1000).astype(np.float32)
    theirs = torch.nn.Parameter(torch.from_numpy(values.copy()))
    optimizer, block = make_optimizer([theirs]), DenseTable("w", values, rule)
    for _ in range(STEPS):
        grads = rng.standard_normal(1000).astype(np.float32)
        theirs.grad = torch.from_numpy(grads)
        optimizer.step()
        block.push(grads)
        np.testing.assert_allclose(values, theirs.detach().numpy(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("case", PAIRS)
def test_rows_that_are_all_pushed_move_as_in_torch(case):
    rule, make_optimizer = PAIRS[case]
    rng = np.random.default_rng(1)
    keys = np.arange(200, dtype=np.uint64)
    table = SparseTable(TableSpec("t", 7, rule, Uniform(-1, 1)))
    theirs = torch.nn.Parameter(torch.from_numpy(table.pull(keys)))
    optimizer = make_optimizer([theirs])
    for _ in range(STEPS):
        grads = rng.standard_normal((200, 7)).astype(np.float32)
        theirs.grad = torch.from_numpy(grads)
        optimizer.step()
        table.push(keys, grads)
        np.testing.assert_allclose(table.pull(keys), theirs.detach().numpy(), rtol=1e-6, atol=1e-6)


SPARSE_PAIRS = {
    "sgd": (optim.SGD(0.1), lambda p: torch.optim.SGD(p, lr=0.1)),
    "adagrad": (optim.Adagrad(0.1), lambda p: torch.optim.Adagrad(p, lr=0.1)),
    # SparseAdam has epsilon elsewhere (see optim/adam.py): it must be small for the two to agree.
    "adam": (
        optim.Adam(0.01, epsilon=1e-10),
        lambda p: torch.optim.SparseAdam(p, lr=0.01, eps=1e-10),
    ),
}


@pytest.mark.parametrize("case", SPARSE_PAIRS)
def test_rows_that_are_pushed_now_and_then_move_as_in_torch(case):
    rule, make_optimizer = SPARSE_PAIRS[case]
    rng = np.random.default_rng(2)
    table = SparseTable(TableSpec("t", 5, rule, Uniform(-1, 1)))
    everything = np.arange(100, dtype=np.uint64)
    theirs = torch.nn.Parameter(torch.from_numpy(table.pull(everything)))
    optimizer = make_optimizer([theirs])
    for _ in range(STEPS):
        rows = rng.permutation(100)[:30]
        grads = rng.standard_normal((30, 5)).astype(np.float32)
        theirs.grad = torch.sparse_coo_tensor(rows[None], grads, (100, 5), check_invariants=True).coalesce()
        optimizer.step()
        table.push(rows.astype(np.uint64), grads)
        np.testing.assert_allclose(table.pull(everything), theirs.detach().numpy(), rtol=1e-6, atol=2e-6)


def test_rowwise_adagrad_is_adagrad_with_the_mean_square_of_the_row():
    rule = optim.RowwiseAdagrad(0.1, epsilon=1e-6, initial_accumulator=0.2)
    table = SparseTable(TableSpec("t", 8, rule, Uniform(-1, 1)))
    rng, keys = np.random.default_rng(3), np.arange(50, dtype=np.uint64)
    values, sums = table.pull(keys).astype(np.float64), np.full((50, 1), 0.2)
    for _ in range(STEPS):
        grads = rng.standard_normal((50, 8)).astype(np.float32)
        table.push(keys, grads)
        sums += (grads.astype(np.float64) ** 2).mean(axis=1, keepdims=True)
        values -= 0.1 * grads / (np.sqrt(sums) + 1e-6)
    np.testing.assert_allclose(table.pull(keys), values, rtol=1e-5, atol=1e-6)
    assert rule.for_dense() == optim.Adagrad(0.1, epsilon=1e-6, initial_accumulator=0.2)


def ftrl_in_double(w, grads_of_steps, alpha, l1, l2, beta):
    """FTRL-Proximal as McMahan et al. print it."""
    z, n = np.zeros_like(w), np.zeros_like(w)
    for g in grads_of_steps:
        sigma = (np.sqrt(n + g * g) - np.sqrt(n)) / alpha
        z += g - sigma * w
        n += g * g
        w = np.where(np.abs(z) <= l1, 0.0, -(z - np.sign(z) * l1) / ((beta + np.sqrt(n)) / alpha + l2))
    return w


@pytest.mark.parametrize("l1", [0.0, 1.0])
def test_ftrl_is_the_published_one_and_l1_makes_zeros(l1):
    rng = np.random.default_rng(4)
    values = rng.standard_normal(500).astype(np.float32)
    start = values.astype(np.float64)
    grads = [(rng.standard_normal(500) * 0.3).astype(np.float32) for _ in range(STEPS)]
    block = DenseTable("w", values, optim.FTRL(0.1, l1=l1, l2=0.5, beta=1.0))
    for grad in grads:
        block.push(grad)
    expected = ftrl_in_double(start, [g.astype(np.float64) for g in grads], 0.1, l1, 0.5, 1.0)
    np.testing.assert_allclose(values, expected, rtol=1e-4, atol=1e-5)
    zeros = int((values == 0).sum())
    assert zeros == int((expected == 0).sum())
    assert (zeros > 50) == (l1 > 0)
