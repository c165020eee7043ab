"""Searches mapped rows files of a bundle. `export/FORMAT.md` specifies the bytes.

Legend: U keys asked for, D values a row.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sparsefleet.core.batch import F32, U64
from sparsefleet.core.errors import BundleError
from sparsefleet.kernels.levels import native as _native

U8 = npt.NDArray[np.uint8]
Found = npt.NDArray[np.bool_]
DAMAGED = "a rows file's directory is damaged: its entries do not ascend; copy the bundle anew"


class RowType(IntEnum):
    """How values are kept. The file and native/include/sparsefleet/serving/bundle_rows.h have the same numbers."""

    FLOAT32 = 1
    FLOAT16 = 2
    INT8 = 3


class RowsLayout(NamedTuple):
    """Where the parts of a rows file lie, and how to search it. Fields are in the order of the kernels' arguments."""

    directory: int
    keys: int
    values: int
    rows: int
    seed: int
    bits: int
    dim: int
    stride: int
    type: int


def places(keys: U64, seed: int) -> U64:
    """Each key's place. Keys stand in the file by ascending place, and no two keys have the same."""
    out = np.empty(len(keys), np.uint64)
    _native.places(keys, seed, out)
    return out


def lookup_rows(data: U8, layout: RowsLayout, keys: U64) -> tuple[F32, Found]:
    """Rows [U, D] as float32, zeros where the file holds none, and which were found [U]."""
    out = np.empty((len(keys), layout.dim), np.float32)
    found = np.empty(len(keys), np.uint8)
    if _native.lookup_rows(data, *layout, keys, out, found) < 0:
        raise BundleError(DAMAGED)
    return out, found.view(np.bool_)


def check_order(data: U8, layout: RowsLayout) -> bool:
    """Whether all buckets are in order and every key stands where a search finds it."""
    return bool(_native.check_order(data, *layout))
