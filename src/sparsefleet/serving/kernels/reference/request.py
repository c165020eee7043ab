"""Plain twins of `serving.kernels.request`."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sparsefleet.core.batch import F32, U64
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


def count_byte(data: bytes, byte: bytes) -> int:
    return data.count(byte)


def format_floats(values: F32) -> bytes | None:
    """Equal to the native one once it is read back; the native one may write 1e-05 where this writes 1e-5."""
    return ("[" + ",".join(map(str, values)) + "]").encode() if all(map(math.isfinite, values)) else None
