"""A bundle's rows in Redis, read without a cache; and the version that is current there."""

from __future__ import annotations

from dataclasses import replace

from sparsefleet.export.bundle import Bundle
from sparsefleet.serving.redis import RedisAddress, RedisSource
from sparsefleet.serving.redis.catalog import Catalog
from sparsefleet.serving.redis.connection import Connection
from sparsefleet.serving.redis.record import VersionRecord
from sparsefleet.serving.redis.tables import TableBuckets
from sparsefleet.serving.source import NotPublishedError
from sparsefleet.verify.places import RowsPlace
from sparsefleet.verify.settings import Settings


class RedisPlace:
    """A Redis that cannot be reached raises; one that does not hold the bundle is a finding: `refused` says why."""

    def __init__(self, bundle: Bundle, url: str, timeout: float) -> None:
        self.address = replace(RedisAddress.parse(url), timeout=timeout, cache_mb=0.0)
        self._connection = Connection(self.address)
        self.rows: RowsPlace | None = None
        self.refused = ""
        self._source: RedisSource | None = None
        try:
            catalog = Catalog(self._connection)
            pointer = catalog.pointer()
            self._current = catalog.record(pointer.current) if pointer.current else None
            self._source = RedisSource(bundle, self.address)
            self.rows = RowsPlace(self._source, self._count)
        except NotPublishedError as error:
            self.refused = str(error)
        except BaseException:
            self.close()
            raise

    def settings(self) -> Settings:
        """Of the version that is current, which need not be the bundle's."""
        current = self._current
        if current is None:
            return {"version": {"version": None, "id": None}}
        return {
            "version": {"version": current.name, "id": current.id},
            "row types": {table.name: table.dtype for table in current.tables},
            "files": dict(current.files),
        }

    def close(self) -> None:
        self._connection.close()
        if self._source is not None:
            self._source.close()

    def _count(self, table: str) -> int:
        """Count the rows that Redis holds, not those that the record claims: reads every bucket."""
        assert self._source is not None
        record: VersionRecord = self._source.record
        index = next(number for number, entry in enumerate(record.tables) if entry.name == table)
        buckets = TableBuckets(self._connection, record, index)
        return sum(len(keys) for keys, _ in buckets.read())
