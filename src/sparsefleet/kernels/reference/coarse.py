"""NumPy twins of `kernels.coarse`. Denormals are zero."""

from __future__ import annotations

import numpy as np

from sparsefleet.core.batch import F32
from sparsefleet.kernels.coarse import I8, STRETCH, U16
from sparsefleet.kernels.float_mode import flushed

LEAST, MOST = np.float32(1e-30), np.float32(1e37)


def to_bfloat16(values: F32, out: U16) -> None:
    bits = values.view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    out[:] = np.where(np.isnan(values), (bits >> 16) | 0x40, rounded & 0xFFFF).astype(np.uint16)


def from_bfloat16(coarse: U16, out: F32) -> None:
    out[:] = (coarse.astype(np.uint32) << 16).view(np.float32)


def to_int8(values: F32, rest: F32, scales: F32, out: I8) -> None:
    with flushed():
        rest += values
        for place, begin in enumerate(range(0, len(values), STRETCH)):
            x, said = rest[begin : begin + STRETCH], out[begin : begin + STRETCH]
            largest = np.abs(x).max()
            said[:] = 0
            if not largest <= MOST:
                scales[place], x[:] = np.nan, 0
            elif largest < LEAST:
                scales[place] = 0
            else:
                scales[place] = largest / np.float32(127)
                whole = np.rint(x * (np.float32(127) / largest))
                said[:] = whole.astype(np.int8)
                x -= whole * scales[place]


def tell_int8(values: F32, known: F32, scales: F32, out: I8) -> None:
    with flushed():
        change = values - known
    to_int8(change, np.zeros(len(values), np.float32), scales, out)
    add_int8(scales, out, known)


def add_int8(scales: F32, coarse: I8, out: F32) -> None:
    with flushed():
        out += coarse.astype(np.float32) * np.repeat(scales, STRETCH)[: len(out)]
