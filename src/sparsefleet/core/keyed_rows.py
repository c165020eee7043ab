"""KeyedRows: rows (or gradients of rows) with the keys they belong to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparsefleet.core.batch import F32, U64
from sparsefleet.core.errors import ConfigError

U32 = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class KeyedRows:
    """keys unique; rows[i] belongs to keys[i]."""

    keys: U64
    """[U]"""
    rows: F32
    """[U, D]"""
    counts: U32 | None = None
    """[U] of gradients: how often each key occurs in the samples that they are of; None: once each."""

    def __post_init__(self) -> None:
        if self.rows.ndim != 2 or len(self.keys) != len(self.rows):
            raise ConfigError(f"{len(self.keys)} keys need rows of shape [{len(self.keys)}, D]; got {self.rows.shape}")
        if self.counts is not None and self.counts.shape != self.keys.shape:
            raise ConfigError(f"{len(self.keys)} keys need as many counts; got {self.counts.shape}")

    def __len__(self) -> int:
        return len(self.keys)
