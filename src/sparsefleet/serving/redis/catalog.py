"""Catalog: which versions Redis holds under a prefix, and which of them is current."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sparsefleet.core.errors import BundleError
from sparsefleet.serving.redis.connection import Connection, RedisError
from sparsefleet.serving.redis.record import MARK, Names, VersionRecord

TAG = re.compile(r"[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class Pointer:
    """Tags of versions; None if there is none."""

    current: str | None = None
    previous: str | None = None

    def __contains__(self, tag: str) -> bool:
        return tag in (self.current, self.previous)


class Catalog:
    def __init__(self, connection: Connection) -> None:
        self.connection, self.names = connection, Names(connection.address.prefix)

    def pointer(self) -> Pointer:
        try:
            found = self.connection.command("HMGET", self.names.pointer, "format", "current", "previous")
        except RedisError as error:
            raise self._foreign(self.names.pointer, "no hash") if error.code == "WRONGTYPE" else error from None
        mark, current, previous = (_text(value) for value in found)
        if mark is None and current is None:
            if self.connection.command("EXISTS", self.names.pointer):
                raise self._foreign(self.names.pointer, "a hash without a format")
            return Pointer()
        if mark != MARK:
            raise self._foreign(self.names.pointer, f"of format {mark!r:.60}, this release has {MARK!r}")
        for value in (current, previous):
            if value is not None and not TAG.fullmatch(value):
                raise self._foreign(self.names.pointer, f"to {value!r:.60}, which is no version's tag")
        return Pointer(current, previous)

    def tags(self) -> set[str]:
        """Of all versions that Redis may hold something of."""
        try:
            found = self.connection.command("SMEMBERS", self.names.versions)
        except RedisError as error:
            raise self._foreign(self.names.versions, "no set") if error.code == "WRONGTYPE" else error from None
        tags = {value.decode("utf-8", "replace") for value in found}
        for value in tags:
            if not TAG.fullmatch(value):
                raise self._foreign(self.names.versions, f"with {value!r:.60} in it, which is no version's tag")
        return tags

    def record(self, tag: str) -> VersionRecord | None:
        """A version's record; None if there is none. A record that makes no sense raises BundleError."""
        name = self.names.record(tag)
        try:
            raw = self.connection.command("GET", name)
        except RedisError as error:
            raise self._foreign(name, "no string") if error.code == "WRONGTYPE" else error from None
        return None if raw is None else VersionRecord.from_json(raw, f"{self.connection.address.shown}, {name}")

    def _foreign(self, name: str, what: str) -> BundleError:
        return BundleError(
            f"{self.connection.address.shown}: {name} is not of ours: {what}; something else has this prefix: choose "
            "another (--prefix, or ?prefix= in the URL)"
        )


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "replace")
