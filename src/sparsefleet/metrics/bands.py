"""Weights as whole numbers: exact sums of float32 numbers of any size, in 64 bits.

Every float32 is a whole number of 24 bits times a power of two. One unit for all weights would round small ones away,
and large ones would not fit 64 bits. So weights go into bands by their size, each eight powers of two wide, and each
band is summed by itself, in a unit of its own. Sums do not depend on the order, parts merge exactly, and weights that
are all multiplied by a power of two give the same digits. Most data meets one band or two: a weight of 1 is in the
middle of one that reaches from 1/16 to 16.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sparsefleet.core.batch import F32, I64

WIDTH = 8
"""Powers of two."""
LOWEST = 187
"""The unit of band b is 2**(WIDTH * b - LOWEST). Bands of float32 weights are 1 to 36; 0 is left for other uses."""
DIGITS = 24
"""Bits of a float32 weight."""
BITS = DIGITS + WIDTH - 1
"""A weight is below 2**BITS units of its band."""
TOP = 64
"""No band is above: float32 weights and their sums end far below."""

F64 = npt.NDArray[np.float64]
I32 = npt.NDArray[np.int32]


class Banded(NamedTuple):
    """Weights [B]: `digits` * 2**`shift` units of their band each."""

    digits: F64
    """Whole numbers below 2**DIGITS."""
    shift: I32
    band: I32

    def parts(self) -> I64:
        """Weights in units of their bands."""
        return self.digits.astype(np.int64) << self.shift


def banded(weights: F32) -> Banded:
    """Finite weights from 0 on."""
    fraction, exponent = np.frexp(weights.astype(np.float64))
    places = exponent + (LOWEST - DIGITS)
    return Banded(np.ldexp(fraction, DIGITS), places & (WIDTH - 1), places >> 3)
