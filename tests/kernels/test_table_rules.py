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
    NOTED,
    PLAIN,
    SGD,
    hyper,
    run_threads,
    width,
)

from sparsefleet.kernels import table as native
from sparsefleet.kernels.reference import table as reference


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(PLAIN), st.integers(1, 70), st.integers(0, 2**32 - 1), st.integers(1, 100000))
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


@pytest.mark.parametrize("kind", [SGD, ADAGRAD, ADAM, FTRL])
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


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(PLAIN), st.integers(1, 70), st.integers(0, 2**32 - 1), st.sampled_from([0.0, 1e-40, 0.05, 3.0]))
def test_what_others_add_to_a_block_gives_the_bits_of_the_twin(kind, n, seed, rate):
    rng = np.random.default_rng(seed)
    values, deltas = rng.standard_normal((2, n)).astype(np.float32) * (rng.random((2, n)) < 0.7).astype(np.float32)
    state = np.abs(rng.standard_normal(width(kind, n))).astype(np.float32)
    blocks = []
    for kernels in (native, reference):
        w, s = values.copy(), state.copy()
        kernels.shift_block(kind, rate, hyper(kind), 3, w, s, deltas, kernels.BlockLocks())
        blocks.append((w.tobytes(), s.tobytes()))
        np.testing.assert_array_equal(w, values + deltas)
        if kind != FTRL:
            np.testing.assert_array_equal(s, state)
    assert blocks[0] == blocks[1]


@BOTH
@pytest.mark.parametrize("kind", NOTED)
def test_a_block_does_not_note(kernels, kind):
    if kernels is reference:
        return
    w, s = np.ones(3, np.float32), np.ones(width(kind, 3), np.float32)
    for call in (kernels.apply_rule, kernels.shift_block):
        with pytest.raises(ValueError, match="a block does not note what was changed"):
            call(kind, 0.1, hyper(kind), 1, w, s, w, kernels.BlockLocks())


@BOTH
def test_ftrl_goes_on_from_where_others_have_moved_a_value(kernels):
    """Its next step makes the value of z alone: with no gradient, it must make what the others have."""
    hyper, locks = np.array([0.05, 0.1, 1.0]), kernels.BlockLocks()  # l1, l2, beta
    w, s = np.array([0.3, -0.2, 0.0, 0.5, 0.0], np.float32), np.zeros(10, np.float32)
    grads = np.array([-1.0, 0.4, 0.01, -0.5, 0.012], np.float32)
    for _ in range(3):
        kernels.apply_rule(FTRL, 0.1, hyper, 1, w, s, grads, locks)
    assert (w[[2, 4]] == 0).all()  # l1 holds them
    gathered = s[4]
    deltas = np.array([0.25, 0.4, -0.3, -w[3], 1e-9], np.float32)
    wanted = w + deltas
    kernels.shift_block(FTRL, 0.1, hyper, 3, w, s, deltas, locks)
    np.testing.assert_array_equal(w, wanted)
    kernels.apply_rule(FTRL, 0.1, hyper, 4, w, s, np.zeros(5, np.float32), locks)
    np.testing.assert_allclose(w[:4], wanted[:4], rtol=1e-5)
    assert w[3] == 0
    assert (w[4], s[4]) == (0, gathered), "a rounding error does not undo what z has gathered"


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
