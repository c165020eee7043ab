"""RedisSource: rows from Redis, one round trip a request, with a bounded cache of hot rows in this process.

Rows of a version never change, so what is cached stays right for as long as the source lives. While Redis is away,
requests whose rows are all cached are answered, others get a SourceError at once; a new connection is tried after a
short pause, then longer ones.

Legend: U keys asked for, M those of them that are fetched, D values a row.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from sparsefleet.core.batch import F32, I64, U64
from sparsefleet.export.bundle import Bundle
from sparsefleet.export.kernels.bundle_rows import U8, Found
from sparsefleet.serving.kernels.redis_rows import (
    BucketPlace,
    ReplyStatus,
    RowCache,
    bucket_numbers,
    decode_rows,
    encode_names,
    receive_buckets,
)
from sparsefleet.serving.kernels.request import PlainRequests
from sparsefleet.serving.kernels.tower import BodiesScored, NetworkPlan, RedisNetwork, RedisTable
from sparsefleet.serving.redis.address import RedisAddress
from sparsefleet.serving.redis.catalog import Catalog
from sparsefleet.serving.redis.connection import Connection, RedisError
from sparsefleet.serving.redis.record import Names, TableRecord, VersionRecord, tag
from sparsefleet.serving.source import BodyScorer, NotPublishedError, SparseSource

NAMES = 4096
"""The most names in one HMGET or MGET: Redis serves nobody else until it is done."""
MERGED_KEYS = 64
"""Requests that wait are merged where one of them fetches so many keys, on average. Of fewer the exchange costs little,
and scored one by one they keep all threads busy."""
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
"""Seconds after a failure in which no request tries Redis again; each failure doubles the pause."""


NO_KEYS: U64 = np.empty(0, np.uint64)


class _Table:
    """One table: where its buckets are in Redis, and the cache of its rows."""

    def __init__(
        self, record: TableRecord, place: BucketPlace, cache_bytes: int, hot_keys: U64, hot_hash: bytes
    ) -> None:
        self.record, self.place, self.hot_keys, self.hot_hash = record, place, hot_keys, hot_hash
        self.cache = RowCache(record.stride, cache_bytes)


@dataclass(slots=True)
class _Networks:
    now: RedisNetwork
    without_hot: Callable[[], RedisNetwork]


class _Asked:
    """The keys of one table in one request, and what is known of their rows so far."""

    def __init__(self, table: _Table, keys: U64, cached: bool = True) -> None:
        self.table, self.keys = table, keys
        self.packed: U8
        self.found: U8
        self.missing: I64
        if cached:
            self.packed, self.found, self.missing = table.cache.get(keys)
        else:
            self.packed = np.zeros((len(keys), table.record.stride), np.uint8)
            self.found, self.missing = np.zeros(len(keys), np.uint8), np.arange(len(keys))

    def command(self) -> U8:
        record = self.table.record
        numbers = bucket_numbers(self.keys[self.missing], record.seed, record.bits)
        return encode_names(self.table.place.get, self.table.place, numbers, NAMES)

    def keep(self) -> None:
        self.table.cache.put(self.keys, self.missing, self.packed, self.found)

    def rows(self) -> tuple[F32, Found]:
        record = self.table.record
        return decode_rows(self.packed, self.found, record.dim, record.type), self.found.view(np.bool_)


class RedisSource(SparseSource):
    def __init__(self, bundle: Bundle, address: RedisAddress | str) -> None:
        """NotPublishedError: Redis does not hold all of this bundle's rows. RedisError: Redis cannot be reached."""
        self.address = RedisAddress.parse(address) if isinstance(address, str) else address
        self._version = bundle.name
        self._lock = threading.Lock()
        self._free: list[Connection] = []
        self._closed = False
        self._pause, self._retry_at = FIRST_PAUSE, 0.0
        self._failure: tuple[str, str] | None = None
        """Message and code of the last exchange's error. Not the error itself: its traceback holds all frames that it
        passed through, and they hold the request, this source and the whole version long after it was retired."""
        self._hits = self._misses = self._trips = self._errors = 0
        self._fetched = 0.0
        """Keys of a plain request that were not cached: a moving mean."""
        connection = Connection(self.address)
        try:
            self.record = published_record(connection, bundle)
        except BaseException:
            connection.close()
            raise
        self._give_back(connection)
        self._tables = self._plan(self.record, bundle)

    def rows(self, table: str, keys: U64) -> tuple[F32, Found]:
        return self.fetch([(table, keys)])[0]

    def probe(self, asked: Sequence[tuple[str, U64]]) -> list[tuple[F32, Found]]:
        parts = [_Asked(self._tables[table], keys, cached=False) for table, keys in asked]
        if any(len(part.missing) for part in parts):
            self._round_trip([part for part in parts if len(part.missing)])
        return [part.rows() for part in parts]

    def fetch(self, asked: Sequence[tuple[str, U64]]) -> list[tuple[F32, Found]]:
        parts = [_Asked(self._tables[table], keys) for table, keys in asked]
        missing = [part for part in parts if len(part.missing)]
        fetched = sum(len(part.missing) for part in missing)
        if missing:
            self._round_trip(missing)
            for part in missing:
                part.keep()
        with self._lock:
            self._hits += sum(len(part.keys) for part in parts) - fetched
            self._misses += fetched
        return [part.rows() for part in parts]

    def body_scorer(self, plan: NetworkPlan) -> BodyScorer | None:
        if self.address.tls:  # the kernel reads what comes from the socket as it is
            return None
        return partial(self._score_bodies, _Networks(self._network(plan, True), partial(self._network, plan, False)))

    def _network(self, plan: NetworkPlan, hot: bool) -> RedisNetwork:
        tables = []
        for name, _, _ in plan.tables:
            table = self._tables[name]
            record, keys = table.record, table.hot_keys if hot else table.hot_keys[:0]
            packing = (record.seed, record.bits, record.dim, record.stride, record.type)
            tables.append(RedisTable(table.cache, *packing, table.place, keys, table.hot_hash))
        return RedisNetwork(plan, tables, NAMES)

    @property
    def merges(self) -> bool:
        return self._fetched >= MERGED_KEYS

    def stats(self) -> Mapping[str, Any]:
        caches = [table.cache for table in self._tables.values()]
        with self._lock:
            return {
                "cache_hits": self._hits,
                "cache_misses": self._misses,
                "cache_rows": sum(len(cache) for cache in caches),
                "cache_capacity": sum(cache.capacity for cache in caches),
                "round_trips": self._trips,
                "errors": self._errors,
                "reachable": self._failure is None,
            }

    def close(self) -> None:
        with self._lock:
            self._closed, free, self._free = True, self._free, []
        for connection in free:
            connection.close()

    def _score_bodies(
        self, networks: _Networks, requests: PlainRequests, bodies: Sequence[bytes], most: Sequence[int]
    ) -> BodiesScored | None:
        """In one exchange over an idle connection. What fails goes the long way, which tells why; no time-out is waited
        for twice."""
        with self._lock:
            connection = self._free.pop() if self._free and self._failure is None else None
        if connection is None:
            return None
        try:
            connection.start(self.address.timeout)
            data, begin, end = connection.received
            found = networks.now.score_bodies(
                requests, bodies, most, connection.descriptor, connection.seconds_left(), data, (begin, end)
            )
            connection.received_up_to(found.begin, found.end, found.error)
        except RedisError as error:  # it is closed
            if error.code != "TIMEOUT":
                return None
            self._failed(error)  # whoever asked has waited long enough
            raise
        except BaseException:
            connection.close()
            raise
        if found.status != ReplyStatus.DONE:
            if found.hot_failed:  # somebody has removed them: from now on every row comes from its bucket
                networks.now = networks.without_hot()
            connection.close()
            return None
        self._give_back(connection, answered=found.fetched > 0)
        with self._lock:
            self._hits += found.scored.keys - found.fetched
            self._misses += found.fetched
            self._trips += found.fetched > 0
            self._fetched += (found.fetched / len(bodies) - self._fetched) / 16
        return found.scored

    # -- details -----------------------------------------------------------------------------------------------------

    def _plan(self, record: VersionRecord, bundle: Bundle) -> dict[str, _Table]:
        names, total = Names(self.address.prefix), sum(table.rows * table.stride for table in record.tables)
        limit = int(self.address.cache_mb * 1e6)
        return {
            # The cache is divided in proportion to the bytes of the tables' rows.
            table.name: _Table(
                table,
                names.buckets(record.tag, index, record.layout),
                limit * table.rows * table.stride // max(total, 1),
                bundle.hot.get(table.name, NO_KEYS)[: table.hot],
                names.hot(record.tag, index),
            )
            for index, table in enumerate(record.tables)
        }

    def _round_trip(self, parts: list[_Asked]) -> None:
        with self._lock:
            if self._failure is not None:
                if time.monotonic() < self._retry_at:
                    raise RedisError(*self._failure)
                # This request tries; until it has succeeded or timed out, the others fail at once.
                self._retry_at = time.monotonic() + 2 * self.address.timeout
            reused = self._free.pop() if self._free else None
        try:
            try:
                connection = self._exchange(reused or Connection(self.address), parts)
            except RedisError as error:
                # An idle connection may be to a Redis that has since restarted. Reading twice does no harm.
                if reused is None or error.code != "LOST":
                    raise
                self._drop_idle()
                connection = self._exchange(Connection(self.address), parts)
        except RedisError as error:
            self._failed(error)
            raise
        self._give_back(connection)

    def _exchange(self, connection: Connection, parts: list[_Asked]) -> Connection:
        """Send all commands, then read all replies. An error closes the connection."""
        try:
            connection.start(self.address.timeout)
            commands = [part.command() for part in parts]
            connection.send((commands[0] if len(commands) == 1 else np.concatenate(commands)).data)
            for part in parts:
                self._read(connection, part)
        except BaseException:
            connection.close()
            raise
        with self._lock:
            self._trips += 1
        return connection

    def _read(self, connection: Connection, part: _Asked) -> None:
        answered = 0
        while True:
            data, begin, end = connection.received
            # Natively until all is there: a reply comes in pieces, and with each a thread would wait for the GIL anew.
            read = receive_buckets(
                connection.descriptor,
                connection.seconds_left(),
                data,
                (begin, end),
                part.keys,
                part.missing,
                NAMES,
                answered,
                part.packed,
                part.found,
            )
            connection.received_up_to(read.begin, read.end, read.error)
            answered = read.answered
            if read.status == ReplyStatus.DONE:
                return
            if read.status != ReplyStatus.MORE:
                raise self._refused(connection, part, ReplyStatus(read.status), answered)
            connection.receive()

    def _refused(self, connection: Connection, part: _Asked, status: ReplyStatus, answered: int) -> RedisError:
        if status is ReplyStatus.REFUSED:
            reply = connection.reply()
            return reply if isinstance(reply, RedisError) else RedisError(f"{self.address.shown}: {reply!r:.80}")
        record = part.table.record
        key = int(part.keys[part.missing[answered]])
        if status is ReplyStatus.ABSENT:
            return RedisError(
                f"rows of version {self._version} are no longer in Redis at {self.address.shown} (table "
                f"{record.name!r}, key {key}): the version was removed, evicted, or Redis lost its data; publish it "
                "again, or switch to a version that is there",
                "ABSENT",
            )
        return RedisError(
            f"Redis at {self.address.shown} holds something that is no bucket of rows of table {record.name!r} (key "
            f"{key}, wanted is a multiple of {8 + record.stride} bytes): something else wrote there; publish version "
            f"{self._version} under another prefix",
            "MISSHAPEN",
        )

    def _give_back(self, connection: Connection, answered: bool = True) -> None:
        """`answered`: Redis has just answered there."""
        with self._lock:
            if answered:
                self._failure, self._pause = None, FIRST_PAUSE
            if not self._closed:
                self._free.append(connection)
                return
        connection.close()

    def _failed(self, error: RedisError) -> None:
        with self._lock:
            self._errors += 1
            if error.code in ("ABSENT", "MISSHAPEN", "WRONGTYPE"):
                self._failure, self._pause = None, FIRST_PAUSE  # Redis answers, and its other rows may be right
                return
            self._failure, self._retry_at = (str(error), error.code), time.monotonic() + self._pause
            self._pause = min(2 * self._pause, LONGEST_PAUSE)

    def _drop_idle(self) -> None:
        with self._lock:
            free, self._free = self._free, []
        for connection in free:
            connection.close()


def published_record(connection: Connection, bundle: Bundle) -> VersionRecord:
    """The record of a bundle's rows, if all of them are there."""
    address = connection.address
    record = Catalog(connection).record(tag(bundle.manifest.id))
    reason = "it is not published there" if record is None else record.difference(bundle)
    if record is None or reason:
        raise NotPublishedError(
            f"{bundle.path}: rows of version {bundle.name} cannot be read from {address.shown}, prefix "
            f"{address.prefix!r}: {reason}; sparsefleet publish {bundle.path} {address.shown} --prefix {address.prefix}"
        )
    return record
