"""Interactions of vectors, attention of fields and over a history, mixtures of experts: the native kernels against
their NumPy twins, at every level.
"""

from __future__ import annotations

from itertools import pairwise
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from level_faces import EVERY_LEVEL, face

from sparsefleet.core.batch import F32
from sparsefleet.kernels import layers
from sparsefleet.kernels.reference import layers as reference


def interactions(kernels: ModuleType, samples: int, slots: int, dim: int, maps: list[int], seed: int) -> list[F32]:
    """The output and all gradients of a forward and a backward pass."""
    draw = np.random.default_rng(seed)

    def values(*shape: int) -> F32:
        return draw.normal(size=shape).astype(np.float32)

    before = [slots, *maps[:-1]]
    weights = [values(made, h * slots) / np.float32(h * slots) ** 0.5 for h, made in zip(before, maps, strict=True)]
    biases = [values(made) for made in maps]
    vectors, grad_out = values(samples, slots, dim), values(samples, sum(maps))
    out, grad_vectors = np.empty_like(grad_out), np.empty_like(vectors)
    grad_weights, grad_biases = [np.empty_like(w) for w in weights], [np.empty_like(b) for b in biases]
    space = kernels.Interactions(samples, slots, dim, maps)
    for _ in range(2):  # buffers of the first pass must not show in the second
        space.forward(vectors, weights, biases, out)
        space.backward(vectors, weights, grad_out, grad_weights, grad_biases, grad_vectors)
    return [out, *grad_weights, *grad_biases, grad_vectors]


def attention(
    kernels: ModuleType, samples: int, fields: int, dim: int, heads: int, head_dim: int, seed: int, scale: float = 1.0
) -> list[F32]:
    draw = np.random.default_rng(seed)

    def values(*shape: int) -> F32:
        return draw.normal(size=shape).astype(np.float32)

    made = heads * head_dim
    x, weight = values(samples, fields, dim), values(4 * made, dim) / np.float32(dim) ** 0.5
    # A sum near zero may fall on the other side of relu, and its gradient with it: those are left out.
    exact = np.empty((samples, fields, made), np.float64)
    reference.FieldAttention(fields, dim, heads, head_dim, scale).forward(
        x.astype(np.float64), weight.astype(np.float64), exact
    )
    grad_out = values(samples, fields, made)
    out, grad_weight, grad_x = np.empty_like(grad_out), np.empty_like(weight), np.empty_like(x)
    space = kernels.FieldAttention(fields, dim, heads, head_dim, scale)
    for _ in range(2):
        space.forward(x, weight, out)
        grad_out[(out > 0) & (out < 1e-5) | (exact > 0) & (exact < 1e-5)] = 0
        space.backward(x, weight, out, grad_out, grad_weight, grad_x)
    return [out, grad_weight, grad_x]


def history(
    kernels: ModuleType, samples: int, places: int, dim: int, hidden: list[int], seed: int, there: float = 0.5
) -> list[F32]:
    """there: the share of places that have a value."""
    draw = np.random.default_rng(seed)

    def values(*shape: int) -> F32:
        return draw.normal(size=shape).astype(np.float32)

    widths = [4 * dim, *hidden, 1]
    weights = [values(made, taken) / np.float32(taken) ** 0.5 for taken, made in pairwise(widths)]
    biases = [values(made) for made in widths[1:]]
    vectors, target, grad_out = values(samples, places, dim), values(samples, dim), values(samples, dim)
    given = (vectors, draw.random((samples, places)) < there, target, weights, biases)
    out, grad_vectors, grad_target = np.empty_like(target), np.empty_like(vectors), np.empty_like(target)
    grad_weights, grad_biases = [np.empty_like(w) for w in weights], [np.empty_like(b) for b in biases]
    space = kernels.HistoryAttention(dim, hidden)
    for _ in range(2):
        space.forward(*given, out)
        space.backward(*given, grad_out, grad_weights, grad_biases, grad_vectors, grad_target)
    return [out, *grad_weights, *grad_biases, grad_vectors, grad_target]


