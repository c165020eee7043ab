"""PublishLock: one publisher at a time under a prefix."""

from __future__ import annotations

import contextlib
import os
import socket
import time
import uuid
from collections.abc import Sequence

from sparsefleet.core.errors import SparseFleetError
from sparsefleet.serving.redis.connection import Connection, RedisError, Word
from sparsefleet.serving.redis.record import Names

EXPIRES_MS = 30_000
"""How long a publisher that was killed keeps others out."""
RENEW_SECONDS = 5.0


class PublishLockError(SparseFleetError):
    """Somebody else publishes under this prefix."""


class PublishLock:
    """Held from construction to `release`, if `renew` is called at least every few seconds."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._name = connection, Names(connection.address.prefix).lock
        self._mine = f"{socket.gethostname()}, process {os.getpid()} {uuid.uuid4().hex}".encode()
        if connection.command("SET", self._name, self._mine, "NX", "PX", EXPIRES_MS) is None:
            holder, left = connection.pipeline([("GET", self._name), ("PTTL", self._name)])
            raise PublishLockError(
                f"{connection.address.shown}: {_who(holder)} publishes under the prefix "
                f"{connection.address.prefix!r} at the moment; try again when it is done. If it was killed, its lock "
                f"ends in {max(0, left) / 1000:.0f} s"
            )
        self._renewed = time.monotonic()

    def renew(self) -> None:
        """Call it between two steps. Mostly it only looks at the clock."""
        if time.monotonic() - self._renewed < RENEW_SECONDS:
            return
        holder, _ = self._connection.pipeline([("GET", self._name), ("PEXPIRE", self._name, EXPIRES_MS)])
        if holder != self._mine:
            raise self._lost(holder)
        self._renewed = time.monotonic()

    def transaction(self, *commands: Sequence[Word]) -> None:
        """Run all commands at one moment at which the lock is still ours, or none of them."""
        _, holder = self._connection.pipeline([("WATCH", self._name), ("GET", self._name)])
        if holder != self._mine:
            raise self._lost(holder)
        done = self._connection.pipeline([("MULTI",), *commands, ("EXEC",)])[-1]
        if done is None:
            raise self._lost(self._connection.command("GET", self._name))
        for reply in done:
            if isinstance(reply, RedisError):
                raise reply

    def release(self) -> None:
        """Never raises: a lock that is not released expires soon."""
        with contextlib.suppress(SparseFleetError):
            self.transaction(("DEL", self._name))

    def _lost(self, holder: bytes | None) -> PublishLockError:
        return PublishLockError(
            f"{self._connection.address.shown}: the lock {self._name} was lost to {_who(holder)} after a pause of more "
            f"than {EXPIRES_MS // 1000} s; nothing was switched. Publish again"
        )


def _who(holder: bytes | None) -> str:
    return holder.decode("utf-8", "replace").rpartition(" ")[0] if holder else "nobody"
