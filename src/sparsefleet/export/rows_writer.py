"""Writes rows files, in memory that does not grow with the table.

Rows stand in the order of their places (FORMAT.md), so they are taken from the source share by share of the places:
each pass reads the source once, keeps what falls into its share, sorts it and appends it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sparsefleet.core.batch import F32, U64
from sparsefleet.core.errors import BundleError
from sparsefleet.core.table_rows import TableRows
from sparsefleet.export.kernels.bundle_rows import U8, RowType, places
from sparsefleet.export.rows_file import RowsHeader, row_stride

PASS_BYTES = 1 << 30
"""About how many bytes of values a pass holds; sorting needs as much again."""
HALF_MAX = 65504.0

Keep = Callable[[U64], npt.NDArray[np.bool_]]
ReadRows = Callable[[Keep], Iterator[TableRows]]
"""Reads the rows of a table whose keys `Keep` chooses; called once for each pass."""


class RowsWriter:
    def __init__(self, path: Path, header: RowsHeader, min_seen: int, table: str) -> None:
        self._header, self._min_seen, self._table, self._path = header, min_seen, table, path

    def write(self, read: ReadRows, pass_bytes: int = PASS_BYTES) -> None:
        """Fill the file; there must be as many rows as the header says."""
        header, at = self._header, self._header.layout
        passes = max(1, -(-header.rows * (header.dim * 4 + 24) // pass_bytes))
        counts = np.zeros(2**header.bits + 1, np.uint64)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("xb") as file:
            handle = file.fileno()
            # Reserve the space now, so that a full disk is noticed before the work and not in the middle of it.
            os.posix_fallocate(handle, 0, header.file_bytes)
            done = 0
            for number in range(passes):
                keys, values = self._share(read, number, passes)
                if done + len(keys) > header.rows:
                    raise self._changed(done + len(keys))
                _write_at(handle, at.keys + 8 * done, keys)
                _write_at(handle, at.values + at.stride * done, encoded(values, header.dtype, self._table))
                if header.bits:
                    buckets = places(keys, header.seed) >> np.uint64(64 - header.bits)
                    counts[1:] += np.bincount(buckets.astype(np.int64), minlength=2**header.bits).astype(np.uint64)
                else:
                    counts[1] += np.uint64(len(keys))
                done += len(keys)
            if done != header.rows:
                raise self._changed(done)
            _write_at(handle, at.directory, np.cumsum(counts))
            _write_at(handle, 0, np.frombuffer(header.to_bytes(), np.uint8))
            os.fsync(handle)

    def _share(self, read: ReadRows, number: int, passes: int) -> tuple[U64, F32]:
        """Keys and values of one share of the places, in the order of their places."""
        low, high = (2**64 * number // passes, 2**64 * (number + 1) // passes - 1)

        def mine(keys: U64) -> npt.NDArray[np.bool_]:
            order = places(keys, self._header.seed)
            return (order >= np.uint64(low)) & (order <= np.uint64(high))

        chunks = [_kept(rows, self._min_seen) for rows in read(mine)]
        keys = np.concatenate([np.empty(0, np.uint64), *(rows.keys for rows in chunks)])
        values = np.concatenate([np.empty((0, self._header.dim), np.float32), *(rows.values for rows in chunks)])
        order = places(keys, self._header.seed)
        sorting = np.argsort(order, kind="stable")
        order = order[sorting]
        twice = np.flatnonzero(order[1:] == order[:-1])
        if len(twice):
            raise BundleError(f"table {self._table!r} holds the key {keys[sorting[twice[0]]]} twice")
        return keys[sorting], values[sorting]

    def _changed(self, found: int) -> BundleError:
        return BundleError(
            f"table {self._table!r} gave {found} rows where {self._header.rows} were counted: it changed meanwhile"
        )


def count_rows(chunks: Iterator[TableRows], min_seen: int) -> tuple[int, int, int]:
    """Rows that are kept, rows that are dropped, and how often training met the row that it met most."""
    kept = total = most = 0
    for rows in chunks:
        kept += int((rows.seen >= min_seen).sum())
        total += len(rows)
        most = max(most, int(rows.seen.max(initial=0)))
    return kept, total - kept, most


def encoded(values: F32, dtype: RowType, table: str) -> U8:
    """Encode rows [U, D] as they stand in the file: [U, stride]."""
    finite = np.isfinite(values).all() if dtype is not RowType.FLOAT16 else (np.abs(values) <= HALF_MAX).all()
    if not finite:
        limit = "finite" if dtype is not RowType.FLOAT16 else f"between -{HALF_MAX:g} and {HALF_MAX:g} (float16)"
        raise BundleError(f"table {table!r} holds values that are not {limit}; training has diverged")
    count, dim = values.shape
    out = np.zeros((count, row_stride(dtype, dim)), np.uint8)
    if dtype is RowType.FLOAT32:
        out[:] = np.ascontiguousarray(values, "<f4").view(np.uint8).reshape(count, 4 * dim)
    elif dtype is RowType.FLOAT16:
        out[:, : 2 * dim] = values.astype("<f2").view(np.uint8).reshape(count, 2 * dim)
    else:
        scale = (np.abs(values).max(axis=1, initial=0.0) / np.float32(127)).astype("<f4")
        steps = np.divide(values, scale[:, None], out=np.zeros_like(values), where=scale[:, None] > 0)
        out[:, :4] = scale.view(np.uint8).reshape(count, 4)
        out[:, 4 : 4 + dim] = np.clip(np.rint(steps), -127, 127).astype(np.int8).view(np.uint8)
    return out


def as_kept(values: F32, dtype: RowType, table: str) -> F32:
    """Rows [U, D] as a reader of the file gets them back, rounded to the type of rows."""
    raw, dim = encoded(values, dtype, table), values.shape[1]
    if dtype is RowType.FLOAT32:
        return raw.view("<f4")
    if dtype is RowType.FLOAT16:
        return raw[:, : 2 * dim].copy().view("<f2").astype(np.float32)
    return raw[:, :4].copy().view("<f4") * raw[:, 4 : 4 + dim].copy().view(np.int8).astype(np.float32)


def _kept(rows: TableRows, min_seen: int) -> TableRows:
    return rows.select(rows.seen >= min_seen) if min_seen else rows


def _write_at(handle: int, offset: int, array: npt.NDArray[np.generic]) -> None:
    data = memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    while len(data):
        written = os.pwrite(handle, data[: 1 << 30], offset)
        data, offset = data[written:], offset + written
