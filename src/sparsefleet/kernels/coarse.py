"""Dense numbers in fewer bits, for their way over a network: bfloat16, and int8 with one scale per stretch.

Legend: n numbers.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sparsefleet.core.batch import F32
from sparsefleet.kernels.levels import native as _native

U16 = npt.NDArray[np.uint16]
I8 = npt.NDArray[np.int8]
STRETCH = 256
"""Numbers that share a scale."""


def scales_of(n: int) -> int:
    """How many scales so many numbers have."""
    return -(-n // STRETCH)


def to_bfloat16(values: F32, out: U16) -> None:
    """Rounded to the nearest, ties to even; a NaN stays one."""
    _native.to_bfloat16(values, out)


def from_bfloat16(coarse: U16, out: F32) -> None:
    _native.from_bfloat16(coarse, out)


def to_int8(values: F32, rest: F32, scales: F32, out: I8) -> None:
    """Say values + rest in whole multiples of a scale, -127 to 127; `rest` holds afterwards what that could not say.

    A stretch with a number that is not finite, or above 1e37, gets the scale NaN.
    """
    _native.to_int8(values, rest, scales, out)


def tell_int8(values: F32, known: F32, scales: F32, out: I8) -> None:
    """Say values - known as `to_int8` does; `known` becomes what a reader that knew it makes of that (`add_int8`)."""
    _native.tell_int8(values, known, scales, out)


def add_int8(scales: F32, coarse: I8, out: F32) -> None:
    """Add the numbers to `out`."""
    _native.add_int8(scales, coarse, out)
