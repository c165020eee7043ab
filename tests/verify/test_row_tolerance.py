"""How far a kept row may be from the trained one: every healthy row is within, and not much more is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from sparsefleet.export.kernels.bundle_rows import RowType
from sparsefleet.export.rows_writer import as_kept
from sparsefleet.verify.differences import apart
from sparsefleet.verify.table_rows import row_tolerance

SMALL = st.floats(-60000, 60000, width=32)


def beyond(values, dtype):
    kept = as_kept(values, RowType[dtype.upper()], "t")
    return apart(values, kept) - row_tolerance(values, dtype)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
@settings(max_examples=300, deadline=None)
@given(values=arrays(np.float32, array_shapes(min_dims=2, max_dims=2, max_side=8), elements=SMALL))
def test_every_value_that_an_export_keeps_is_within_the_bound(dtype, values):
    assert beyond(values, dtype).max() <= 0


@pytest.mark.parametrize("scale", [1e-44, 1e-40, 1e-30, 0.01, 1.0, 1e30])
def test_ties_of_int8_rows_are_within_the_bound(scale):
    """Values in the middle between two steps: rounding decides by the last bit of the quotient."""
    random = np.random.default_rng(7)
    largest = scale * (0.5 + random.random((20_000, 1)))
    ties = largest / 127 * (random.integers(-127, 127, (20_000, 30)) + 0.5)
    values = np.concatenate([largest, ties], axis=1).astype(np.float32)
    assert beyond(values, "int8").max() <= 0


def test_a_whole_step_is_beyond_the_bound():
    values = np.array([[1.0, 0.5, -0.25]], np.float32)
    kept = as_kept(values, RowType.INT8, "t")
    kept[0, 1] += np.float32(1 / 127)
    assert (apart(values, kept) > row_tolerance(values, "int8")).tolist() == [[False, True, False]]
