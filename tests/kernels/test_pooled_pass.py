"""The pass in one call: what its parts give one after the other, whatever a batch looks like."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from level_faces import others

from sparsefleet.kernels import pooled_pass
from sparsefleet.kernels.pooled_pass import PooledNetwork, PooledPass, Shallow
from sparsefleet.kernels.reference import pooled_pass as reference

SLOTS, CHOSEN, DIM, DENSE, UNIQUE = 3, (2, 0), 4, 2, 9


def network(hidden=(7, 5), out=2, *, mean=False, half=False, seed=0):
    draw = np.random.default_rng(seed)
    widths = [len(CHOSEN) * DIM + DENSE, *hidden, out]
    weights = [draw.normal(size=(b, a)).astype(np.float32) for a, b in pairwise(widths)]
    biases = [draw.normal(size=b).astype(np.float32) for b in widths[1:]]
    gradients = [np.full_like(w, np.nan) for w in weights], [np.full_like(b, np.nan) for b in biases]
    return PooledNetwork(weights, biases, *gradients, SLOTS, CHOSEN, DIM, mean, half)


def shallow_network(hidden=(7, 5), *, pairs=True, tower=True, mean=False, half=False, seed=0, dim=DIM):
    """A linear term, pairs or not, and a tower or none."""
    draw = np.random.default_rng(seed)
    widths = [len(CHOSEN) * (dim - 1) + DENSE, *hidden, 1] if tower else []
    weights = [draw.normal(size=(b, a)).astype(np.float32) for a, b in pairwise(widths)]
    biases = [draw.normal(size=b).astype(np.float32) for b in widths[1:]]
    gradients = [np.full_like(w, np.nan) for w in weights], [np.full_like(b, np.nan) for b in biases]
    linear = draw.normal(size=1).astype(np.float32), draw.normal(size=DENSE).astype(np.float32)
    shallow = Shallow(*linear, *(np.full_like(each, np.nan) for each in linear), pairs)
    return PooledNetwork(weights, biases, *gradients, SLOTS, CHOSEN, dim, mean, half, shallow)


def weighted_network(choices=2, *, tower=False, mean=False, seed=0, dim=DIM):
    """As `shallow_network`, with a weight for each pair; all slots are chosen, so many times."""
    chosen = tuple(range(SLOTS)) * choices
    draw = np.random.default_rng(seed)
    widths = [len(chosen) * (dim - 1) + DENSE, 7, 1] if tower else []
    weights = [draw.normal(size=(b, a)).astype(np.float32) for a, b in pairwise(widths)]
    biases = [draw.normal(size=b).astype(np.float32) for b in widths[1:]]
    gradients = [np.full_like(w, np.nan) for w in weights], [np.full_like(b, np.nan) for b in biases]
    linear = draw.normal(size=1).astype(np.float32), draw.normal(size=DENSE).astype(np.float32)
    of_pairs = draw.normal(size=len(chosen) * (len(chosen) - 1) // 2).astype(np.float32)
    shallow = Shallow(*linear, *map(np.zeros_like, linear), True, of_pairs, np.full_like(of_pairs, np.nan))
    return PooledNetwork(weights, biases, *gradients, SLOTS, chosen, dim, mean, False, shallow)


def batch(samples, seed=0, dim=DIM):
    """rows, inverse, offsets, dense, labels"""
    draw = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(draw.integers(0, 4, samples * SLOTS))]).astype(np.int64)
    return (
        draw.normal(size=(UNIQUE, dim)).astype(np.float32),
        draw.integers(0, UNIQUE, offsets[-1]).astype(np.int32),
        offsets,
        draw.normal(size=(samples, DENSE)).astype(np.float32),
        (draw.random(samples) < 0.5).astype(np.float32),
    )


def passed(kind, net, given):
    """Loss, probabilities and all gradients, in arrays of their own."""
    net = replace(
        net,
        grad_weights=[g.copy() for g in net.grad_weights],
        grad_biases=[g.copy() for g in net.grad_biases],
        shallow=net.shallow and own_gradients(net.shallow),
    )
    one = kind(len(given[4]), net)
    loss, probabilities = one.forward(*given)
    gradient = one.backward(given[0])
    linear = [] if net.shallow is None else [net.shallow.grad_bias, net.shallow.grad_numbers]
    if net.shallow is not None and net.shallow.grad_pair_weights is not None:
        linear.append(net.shallow.grad_pair_weights)
    return [np.float64(loss), probabilities, gradient, *net.grad_weights, *net.grad_biases, *linear]


def own_gradients(shallow):
    names = ("grad_bias", "grad_numbers", "grad_pair_weights")
    arrays = {name: getattr(shallow, name) for name in names}
    return replace(shallow, **{name: None if array is None else array.copy() for name, array in arrays.items()})


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 20), st.integers(1, 2), st.booleans(), st.booleans(), st.integers(0, 1000))
def test_as_its_twin(samples, out, mean, half, seed):
    compare_with_twin(network(out=out, mean=mean, half=half, seed=seed), batch(samples, seed), half)


def compare_with_twin(net, given, half):
    tolerance = 2e-2 if half else 1e-4  # a product of bfloat16 may round a hidden value the other way
    for mine, twin in zip(passed(PooledPass, net, given), passed(reference.PooledPass, net, given), strict=True):
        np.testing.assert_allclose(mine, twin, rtol=tolerance, atol=tolerance * max(1.0, np.abs(twin).max()))


@settings(max_examples=80, deadline=None)
@given(
    samples=st.integers(1, 20),
    dim=st.sampled_from([1, 2, 5, 11, 12, 17]),
    pairs=st.booleans(),
    tower=st.booleans(),
    mean=st.booleans(),
    half=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_a_shallow_part_as_its_twin(samples, dim, pairs, tower, mean, half, seed):
    net = shallow_network(pairs=pairs, tower=tower, mean=mean, half=half, seed=seed, dim=dim)
    compare_with_twin(net, batch(samples, seed, dim), half and tower)


@settings(max_examples=60, deadline=None)
@given(
    samples=st.integers(1, 20),
    choices=st.integers(1, 5),
    dim=st.sampled_from([1, 2, 5, 11, 17, 18, 34]),
    tower=st.booleans(),
    mean=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_weighted_pairs_as_their_twin(samples, choices, dim, tower, mean, seed):
    net = weighted_network(choices, tower=tower, mean=mean, seed=seed, dim=dim)
    compare_with_twin(net, batch(samples, seed, dim), False)


@pytest.mark.parametrize("kernels", others("pooled_pass"))
@pytest.mark.parametrize(
    "net", [network(), shallow_network(), shallow_network(tower=False), weighted_network(), weighted_network(4)]
)
def test_every_level(kernels, net):
    given = batch(13)
    for mine, other in zip(
        passed(pooled_pass.PooledPass, net, given), passed(kernels.PooledPass, net, given), strict=True
    ):
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-4)


def test_parameters_are_read_where_they_stand():
    net, given = network(), batch(5)
    one = PooledPass(5, net)
    before = one.forward(*given)[1]
    net.weights[-1][:] = 0
    net.biases[-1][:] = 0
    assert not np.allclose(before, 0.5)
    assert np.array_equal(one.forward(*given)[1], np.full(5, 0.5, np.float32))


def test_one_pass_after_the_other_leaves_nothing_behind():
    net, first, second = network(), batch(6, 1), batch(6, 2)
    one = PooledPass(6, net)
    one.forward(*first)
    one.backward(first[0])
    loss, probabilities = one.forward(*second)
    mine = [np.float64(loss), probabilities, one.backward(second[0]), *net.grad_weights, *net.grad_biases]
    assert all(map(np.array_equal, mine, passed(PooledPass, net, second)))


def changed(given, place, array):
    return (*given[:place], array, *given[place + 1 :])


def broken_offsets(offsets):
    out = offsets.copy()
    out[1], out[-1] = 100_000_000, offsets[-1]
    return out


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda g: changed(g, 2, broken_offsets(g[2])), "never decrease"),
        (lambda g: changed(g, 2, g[2][:-1].copy()), "do not fit"),
        (lambda g: changed(g, 2, g[2] + 1), "run from 0"),
        (lambda g: changed(g, 1, np.full_like(g[1], UNIQUE)), "not among the rows"),
        (lambda g: changed(g, 1, np.full_like(g[1], -1)), "not among the rows"),
        (lambda g: changed(g, 0, g[0][:, :2].copy()), "another width"),
        (lambda g: changed(g, 3, g[3][:, :1].copy()), "dense features"),
        (lambda g: changed(g, 4, g[4][:-1].copy()), "one label"),
    ],
)
def test_a_broken_batch_is_refused(spoil, said):
    given = batch(4, seed=3)
    one = PooledPass(4, network())
    with pytest.raises(ValueError, match=said):
        one.forward(*spoil(given))


def test_backward_needs_a_forward_of_the_same_rows():
    given, one = batch(4), PooledPass(4, network())
    with pytest.raises(ValueError, match="follows a forward pass"):
        one.backward(given[0])
    one.forward(*given)
    with pytest.raises(ValueError, match="another shape"):
        one.backward(given[0][:-1])


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("chosen", (0, 3), "out of range"),
        ("chosen", (0, 1, 2), "too narrow"),
        ("biases", [], "one bias"),
        ("weights", [], "layer"),
        (
            "dim",
            2**63,
            "sizes are too large",
        ),  # twice as much is 0: rows of such a width would be written to no columns
    ],
)
def test_a_network_that_does_not_fit_together_is_refused(field, value, said):
    with pytest.raises(ValueError, match=said):
        PooledPass(2, replace(network(), **{field: value}))


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("numbers", np.zeros(DENSE + 1, np.float32), "a gradient for each number"),
        ("bias", np.zeros(2, np.float32), "one bias"),
        ("grad_bias", None, "all of its arrays"),
        ("pair_weights", np.zeros(1, np.float32), "have a gradient"),
    ],
)
def test_a_shallow_part_that_does_not_fit_is_refused(field, value, said):
    net = shallow_network(tower=False)
    with pytest.raises(ValueError, match=said):
        PooledPass(2, replace(net, shallow=replace(net.shallow, **{field: value})))


def test_weights_of_other_pairs_are_refused():
    net = weighted_network()
    one_more = np.zeros(len(net.shallow.pair_weights) + 1, np.float32)
    with pytest.raises(ValueError, match="for each pair of slots"):
        PooledPass(2, replace(net, shallow=replace(net.shallow, pair_weights=one_more)))


def test_a_shallow_part_beside_a_tower_of_two_logits_or_of_other_numbers_is_refused():
    net = shallow_network()
    with pytest.raises(ValueError, match="beside a shallow part in one"):
        PooledPass(2, replace(network(), shallow=net.shallow))
    narrow = shallow_network(dim=DIM - 1)
    with pytest.raises(ValueError, match="too narrow"):
        PooledPass(2, replace(narrow, dim=DIM + 1))
    with pytest.raises(ValueError, match="the same numbers"):
        PooledPass(2, replace(net, dim=DIM - 1))


def test_a_tower_of_three_outputs_has_no_loss_here():
    with pytest.raises(ValueError, match="one or two logits"):
        PooledPass(2, network(out=3))