def mixture(kernels: ModuleType, samples: int, experts: int, gates: int, width: int, seed: int) -> list[F32]:
    draw = np.random.default_rng(seed)

    def values(count: int, *shape: int) -> list[F32]:
        return list(draw.normal(size=(count, *shape)).astype(np.float32))

    made, logits, grad_mixed = (
        values(experts, samples, width),
        values(gates, samples, experts),
        values(gates, samples, width),
    )
    shares, mixed = [np.empty_like(each) for each in logits], [np.empty_like(each) for each in grad_mixed]
    grad_made, grad_logits = [np.empty_like(each) for each in made], [np.empty_like(each) for each in logits]
    kernels.mix_forward(made, logits, shares, mixed)
    kernels.mix_backward(made, shares, grad_mixed, grad_made, grad_logits)
    return [*shares, *mixed, *grad_made, *grad_logits]


def close(mine: list[F32], theirs: list[F32]) -> None:
    for one, other in zip(mine, theirs, strict=True):
        largest = float(np.abs(other).max(initial=1.0))
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4 * largest)


@settings(max_examples=60, deadline=None)
@given(
    samples=st.integers(0, 40),
    slots=st.integers(1, 40),
    dim=st.integers(1, 20),
    maps=st.lists(st.integers(1, 20), min_size=1, max_size=3),
    seed=st.integers(0, 99),
)
def test_interactions_equal_their_twin(samples: int, slots: int, dim: int, maps: list[int], seed: int) -> None:
    sizes = (samples, slots, dim, maps, seed)
    close(interactions(layers, *sizes), interactions(reference, *sizes))


@settings(max_examples=60, deadline=None)
@given(
    samples=st.integers(0, 20),
    fields=st.integers(1, 70),
    dim=st.integers(1, 40),
    heads=st.integers(1, 3),
    head_dim=st.integers(1, 40),
    seed=st.integers(0, 99),
    scale=st.sampled_from([1.0, 0.25]),
)
def test_attention_equals_its_twin(
    samples: int, fields: int, dim: int, heads: int, head_dim: int, seed: int, scale: float
) -> None:
    sizes = (samples, fields, dim, heads, head_dim, seed, scale)
    close(attention(layers, *sizes), attention(reference, *sizes))


@settings(max_examples=60, deadline=None)
@given(
    samples=st.integers(0, 40),
    places=st.integers(1, 12),
    dim=st.integers(1, 20),
    hidden=st.lists(st.integers(1, 40), max_size=2),
    seed=st.integers(0, 99),
    there=st.sampled_from([0.0, 0.5, 1.0]),
)
def test_history_attention_equals_its_twin(
    samples: int, places: int, dim: int, hidden: list[int], seed: int, there: float
) -> None:
    sizes = (samples, places, dim, hidden, seed, there)
    close(history(layers, *sizes), history(reference, *sizes))


@settings(max_examples=60, deadline=None)
@given(
    samples=st.integers(0, 20),
    experts=st.integers(1, 6),
    gates=st.integers(1, 3),
    width=st.integers(1, 70),
    seed=st.integers(0, 99),
)
def test_a_mixture_equals_its_twin(samples: int, experts: int, gates: int, width: int, seed: int) -> None:
    sizes = (samples, experts, gates, width, seed)
    close(mixture(layers, *sizes), mixture(reference, *sizes))


@pytest.mark.parametrize("level", EVERY_LEVEL)
@pytest.mark.parametrize("sizes", [(17, 4, 2, 128, 0), (3, 1, 1, 7, 1), (5, 3, 2, 33, 2)])
def test_a_mixture_of_every_level(level: str, sizes: tuple[int, int, int, int, int]) -> None:
    close(mixture(face("layers", level), *sizes), mixture(reference, *sizes))


@pytest.mark.parametrize("level", EVERY_LEVEL)
@pytest.mark.parametrize(("samples", "places", "dim", "hidden"), [(50, 20, 10, [64, 16]), (3, 1, 7, [])])
def test_history_attention_of_every_level(level: str, samples: int, places: int, dim: int, hidden: list[int]) -> None:
    sizes = (samples, places, dim, hidden, 5)
    close(history(face("layers", level), *sizes), history(reference, *sizes))


@pytest.mark.parametrize("level", EVERY_LEVEL)
@pytest.mark.parametrize(("samples", "slots", "dim", "maps"), [(33, 26, 10, [16, 16, 16]), (5, 3, 7, [9, 2])])
def test_interactions_of_every_level(level: str, samples: int, slots: int, dim: int, maps: list[int]) -> None:
    sizes = (samples, slots, dim, maps, 3)
    close(interactions(face("layers", level), *sizes), interactions(reference, *sizes))


