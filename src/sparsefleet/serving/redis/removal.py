"""Removes a version piece by piece, so that Redis can answer others in between."""

from __future__ import annotations

from collections.abc import Callable

from sparsefleet.serving.redis.catalog import Catalog
from sparsefleet.serving.redis.record import VersionRecord
from sparsefleet.serving.redis.tables import TableBuckets


def remove_version(catalog: Catalog, tag: str, record: VersionRecord | None, step: Callable[[], None]) -> None:
    """Remove everything, the tag last: the next publish finds and completes an interrupted removal."""
    connection, names = catalog.connection, catalog.names
    if record is None:
        _by_name(catalog, tag, step)
    else:
        connection.command("SET", names.record(tag), record.as_state("removing").to_json(), "XX")
        for index in range(len(record.tables)):
            TableBuckets(connection, record, index).remove(step)
    connection.pipeline([("DEL", names.record(tag)), ("SREM", names.versions, tag)])


def _by_name(catalog: Catalog, tag: str, step: Callable[[], None]) -> None:
    """Walk over all names of the database: slow, and only for a version without a readable record."""
    connection, cursor = catalog.connection, b"0"
    pattern = catalog.names.record(tag) + ":*"  # a prefix has no character that means something in a pattern
    while True:
        cursor, found = connection.command("SCAN", cursor, "MATCH", pattern, "COUNT", 5000)
        if found:
            connection.command("UNLINK", *found)
        step()
        if cursor == b"0":
            return
