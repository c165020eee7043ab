"""First values of rows: native and NumPy twin."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from table_cases import (
    BOTH,
    CONSTANT,
    NORMAL,
    UNIFORM,
    keys_of,
    u64,
)

from sparsefleet.kernels import table as native
from sparsefleet.kernels.reference import table as reference

GOLDEN_ROWS = [
    ["0x1.7186800000000p-5", "-0x1.b569f00000000p-2", "0x1.cc3c780000000p-1"],
    ["-0x1.796a3c0000000p-1", "0x1.8689b00000000p-1", "0x1.000d200000000p-2"],
    ["0x1.af22400000000p-1", "0x1.438b600000000p-4", "0x1.803ec00000000p-3"],
]


@settings(max_examples=50, deadline=None)
@given(keys_of, st.integers(0, 2**64 - 1), st.integers(1, 40), st.sampled_from([UNIFORM, NORMAL, CONSTANT]))
def test_initial_values_are_those_of_the_twin(keys, seed, dim, kind):
    ours = native.init_rows(seed, u64(keys), dim, kind, -0.3, 0.7)
    twins = reference.init_rows(seed, u64(keys), dim, kind, -0.3, 0.7)
    if kind == NORMAL:  # log, sin and cos may differ in the last bit between libraries
        np.testing.assert_allclose(ours, twins, rtol=1e-6, atol=1e-7)
    else:
        np.testing.assert_array_equal(ours, twins)


def test_initial_values_never_change():
    """Checkpoints and other releases depend on these very bits."""
    rows = native.init_rows(1, u64([0, 1, 2**64 - 1]), 3, UNIFORM, -1.0, 1.0)
    assert [[value.hex() for value in row] for row in rows.tolist()] == GOLDEN_ROWS


@BOTH
def test_uniform_fills_its_interval_and_never_reaches_the_upper_end(kernels):
    rows = kernels.init_rows(3, np.arange(20000, dtype=np.uint64), 8, UNIFORM, 1000.0, 1001.0)
    assert rows.min() >= 1000.0
    assert rows.max() < 1001.0
    rows = kernels.init_rows(3, np.arange(20000, dtype=np.uint64), 8, UNIFORM, -1.0, 1.0)
    assert abs(rows.mean()) < 0.01
    assert abs(rows.std() - 1 / np.sqrt(3)) < 0.01
    assert (kernels.init_rows(3, u64([5]), 4, UNIFORM, 0.25, 0.25) == 0.25).all()


@BOTH
def test_normal_has_its_moments_and_no_pairing(kernels):
    rows = kernels.init_rows(3, np.arange(50000, dtype=np.uint64), 7, NORMAL, 2.0, 0.5).astype(np.float64)
    assert abs(rows.mean() - 2.0) < 0.01
    assert abs(rows.std() - 0.5) < 0.01
    correlation = np.corrcoef(rows.T) - np.eye(7)
    assert np.abs(correlation).max() < 0.03


@BOTH
def test_initial_values_differ_by_seed_and_key(kernels):
    keys = np.arange(1000, dtype=np.uint64)
    one, two = (kernels.init_rows(seed, keys, 4, UNIFORM, -1.0, 1.0) for seed in (1, 2))
    assert len(np.unique(np.concatenate([one, two]), axis=0)) == 2000