@pytest.mark.parametrize("level", EVERY_LEVEL)
@pytest.mark.parametrize("sizes", [(17, 39, 32, 2, 16), (3, 5, 6, 1, 7), (2, 70, 3, 2, 33)])
def test_attention_of_every_level(level: str, sizes: tuple[int, int, int, int, int]) -> None:
    close(attention(face("layers", level), *sizes, seed=4), attention(reference, *sizes, seed=4))


def test_attention_of_far_away_products() -> None:
    """Of two fields one has all of the weight: exp of what is far below the largest is 0, not a denormal or NaN."""
    space, x = layers.FieldAttention(2, 1, 1, 1, 1.0), np.array([[[1], [200]]], np.float32)
    weight, out = np.array([[1], [1], [1], [0]], np.float32), np.empty((1, 2, 1), np.float32)
    space.forward(x, weight, out)
    np.testing.assert_allclose(out.ravel(), [200, 200], rtol=1e-6)


def test_a_value_that_is_no_number_stays_one() -> None:
    x, weight = np.ones((1, 3, 2), np.float32), np.ones((4, 2), np.float32)
    x[0, 1, 0], out = np.nan, np.empty((1, 3, 1), np.float32)
    layers.FieldAttention(3, 2, 1, 1, 1.0).forward(x, weight, out)
    assert np.isnan(out).all()


def test_wrong_shapes_are_refused() -> None:
    space = layers.Interactions(2, 3, 4, [5])
    x, weight, bias = np.ones((2, 3, 4), np.float32), np.ones((5, 9), np.float32), np.ones(5, np.float32)
    with pytest.raises(ValueError, match="vectors have the wrong shape"):
        space.forward(x[:1].copy(), [weight], [bias], np.empty((2, 5), np.float32))
    with pytest.raises(ValueError, match="backward follows a forward pass"):
        space.backward(x, [weight], np.ones((2, 5), np.float32), [weight.copy()], [bias.copy()], x.copy())
    attended = layers.FieldAttention(3, 4, 1, 2, 1.0)
    with pytest.raises(ValueError, match="the weight has the wrong shape"):
        attended.forward(x, np.ones((4, 4), np.float32), np.empty((2, 3, 2), np.float32))
    over_history = layers.HistoryAttention(4, [5])
    layer = (
        [np.ones((5, 16), np.float32), np.ones((1, 5), np.float32)],
        [np.ones(5, np.float32), np.ones(1, np.float32)],
    )
    out = np.empty((2, 4), np.float32)
    with pytest.raises(ValueError, match="the mask has the wrong shape"):
        over_history.forward(x, np.ones((2, 4), bool), x[:, 0].copy(), *layer, out)
    with pytest.raises(ValueError, match="the target has the wrong shape"):
        over_history.forward(x, np.ones((2, 3), bool), x[:1, 0].copy(), *layer, out)
    two = np.ones((2, 5), np.float32)
    with pytest.raises(ValueError, match="a matrix has the wrong shape"):
        layers.mix_forward([two], [two], [two], [two])


@pytest.mark.parametrize("sizes", [(1, 1, 2**62, 4), (1, 1, 4, 2**62), (2**33, 1, 2**31, 1), (1, 2**40, 2, 2)])
def test_sizes_of_attention_whose_product_overflows_are_refused(sizes: tuple[int, int, int, int]) -> None:
    """The product of 2**62 and 4 is 0: buffers would be empty, and what is written to them would end the process."""
    with pytest.raises(ValueError, match="sizes are too large"):
        layers.FieldAttention(*sizes, 1.0)


@pytest.mark.parametrize(
    ("samples", "slots", "dim", "maps"), [(0, 2**32, 1, [1]), (0, 8, 2**61, [8]), (2**62, 1, 4, [1])]
)
def test_sizes_of_interactions_whose_product_overflows_are_refused(
    samples: int, slots: int, dim: int, maps: list[int]
) -> None:
    with pytest.raises(ValueError, match="sizes are too large"):
        layers.Interactions(samples, slots, dim, maps)


@pytest.mark.parametrize(("dim", "hidden"), [(2**62, [1]), (1, [2**40]), (4, [2**21, 2**20])])
def test_sizes_of_attention_over_histories_whose_product_overflows_are_refused(dim: int, hidden: list[int]) -> None:
    with pytest.raises(ValueError, match="sizes are too large"):
        layers.HistoryAttention(dim, hidden)
