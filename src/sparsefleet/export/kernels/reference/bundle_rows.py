"""NumPy twins of `export.kernels.bundle_rows`."""

from __future__ import annotations

import numpy as np

from sparsefleet.core.batch import F32, U64
from sparsefleet.core.errors import BundleError
from sparsefleet.export.kernels.bundle_rows import U8, Found, RowsLayout, RowType


def places(keys: U64, seed: int) -> U64:
    x = keys ^ np.uint64(seed)
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def lookup_rows(data: U8, layout: RowsLayout, keys: U64) -> tuple[F32, Found]:
    directory, held = _directory(data, layout), _keys(data, layout)
    rows, found = np.zeros((len(keys), layout.dim), np.float32), np.zeros(len(keys), np.bool_)
    for index, (key, bucket) in enumerate(zip(keys, _buckets(keys, layout), strict=True)):
        first, last = int(directory[bucket]), int(directory[bucket + 1])
        if not first <= last <= layout.rows:
            raise BundleError("a rows file's directory is damaged: its entries do not ascend; copy the bundle anew")
        for row in range(first, last):
            if held[row] == key:
                rows[index], found[index] = _values(data, layout, row), True
                break
    return rows, found


def check_order(data: U8, layout: RowsLayout) -> bool:
    directory, keys = _directory(data, layout), _keys(data, layout)
    if directory[0] != 0 or directory[-1] != layout.rows or (directory[1:] < directory[:-1]).any():
        return False
    order = places(keys, layout.seed)
    sizes = (directory[1:] - directory[:-1]).astype(np.int64)
    expected = np.repeat(np.arange(len(sizes)), sizes)
    return bool((order[1:] > order[:-1]).all() and (_buckets(keys, layout) == expected).all())


def _buckets(keys: U64, layout: RowsLayout) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    if not layout.bits:
        return np.zeros(len(keys), np.int64)
    return (places(keys, layout.seed) >> np.uint64(64 - layout.bits)).astype(np.int64)


def _directory(data: U8, layout: RowsLayout) -> U64:
    return data[layout.directory :][: 8 * (2**layout.bits + 1)].view("<u8")


def _keys(data: U8, layout: RowsLayout) -> U64:
    return data[layout.keys :][: 8 * layout.rows].view("<u8")


def _values(data: U8, layout: RowsLayout, row: int) -> F32:
    raw = data[layout.values + row * layout.stride :][: layout.stride].copy()
    if layout.type == RowType.FLOAT32:
        return raw[: 4 * layout.dim].view("<f4")
    if layout.type == RowType.FLOAT16:
        return raw[: 2 * layout.dim].view("<f2").astype(np.float32)
    return np.float32(raw[:4].view("<f4")[0]) * raw[4 : 4 + layout.dim].view(np.int8).astype(np.float32)
