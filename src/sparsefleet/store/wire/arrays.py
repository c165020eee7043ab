"""Named arrays in one message: a line for each in the header, their bytes one after the other in the body."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsefleet.store.wire.frames import EMPTY, Bytes, WireError

Arrays = Mapping[str, npt.NDArray[Any]]


def pack_arrays(arrays: Arrays) -> tuple[list[list[Any]], Bytes]:
    """[name, dtype, shape] of each, and all their bytes."""
    described = [[name, array.dtype.newbyteorder("<").str, list(array.shape)] for name, array in arrays.items()]
    parts = [
        np.frombuffer(array.astype(array.dtype.newbyteorder("<")).tobytes(), np.uint8) for array in arrays.values()
    ]
    return described, np.concatenate(parts) if parts else EMPTY


def read_arrays(described: Any, body: Bytes) -> dict[str, npt.NDArray[Any]]:
    """The arrays again, in memory of their own."""
    arrays: dict[str, npt.NDArray[Any]] = {}
    start, raw = 0, body.tobytes()
    try:
        for name, dtype, shape in described:
            kind = np.dtype(dtype)
            if kind.hasobject or not isinstance(name, str) or any(length < 0 for length in shape):
                raise WireError(f"array {name!r} of {dtype} {shape} cannot be sent")
            count = math.prod(shape)
            arrays[name] = np.frombuffer(raw, kind, count, start).reshape(shape).copy()
            start += count * kind.itemsize
    except (TypeError, ValueError) as error:
        raise WireError(f"these are not arrays: {error}") from error
    return arrays
