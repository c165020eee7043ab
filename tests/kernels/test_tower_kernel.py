"""Dense layers: the native kernel against its NumPy twin, over shapes that do and do not fill its tiles."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsefleet.core.batch import F32
from sparsefleet.kernels import tower
from sparsefleet.kernels.reference import tower as reference

WIDTHS = st.lists(st.integers(1, 200), min_size=2, max_size=4)


def passes(
    kind: type, rows: int, widths: list[int], half: bool, seed: int, to_input: bool = True, whole: bool = False
) -> list[F32]:
    """The output and all gradients of one forward and backward pass. whole: all values are -1, 0 or 1."""
    draw = np.random.default_rng(seed)

    def values(*shape: int) -> F32:
        drawn = draw.integers(-1, 2, size=shape) if whole else draw.normal(size=shape)
        return drawn.astype(np.float32)

    x, grad_out = values(rows, widths[0]), values(rows, widths[-1])
    scales = [np.float32(1 if whole else np.sqrt(width)) for width in widths]
    weights = [values(b, a) / scale for (a, b), scale in zip(pairwise(widths), scales, strict=False)]
    biases = [values(b) for b in widths[1:]]
    out, grad_x = np.empty((rows, widths[-1]), np.float32), np.empty_like(x)
    grad_weights, grad_biases = [np.empty_like(w) for w in weights], [np.empty_like(b) for b in biases]
    space = kind(rows, widths)
    for _ in range(2):  # buffers of the first pass must not show in the second
        space.forward(x, weights, biases, out, half)
        space.backward(x, weights, grad_out, grad_weights, grad_biases, grad_x if to_input else None, half)
    return [out, *grad_weights, *grad_biases, *([grad_x] if to_input else [])]


@settings(max_examples=100, deadline=None)
@given(rows=st.integers(0, 300), widths=WIDTHS, half=st.booleans(), seed=st.integers(0, 99))
def test_native_equals_its_twin(rows: int, widths: list[int], half: bool, seed: int) -> None:
    # Whole numbers, none above 2^24: every sum is exact in any order. With others, one near zero may fall on the other
    # side of relu, and all gradients of its row differ.
    twin = passes(reference.TowerSpace, rows, widths, half=half, seed=seed, whole=True)
    native = passes(tower.TowerSpace, rows, widths, half=half, seed=seed, whole=True)
    for mine, theirs in zip(native, twin, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@settings(max_examples=30, deadline=None)
@given(rows=st.integers(0, 300), width=st.integers(1, 200), out=st.integers(1, 200), seed=st.integers(0, 99))
def test_one_layer_of_any_numbers_equals_its_twin(rows: int, width: int, out: int, seed: int) -> None:
    twin = passes(reference.TowerSpace, rows, [width, out], half=False, seed=seed)
    for mine, theirs in zip(passes(tower.TowerSpace, rows, [width, out], half=False, seed=seed), twin, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-4)


@settings(max_examples=30, deadline=None)
@given(rows=st.integers(1, 100), width=st.integers(1, 200), out=st.integers(1, 100), seed=st.integers(0, 99))
def test_half_rounds_the_factors_and_nothing_else(rows: int, width: int, out: int, seed: int) -> None:
    # One layer: with several, a value rounded the other way in between would hide what is compared.
    twin = passes(reference.TowerSpace, rows, [width, out], half=True, seed=seed)
    for mine, theirs in zip(passes(tower.TowerSpace, rows, [width, out], half=True, seed=seed), twin, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("half", [False, True])
def test_the_whole_network_equals_its_twin(half: bool) -> None:
    widths = [273, 400, 400, 400, 2]
    twin = passes(reference.TowerSpace, 100, widths, half=half, seed=1)
    for mine, theirs in zip(passes(tower.TowerSpace, 100, widths, half=half, seed=1), twin, strict=True):
        # A sum near zero may fall on the other side of relu: single values may differ, all together must not.
        assert np.linalg.norm(mine - theirs) <= 1e-3 * np.linalg.norm(theirs)


@pytest.mark.parametrize("outputs", [1, 2, 3])
@pytest.mark.parametrize("half", [False, True])
def test_a_row_does_not_depend_on_the_rows_beside_it(half: bool, outputs: int) -> None:
    draw = np.random.default_rng(0)
    widths = [31, 90, outputs]
    weights = [draw.normal(size=(b, a)).astype(np.float32) for a, b in ((31, 90), (90, outputs))]
    biases = [draw.normal(size=b).astype(np.float32) for b in (90, outputs)]
    x = draw.normal(size=(257, 31)).astype(np.float32)

    def scores(part: F32) -> F32:
        out = np.empty((len(part), outputs), np.float32)
        tower.TowerSpace(len(part), widths).forward(part, weights, biases, out, half)
        return out

    alone = np.concatenate([scores(x[i : i + 1]) for i in range(len(x))])
    np.testing.assert_array_equal(scores(x), alone)


@pytest.mark.parametrize("half", [False, True])
def test_what_is_not_a_number_stays_so(half: bool) -> None:
    space = tower.TowerSpace(1, [2, 3, 1])
    out = np.empty((1, 1), np.float32)
    weights, biases = (
        [np.ones((3, 2), np.float32), np.ones((1, 3), np.float32)],
        [np.zeros(3, np.float32), np.zeros(1, np.float32)],
    )
    space.forward(np.array([[np.nan, 1]], np.float32), weights, biases, out, half)
    assert np.isnan(out[0, 0])


@pytest.mark.parametrize(
    ("x", "weight", "message"),
    [((3, 2), (1, 2), "x has the wrong shape"), ((1, 2), (2, 1), "weights have the wrong shape")],
)
def test_wrong_shapes_are_refused(x: tuple[int, int], weight: tuple[int, int], message: str) -> None:
    space = tower.TowerSpace(1, [2, 1])
    with pytest.raises(ValueError, match=message):
        space.forward(
            np.zeros(x, np.float32),
            [np.zeros(weight, np.float32)],
            [np.zeros(1, np.float32)],
            np.zeros((1, 1), np.float32),
            False,
        )


@pytest.mark.parametrize("half", [False, True])
def test_backward_follows_a_forward_pass_of_its_precision(half: bool) -> None:
    space = tower.TowerSpace(2, [3, 4, 1])
    x, weights = np.ones((2, 3), np.float32), [np.ones((4, 3), np.float32), np.ones((1, 4), np.float32)]
    biases, out = [np.ones(4, np.float32), np.ones(1, np.float32)], np.ones((2, 1), np.float32)

    def backward() -> None:
        space.backward(x, weights, out, [w.copy() for w in weights], [b.copy() for b in biases], None, half)

    with pytest.raises(ValueError, match="backward follows a forward pass"):
        backward()
    space.forward(x, weights, biases, out, not half)
    with pytest.raises(ValueError, match="backward follows a forward pass"):
        backward()
    space.forward(x, weights, biases, out, half)
    backward()


def test_half_is_measured_against_float32() -> None:
    assert 0 < tower.half_speedup(rows=32, widths=(16, 8), rounds=1) < 1000
