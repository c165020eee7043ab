"""publish: write a bundle's rows to Redis; servers see them only when all are there. FORMAT.md describes the steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from sparsefleet.core.errors import BundleError, ConfigError, SparseFleetError
from sparsefleet.export.bundle import Bundle
from sparsefleet.serving.redis.address import RedisAddress
from sparsefleet.serving.redis.catalog import Catalog, Pointer
from sparsefleet.serving.redis.connection import Connection, RedisError
from sparsefleet.serving.redis.lock import PublishLock
from sparsefleet.serving.redis.record import MARK, TableRecord, VersionRecord
from sparsefleet.serving.redis.removal import remove_version
from sparsefleet.serving.redis.tables import TableBuckets

TIMEOUT = 30.0
"""Seconds that Redis may take for one megabyte: it may be forking, or swapping."""

Progress = Callable[[int, int | None], None]


@dataclass(frozen=True, slots=True)
class Published:
    version: str
    id: str
    previous: str | None
    """The version to roll back to."""
    removed: tuple[str, ...]
    """Tags of older versions, and of what interrupted publishes left behind."""
    written: bool
    """False: the rows were there already; at most, the version became current again."""
    rows: int
    bytes: int
    """Sent."""
    seconds: float
    """Writing and counting; 0 where nothing was written."""
    warning: str | None = None


def publish(
    bundle: Bundle, address: RedisAddress, *, progress: Progress | None = None, timeout: float = TIMEOUT
) -> Published:
    """Write a bundle's rows and make them current. The version that was current stays, for roll-back."""
    with _locked(address, timeout) as (catalog, lock):
        return _Publisher(bundle, catalog, lock, progress or (lambda done, total: None), timeout).run()


def roll_back(address: RedisAddress, *, timeout: float = TIMEOUT) -> Published:
    """Make the previous version current; doing it again returns to this one."""
    with _locked(address, timeout) as (catalog, lock):
        before = catalog.pointer()
        if before.previous is None:
            raise BundleError(f"{address.shown}: there is no previous version under the prefix {address.prefix!r}")
        record = catalog.record(before.previous)
        if record is None or record.state != "complete":
            raise BundleError(
                f"{address.shown}: the previous version {before.previous} is not complete; publish its bundle again"
            )
        _switch(catalog, lock, record, before.current)
        previous = catalog.record(before.current) if before.current else None
        rows = sum(table.rows for table in record.tables)
        return Published(record.name, record.id, previous.name if previous else None, (), False, rows, 0, 0.0)


@contextmanager
def _locked(address: RedisAddress, timeout: float) -> Iterator[tuple[Catalog, PublishLock]]:
    if not timeout > 0:
        raise ConfigError(f"timeout={timeout} must be above 0")
    connection = Connection(address, timeout)
    try:
        catalog = Catalog(connection)
        catalog.pointer()  # raises, before anything is written, if the prefix belongs to something else
        lock = PublishLock(connection)
        try:
            yield catalog, lock
        finally:
            lock.release()
    finally:
        connection.close()


def _switch(catalog: Catalog, lock: PublishLock, record: VersionRecord, previous: str | None) -> None:
    """Make `record` current, for all readers at one moment."""
    names = catalog.names
    old = ("HSET", names.pointer, "previous", previous) if previous else ("HDEL", names.pointer, "previous")
    lock.transaction(
        ("SET", names.record(record.tag), record.as_state("complete").to_json()),
        ("HSET", names.pointer, "format", MARK, "current", record.tag),
        old,
    )


