"""How far numbers are apart: figures that `verify` and `replay` share."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]
QUANTILES = (0.5, 0.9, 0.99, 0.999)


@dataclass(frozen=True, slots=True)
class Spread:
    """A summary of absolute differences; all 0 if there are none."""

    count: int
    max: float
    mean: float
    quantiles: tuple[float, ...]
    """At QUANTILES."""

    @staticmethod
    def of(differences: F64) -> Spread:
        if not len(differences):
            return Spread(0, 0.0, 0.0, (0.0,) * len(QUANTILES))
        # "higher": a quantile is a difference that occurs, and needs no arithmetic on infinities.
        found = np.quantile(differences, QUANTILES, method="higher")
        return Spread(len(differences), float(differences.max()), float(differences.mean()), tuple(found.tolist()))

    def to_dict(self) -> dict[str, Any]:
        fields = asdict(self)
        quantiles = fields.pop("quantiles")
        return {**fields, **{f"p{100 * q:g}": value for q, value in zip(QUANTILES, quantiles, strict=True)}}


def apart(a: npt.ArrayLike, b: npt.ArrayLike) -> F64:
    """Absolute differences. NaN is at distance 0 from NaN, and infinitely far from any number."""
    left, right = np.asarray(a, np.float64), np.asarray(b, np.float64)
    with np.errstate(invalid="ignore"):
        found = np.where((left == right) | (np.isnan(left) & np.isnan(right)), 0.0, np.abs(left - right))
    return np.where(np.isnan(found), np.inf, found)


def worst(differences: F64, count: int = 10) -> list[int]:
    """Where the largest differences are, largest first."""
    return [int(index) for index in np.argsort(-differences, kind="stable")[:count]]
