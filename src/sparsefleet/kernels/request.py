"""Kernels on the values of a request, which are Python objects: these hold the GIL, and are quick about it."""

from __future__ import annotations

from collections.abc import Sequence

from sparsefleet.core.batch import U64
from sparsefleet.kernels import _native


def hash_column(values: Sequence[str], prefix: bytes, seed: int, dim: int, out: U64) -> bool:
    """Write the key of each text into `out`. False where one is no text, or none that UTF-8 can hold."""
    return bool(_native.hash_column(values, prefix, seed, dim, out))
