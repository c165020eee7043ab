"""Plain twins of `kernels.request`."""

from __future__ import annotations

from collections.abc import Sequence

from sparsefleet.core.batch import U64
from sparsefleet.kernels.reference.text import feature_key


def hash_column(values: Sequence[str], prefix: bytes, seed: int, dim: int, out: U64) -> bool:
    for row, value in enumerate(values):
        if not isinstance(value, str):
            return False
        try:
            out[row] = feature_key(value.encode(), prefix, seed, dim)
        except UnicodeEncodeError:
            return False
    return True
