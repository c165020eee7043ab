"""Rows of bundles in Redis: commands, replies, and a cache of rows. `serving/redis/FORMAT.md` specifies the layout.

Legend: U keys asked for, M those of them that are fetched, D values a row.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sparsefleet.core.batch import F32, I64, U64
from sparsefleet.export.kernels.bundle_rows import U8, RowsLayout
from sparsefleet.kernels.levels import native as _native

U32 = npt.NDArray[np.uint32]

NOT_WANTED = 0xFFFFFFFF
"""In place of a place: of a hot row that nobody asked for."""
UNKNOWN = 2
"""A mark in `found`: neither there nor known not to be."""


class BucketPlace(NamedTuple):
    """Where a table's buckets are: fields of one hash, or, where `hash` is empty, strings of their own."""

    hash: bytes
    prefix: bytes
    """What a bucket's name begins with; four bytes of its number follow."""

    @property
    def get(self) -> bytes:
        return b"HMGET" if self.hash else b"MGET"


class ReplyStatus(IntEnum):
    """What reading replies came to. The numbers are those of native/include/sparsefleet/serving/redis_rows.h."""

    MORE = 0
    DONE = 1
    REFUSED = 2
    ABSENT = 3
    MISSHAPEN = 4


class BucketsWritten(NamedTuple):
    bytes: int
    commands: int
    bucket: int
    """The next one."""
    row: int
    """The next one."""


class BucketsRead(NamedTuple):
    consumed: int
    answered: int
    status: int


class BucketsReceived(NamedTuple):
    begin: int
    end: int
    answered: int
    status: int
    error: int
    """An errno; 0 where the socket has not failed."""


def bucket_numbers(keys: U64, seed: int, bits: int) -> U32:
    """The bucket of each key: the top bits of its place."""
    out = np.empty(len(keys), np.uint32)
    _native.bucket_numbers(keys, seed, bits, out)
    return out


def encode_buckets(
    data: U8,
    layout: RowsLayout,
    bits: int,
    place: BucketPlace,
    start: tuple[int, int],
    limits: tuple[int, int],
    out: U8,
) -> BucketsWritten:
    """HSET or MSET commands of buckets, from (bucket, its first row) on: as many whole ones as fit in `out`.

    `limits`: buckets, and about how many bytes, of one command.
    """
    return BucketsWritten(*_native.encode_buckets(data, *layout, bits, *place, *start, *limits, out))


def encode_names(verb: bytes, place: BucketPlace, buckets: U32, per_command: int) -> U8:
    """`verb name name …` of buckets, or `verb hash name name …`, in commands of `per_command`."""
    out = np.empty(_native.names_bytes(verb, *place, len(buckets), per_command), np.uint8)
    return out[: _native.encode_names(verb, *place, buckets, per_command, out)]


def read_buckets(
    data: U8, span: tuple[int, int], keys: U64, at: I64, per_command: int, answered: int, packed: U8, found: U8
) -> BucketsRead:
    """Read replies (HMGET, MGET) in data[begin:end]: the rows of keys[at], into packed [U, stride] and found [U].

    A reply that is not all there yet is left for the next call, which is told how many keys have been `answered`.
    """
    return BucketsRead(*_native.read_buckets(data, *span, keys, at, per_command, answered, packed, found))


def receive_buckets(
    descriptor: int,
    seconds: float,
    data: U8,
    span: tuple[int, int],
    keys: U64,
    at: I64,
    per_command: int,
    answered: int,
    packed: U8,
    found: U8,
) -> BucketsReceived:
    """`read_buckets`, and receive into `data` what has not come yet, for so many seconds at most.

    `descriptor`: of a socket; -1 where bytes do not come from one as they are. MORE and no error: the caller must
    receive, or make room for a value that is longer than half of `data`.
    """
    return BucketsReceived(
        *_native.receive_buckets(descriptor, seconds, data, *span, keys, at, per_command, answered, packed, found)
    )


def hot_value_rows(stride: int) -> int:
    """Hot rows in one value of Redis."""
    return int(_native.hot_value_rows(stride))


def read_hot_rows(data: U8, span: tuple[int, int], to: U32, answered: int, packed: U8) -> BucketsRead:
    """Read the reply to an HMGET of all values that hot rows lie in: the i-th row into packed[to[i]], unless that is
    `NOT_WANTED`. The first `answered` values were read by earlier calls."""
    return BucketsRead(*_native.read_hot_rows(data, *span, to, answered, packed))


def decode_rows(packed: U8, found: U8, dim: int, dtype: int) -> F32:
    """Packed rows [U, stride] as float32 [U, D], zeros where there is none."""
    out = np.empty((len(packed), dim), np.float32)
    _native.decode_rows(packed, found, dtype, out)
    return out


class RowCache:
    """A bounded cache of packed rows by key, and of keys that have none. Threads may share one."""

    def __init__(self, stride: int, cache_bytes: int) -> None:
        self._stride = stride
        self._native = _native.RowCache(stride, cache_bytes)

    def get(self, keys: U64) -> tuple[U8, U8, I64]:
        """Packed rows [U, stride], marks [U] (1, 0 or `UNKNOWN`), and the places of what is not here [M]."""
        packed, found = np.empty((len(keys), self._stride), np.uint8), np.empty(len(keys), np.uint8)
        missing = np.empty(len(keys), np.int64)
        return packed, found, missing[: self._native.get(keys, packed, found, missing)]

    def put(self, keys: U64, at: I64, packed: U8, found: U8) -> None:
        """Keep the rows of keys[at]."""
        self._native.put(keys, at, packed, found)

    def __len__(self) -> int:
        return int(self._native.size)

    @property
    def capacity(self) -> int:
        return int(self._native.capacity)
