"""Dense numbers in fewer bits: the kernels against their NumPy twins, and what they promise."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from sparsefleet.kernels import coarse
from sparsefleet.kernels.reference import coarse as twin

ANY = arrays(np.float32, st.integers(0, 700), elements=st.floats(width=32))
NORMAL = st.floats(-(2.0**100), 2.0**100, width=32, allow_subnormal=False)
FINITE = arrays(np.float32, st.integers(0, 700), elements=NORMAL)


def said(kernels, values, rest):
    scales, out = np.empty(coarse.scales_of(len(values)), np.float32), np.empty(len(values), np.int8)
    left = rest.copy()
    kernels.to_int8(values, left, scales, out)
    return scales, out, left


def said_with_one_scale(values):
    coarse.to_int8(values, np.zeros_like(values), np.empty(1, np.float32), np.empty(len(values), np.int8))


@given(ANY)
def test_bfloat16_is_torchs(values):
    mine, other = np.empty(len(values), np.uint16), np.empty(len(values), np.uint16)
    coarse.to_bfloat16(values, mine)
    twin.to_bfloat16(values, other)
    assert mine.tobytes() == other.tobytes()
    back = np.empty(len(values), np.float32)
    coarse.from_bfloat16(mine, back)
    np.testing.assert_array_equal(back, torch.from_numpy(values).bfloat16().float().numpy())


@given(ANY)
def test_int8_is_its_twins(values):
    rest = np.zeros(len(values), np.float32)
    for mine, other in zip(said(coarse, values, rest), said(twin, values, rest), strict=True):
        np.testing.assert_array_equal(mine, other)


@given(FINITE)
def test_what_is_not_said_is_kept(values):
    scales, out, left = said(coarse, values, np.zeros(len(values), np.float32))
    heard = np.zeros(len(values), np.float32)
    coarse.add_int8(scales, out, heard)
    steps = np.repeat(scales, coarse.STRETCH)[: len(values)]
    assert (np.abs(left) <= np.maximum(steps * 0.501, 1.1e-30)).all()
    np.testing.assert_allclose(heard.astype(np.float64) + left, values, rtol=1e-5, atol=1e-35)


def test_a_sum_of_messages_comes_near_the_sum_of_values():
    rng = np.random.default_rng(3)
    rest, heard, total = np.zeros(1000, np.float32), np.zeros(1000, np.float32), np.zeros(1000)
    for _ in range(100):
        values = rng.standard_normal(1000).astype(np.float32)
        scales, out, rest = said(coarse, values, rest)
        coarse.add_int8(scales, out, heard)
        total += values
    assert np.abs(heard - total).max() < 0.05  # one step of int8, not a hundred


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_number_that_is_none_is_seen_by_the_reader(bad):
    values = np.ones(600, np.float32)
    values[300] = bad
    scales, out, _ = said(coarse, values, np.zeros(600, np.float32))
    heard = np.zeros(600, np.float32)
    coarse.add_int8(scales, out, heard)
    assert np.isnan(heard[256:512]).all()
    assert np.allclose(heard[:256], 1)


def test_arrays_of_other_sizes_are_refused():
    with pytest.raises(ValueError, match="one scale for each stretch"):
        said_with_one_scale(np.ones(300, np.float32))


@given(ANY, st.integers(0, 99))
def test_a_told_difference_is_its_twins_and_what_the_reader_makes_of_it(values, seed):
    known = np.random.default_rng(seed).standard_normal(len(values)).astype(np.float32)
    heard, found = known.copy(), []
    for kernels in (coarse, twin):
        scales, out = np.empty(coarse.scales_of(len(values)), np.float32), np.empty(len(values), np.int8)
        told = known.copy()
        kernels.tell_int8(values, told, scales, out)
        found.append((scales, out, told))
    for mine, other in zip(*found, strict=True):
        np.testing.assert_array_equal(mine, other)
    coarse.add_int8(found[0][0], found[0][1], heard)
    np.testing.assert_array_equal(heard, found[0][2])
