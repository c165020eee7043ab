"""Connections: how many there are, whose, and which of them have no request under way.

A connection that waits for the head of a request costs an open file and nothing else, so a client could take them all
without ever asking for anything. Two bounds keep room for those who do ask: one for all connections, below the limit of
open files, and one for the idle connections of each address. Beyond either, the connection that has been idle longest
is closed to make room.
"""

from __future__ import annotations

import resource
from typing import Protocol

from sparsefleet.serving.log import tell, tell_seldom

KEEP_ALIVE = 75
"""Seconds that a connection may be without a request, over HTTP and gRPC."""
SPARE_FILES = 64
"""Open files that are not connections of clients: rows, logs, Redis, the library's own."""


class Idle(Protocol):
    """A connection that can be told to go."""

    peer: str

    def close_idle(self) -> None: ...


class Connections:
    """Lives on the event loop."""

    def __init__(self, limit: int, idle_per_client: int) -> None:
        """`limit`: 0 is what the limit of open files allows, and no other is above that."""
        files = open_files(limit + SPARE_FILES)
        room = max(1, files - SPARE_FILES)
        if limit > room:
            tell(
                f"at most {room} connections may be open, not {limit} (--max-connections): the limit of open files is "
                f"{files}, and cannot be raised from here. For more: ulimit -n {limit + SPARE_FILES} (LimitNOFILE= of "
                "systemd)"
            )
        self.limit = min(limit or room, room)
        self._idle_per_client = idle_per_client
        self._open: set[Idle] = set()
        # Dicts keep the order in which connections became idle.
        self._idle: dict[Idle, None] = {}
        self._of_client: dict[str, dict[Idle, None]] = {}

    def __len__(self) -> int:
        return len(self._open)

    @property
    def idle(self) -> int:
        return len(self._idle)

    def opened(self, connection: Idle) -> bool:
        """False: there is no room, and nobody to close for it."""
        if len(self._open) >= self.limit:
            oldest = next(iter(self._idle), None)
            text = (
                f"{len(self._open)} connections are open, as many as may be (--max-connections, or the limit of files)"
            )
            if oldest is None:
                tell_seldom("no room", f"{text}; all have requests under way, so one from {connection.peer} is refused")
                return False
            tell_seldom("no room", f"{text}; the one that was idle longest, from {oldest.peer}, is closed")
            oldest.close_idle()
            self.closed(oldest)
        self._open.add(connection)
        self.became_idle(connection)
        return True

    def became_idle(self, connection: Idle) -> None:
        if connection not in self._open:
            return
        self._idle[connection] = None
        others = self._of_client.setdefault(connection.peer, {})
        others[connection] = None
        if len(others) > self._idle_per_client:
            oldest = next(iter(others))
            tell_seldom(
                "idle",
                f"{connection.peer} holds more than {self._idle_per_client} connections without a request "
                "(--client-connections); the oldest is closed",
            )
            oldest.close_idle()
            self.closed(oldest)

    def became_busy(self, connection: Idle) -> None:
        self._idle.pop(connection, None)
        others = self._of_client.get(connection.peer)
        if others is not None:
            others.pop(connection, None)
            if not others:
                del self._of_client[connection.peer]

    def closed(self, connection: Idle) -> None:
        self.became_busy(connection)
        self._open.discard(connection)

    def handed_over(self, old: Idle, new: Idle) -> None:
        """The same connection goes on as another object, with a request under way."""
        self.closed(old)
        self._open.add(new)


def open_files(needed: int = 0) -> int:
    """The limit of open files, raised as far as the system lets us: to 65,536 or what is needed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = max(needed, 1 << 16)
    wanted = min(hard, most) if hard != resource.RLIM_INFINITY else most
    if soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
        except (OSError, ValueError):
            return soft
    return soft
