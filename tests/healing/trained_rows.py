"""What a job of `click_job.py` has trained, to compare it with another's."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from sparsefleet.checkpoint import Checkpoint

TABLE = "SparseFeatFactors"


class Trained(NamedTuple):
    keys: np.ndarray
    rows: np.ndarray
    """Values and state, by key."""
    dense: np.ndarray
    step: int


def trained(folder: Path) -> Trained:
    checkpoint = Checkpoint.open(folder / "saved")
    parts = list(checkpoint.sparse_rows(TABLE))
    keys = np.concatenate([part.keys for part in parts])
    order = np.argsort(keys)
    rows = np.concatenate([np.concatenate([part.values, part.state], axis=1) for part in parts])[order]
    size = sum(int(np.prod(shape)) for _, shape in checkpoint.manifest.block("dense").layout)
    dense = checkpoint.dense_cut("dense", 0, size).values
    return Trained(keys[order], rows, dense, checkpoint.manifest.table(TABLE).step)


def check_same(one: Trained, other: Trained) -> None:
    np.testing.assert_array_equal(one.keys, other.keys)
    np.testing.assert_allclose(other.rows, one.rows, atol=1e-5)
    np.testing.assert_allclose(other.dense, one.dense, atol=1e-5)
    assert one.step == other.step
