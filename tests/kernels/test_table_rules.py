"""Update rules on blocks: native and NumPy twin, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from table_cases import (
    ADAGRAD,
    ADAM,
    BOTH,
    FTRL,
    HYPER,
    NOTING_SGD,
    SGD,
    hyper,
    run_threads,
    width,
)

from sparsefleet.kernels import table as native
from sparsefleet.kernels.reference import table as reference


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(HYPER)), st.integers(1, 70), st.integers(0, 2**32 - 1), st.integers(1, 100000))
def test_rules_on_a_block_give_the_bits_of_the_twin(kind, n, seed, step):
    rng = np.random.default_rng(seed)
    values, grads = rng.standard_normal((2, n)).astype(np.float32)
    state = np.abs(rng.standard_normal(width(kind, n))).astype(np.float32)
    blocks = []
    for kernels in (native, reference):
        w, s = values.copy(), state.copy()
        kernels.apply_rule(kind, 0.05, hyper(kind), step, w, s, grads, kernels.BlockLocks())
        blocks.append((w, s))
    np.testing.assert_array_equal(blocks[0][0], blocks[1][0])
    np.testing.assert_array_equal(blocks[0][1], blocks[1][1])


@pytest.mark.parametrize("kind", [SGD, ADAGRAD, ADAM, FTRL, NOTING_SGD])
@pytest.mark.parametrize("n", [1, 15, 16, 17, 255, 256, 257, 100003])
def test_a_long_block_is_updated_once_in_every_place(kind, n):
    rng = np.random.default_rng(n)
    values, grads = rng.standard_normal((2, n)).astype(np.float32)
    ours, twins = (
        (values.copy(), np.zeros(width(kind, n), np.float32)),
        (
            values.copy(),
            np.zeros(width(kind, n), np.float32),
        ),
    )
    for kernels, (w, s) in ((native, ours), (reference, twins)):
        locks = kernels.BlockLocks()
        for step in (1, 2):
            kernels.apply_rule(kind, 0.05, hyper(kind), step, w, s, grads, locks)
    np.testing.assert_array_equal(ours[0], twins[0])
    np.testing.assert_array_equal(ours[1], twins[1])


@BOTH
def test_ftrl_stands_still_when_the_rate_is_zero(kernels):
    w, s = np.ones(3, np.float32), np.ones(6, np.float32)
    kernels.apply_rule(FTRL, 0.0, hyper(FTRL), 1, w, s, np.ones(3, np.float32), kernels.BlockLocks())
    assert (w == 1).all()
    assert (s == 1).all()


@BOTH
def test_a_rule_that_does_not_exist_is_refused(kernels):
    w = np.ones(3, np.float32)
    with pytest.raises(ValueError, match="rule kind 9 does not exist"):
        kernels.apply_rule(9, 0.1, hyper(SGD), 1, w, np.empty(0, np.float32), w.copy(), kernels.BlockLocks())
    with pytest.raises(ValueError, match="step must be 1 or above"):
        kernels.apply_rule(SGD, 0.1, hyper(SGD), 0, w, np.empty(0, np.float32), w.copy(), kernels.BlockLocks())


def test_blocks_lose_no_update_between_threads():
    values, grads = np.zeros(50000, np.float32), np.full(50000, -0.25, np.float32)
    locks, none, rounds = native.BlockLocks(), np.empty(0, np.float32), 100

    def work():
        for _ in range(rounds):
            native.apply_rule(SGD, 1.0, np.zeros(1), 1, values, none, grads, locks)

    run_threads([work] * 4)
    assert (values == 0.25 * 4 * rounds).all()
