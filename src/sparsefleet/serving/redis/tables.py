"""The buckets of one table of one version: write them, count them, read them all, remove them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from sparsefleet.core.batch import U64
from sparsefleet.core.errors import BundleError
from sparsefleet.export.kernels.bundle_rows import U8
from sparsefleet.export.rows_file import RowsFile
from sparsefleet.serving.kernels.redis_rows import U32, encode_buckets, encode_names, hot_value_rows
from sparsefleet.serving.redis.connection import Connection, RedisError
from sparsefleet.serving.redis.record import Names, VersionRecord

CHUNK = 1 << 20
"""Bytes sent at a time. Redis works on one chunk while we make the next."""
LIMITS = (128, 64 << 10)
"""Buckets and bytes of one HSET or MSET: enough to be quick, and Redis is free for others in between."""
NAMES = 1024
"""Of one HMGET, HDEL, MGET, EXISTS or UNLINK."""
MAX_CHUNK = 256 << 20


class TableBuckets:
    """Of the table `index` of a version's record, in the record's layout."""

    def __init__(self, connection: Connection, record: VersionRecord, index: int) -> None:
        self._connection, self._table = connection, record.tables[index]
        names = Names(connection.address.prefix)
        self._place, self._hot = names.buckets(record.tag, index, record.layout), names.hot(record.tag, index)

    def write(self, file: RowsFile, step: Callable[[int], None]) -> int:
        """Write all buckets and return the bytes sent. `step` is called with numbers of rows that Redis has stored."""
        connection, layout = self._connection, file.header.layout
        buffer = np.empty(CHUNK, np.uint8)
        bucket = row = sent = waiting = waiting_rows = 0
        while bucket < self._table.buckets:
            done = encode_buckets(file.data, layout, self._table.bits, self._place, (bucket, row), LIMITS, buffer)
            if not done.bytes:
                if len(buffer) >= MAX_CHUNK:
                    raise BundleError(f"{file.path}: one bucket of it has more than {MAX_CHUNK >> 20} MB")
                buffer = np.empty(2 * len(buffer), np.uint8)
                continue
            connection.start()
            connection.send(buffer[: done.bytes].data)
            # One chunk is always on its way while the replies to the one before are read.
            self._expect_ok(waiting)
            step(waiting_rows)
            waiting, waiting_rows = done.commands, done.row - row
            bucket, row, sent = done.bucket, done.row, sent + done.bytes
        connection.start()
        self._expect_ok(waiting)
        step(waiting_rows)
        if row != len(file):
            raise BundleError(f"{file.path}: damaged: its keys are not in the order that searches rely on")
        return sent

    def write_hot(self, file: RowsFile, keys: U64) -> int:
        """Write the rows of the hot keys and return the bytes."""
        packed = file.packed(keys[: self._table.hot])
        each = hot_value_rows(self._table.stride)
        for number, start in enumerate(range(0, len(packed), each)):
            value = packed[start : start + each].tobytes()
            self._connection.command("HSET", self._hot, number.to_bytes(4, "little"), value)
        return packed.size

    def hot_values(self) -> int:
        """How many of the values are there that hot rows are in."""
        return int(self._connection.command("HLEN", self._hot)) if self._table.hot else 0

    @property
    def hot_wanted(self) -> int:
        return -(-self._table.hot // hot_value_rows(self._table.stride))

    def count(self) -> int:
        """How many buckets there are."""
        if self._place.hash:
            return int(self._connection.command("HLEN", self._place.hash))
        return sum(self._in_pieces(b"EXISTS"))

    def remove(self, step: Callable[[], None]) -> None:
        # A hash goes in pieces, too: UNLINK of a large one gives its memory back later, and a Redis that is out of
        # memory would meanwhile refuse what comes next.
        for _ in self._in_pieces(b"HDEL" if self._place.hash else b"UNLINK"):
            step()
        if self._place.hash:
            self._connection.command("UNLINK", self._place.hash, self._hot)  # what somebody else wrote into it, too

    def read(self) -> Iterator[tuple[U64, U8]]:
        """All rows, a stretch of buckets at a time: keys [n] and packed rows [n, stride]."""
        width = 8 + self._table.stride
        for first, values in self._values():
            keys, rows = [], []
            for number, value in enumerate(values, first):
                if value is None:
                    raise RedisError(
                        f"bucket {number} of table {self._table.name!r} is not in Redis: evicted, or the version was "
                        "removed; publish it again"
                    )
                if len(value) % width:
                    raise RedisError(
                        f"bucket {number} of table {self._table.name!r} has {len(value)} bytes in Redis, no multiple "
                        f"of {width}: something else wrote it; publish the bundle under another prefix"
                    )
                count = len(value) // width
                keys.append(value[: 8 * count])
                rows.append(value[8 * count :])
            packed = np.frombuffer(b"".join(rows), np.uint8).reshape(-1, self._table.stride)
            yield np.frombuffer(b"".join(keys), "<u8"), packed

    def _values(self) -> Iterator[tuple[int, list[bytes | None]]]:
        first = 0
        for reply in self._in_pieces(self._place.get):
            yield first, reply
            first += len(reply)

    def _in_pieces(self, verb: bytes) -> Iterator[Any]:
        for start in range(0, self._table.buckets, NAMES):
            numbers: U32 = np.arange(start, min(start + NAMES, self._table.buckets), dtype=np.uint32)
            self._connection.start()
            self._connection.send(encode_names(verb, self._place, numbers, NAMES).data)
            reply = self._connection.reply()
            if isinstance(reply, RedisError):
                raise reply
            yield reply

    def _expect_ok(self, replies: int) -> None:
        for _ in range(replies):
            reply = self._connection.reply()
            if isinstance(reply, RedisError):
                # Redis may still store what was sent after the refused command. Wait for that, so that it cannot happen
                # after somebody has removed the rest.
                with contextlib.suppress(RedisError):
                    self._connection.settle()
                self._connection.close()
                raise reply