class _Publisher:
    """`catalog` and `lock` have their own connection, so that their commands do not queue behind rows."""

    def __init__(self, bundle: Bundle, catalog: Catalog, lock: PublishLock, progress: Progress, timeout: float) -> None:
        self._bundle, self._catalog, self._lock = bundle, catalog, lock
        self._progress, self._timeout = progress, timeout
        self._address = catalog.connection.address
        self._record = VersionRecord.of(bundle, datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
        self._rows = sum(table.rows for table in self._record.tables)

    def run(self) -> Published:
        before, tag = self._catalog.pointer(), self._record.tag
        removed = self._remove_all_but(before.current, before.previous, tag)
        complete = self._is_complete()
        sent, started = 0, time.monotonic()
        if not complete:
            sent = self._write()
        seconds = 0.0 if complete else time.monotonic() - started
        after = before if before.current == tag else Pointer(tag, before.current)
        if after != before or not complete:
            _switch(self._catalog, self._lock, self._record, after.previous)
        removed += self._remove_all_but(after.current, after.previous)
        previous = self._catalog.record(after.previous) if after.previous else None
        return Published(
            version=self._record.name,
            id=self._record.id,
            previous=previous.name if previous else None,
            removed=tuple(removed),
            written=not complete,
            rows=self._rows,
            bytes=sent,
            seconds=seconds,
            warning=self._warning(),
        )

    def _is_complete(self) -> bool:
        found = self._catalog.record(self._record.tag)
        if found is None:
            return False
        if found.id != self._record.id:
            raise BundleError(
                f"{self._address.shown}: bundle {found.id} has the tag {found.tag} of this one ({self._record.id}); "
                "export with another --name"
            )
        if found.state != "complete":
            if found.layout != self._record.layout or found.tables != self._record.tables:
                # Another release began it, with other names: they would stay there for ever.
                remove_version(self._catalog, found.tag, found, self._lock.renew)
            return False
        difference = found.difference(self._bundle)
        if difference:
            # Overwriting it while servers read it would mix two models.
            raise BundleError(
                f"{self._address.shown}: version {found.name} is published already, and {difference}: one of the two "
                "was changed after its export. Export anew with another --name"
            )
        # If buckets were evicted or deleted, all are written again, where servers that have it open look for them.
        self._record = replace(found, state="writing", published=self._record.published)
        return all(
            table.buckets == rows.count() and rows.hot_wanted == rows.hot_values()
            for table, rows in self._tables(found, self._catalog.connection)
        )

    def _write(self) -> int:
        record, names, done = self._record, self._catalog.names, 0
        # The tag comes first: after an interruption, the next publisher finds by it what is to be removed.
        self._lock.transaction(
            ("HSET", names.pointer, "format", MARK),
            ("SADD", names.versions, record.tag),
            ("SET", names.record(record.tag), record.to_json()),
        )

        def step(rows: int) -> None:
            nonlocal done
            done += rows
            self._progress(done, self._rows)
            self._lock.renew()

        connection = Connection(self._address, self._timeout)
        try:
            tables, sent = self._tables(record, connection), 0
            for table, rows in tables:
                sent += rows.write(self._bundle.tables[table.name], step)
                if table.hot:
                    sent += rows.write_hot(self._bundle.tables[table.name], self._bundle.hot[table.name])
            for table, rows in tables:
                self._check_count(table, rows.count())
                self._lock.renew()
            return sent
        except RedisError as error:
            if error.code == "OOM":  # others need the memory too: remove what was written now, not at the next publish
                remove_version(self._catalog, record.tag, record, self._lock.renew)
            raise
        finally:
            connection.close()

    def _check_count(self, table: TableRecord, found: int) -> None:
        if found != table.buckets:
            raise RedisError(
                f"Redis at {self._address.shown} took {table.buckets} buckets of table {table.name!r} and holds "
                f"{found}: does it evict (maxmemory-policy), or does somebody delete? Nothing was switched"
            )

    def _remove_all_but(self, *kept: str | None) -> list[str]:
        gone = sorted(self._catalog.tags() - set(kept))
        for tag in gone:
            try:
                record = self._catalog.record(tag)
            except BundleError:  # a record of another release: its buckets are found by their names
                record = None
            remove_version(self._catalog, tag, record, self._lock.renew)
        return gone

    def _tables(self, record: VersionRecord, connection: Connection) -> list[tuple[TableRecord, TableBuckets]]:
        return [(table, TableBuckets(connection, record, index)) for index, table in enumerate(record.tables)]

    def _warning(self) -> str | None:
        try:
            lines = self._catalog.connection.command("INFO", "memory").decode("utf-8", "replace").splitlines()
        except SparseFleetError:  # access rules may forbid it
            return None
        facts = dict(line.split(":", 1) for line in lines if ":" in line)
        policy = facts.get("maxmemory_policy", "")
        if facts.get("maxmemory", "0") == "0" or not policy.startswith("allkeys"):
            return None
        return (
            f"Redis has maxmemory-policy {policy}: it may evict rows, and requests that need them are answered with "
            "503 until the version is published again; noeviction or a volatile-* policy keeps them"
        )
