"""Stranger: whether another program has the address that a server is waited for at.

A server that cannot listen ends at once and says so; a trainer elsewhere only sees that somebody else is there. A
server of ours answers the opening of a connection as soon as it listens, however busy it is: gRPC's own threads do.
"""

from __future__ import annotations

import socket
import time

SILENT_SECONDS = 8.0
"""Who accepts connections and says nothing for so long is no server of ours, or one that stands stopped."""
LOOK_SECONDS = 1.0
_OPENING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0"
"""What an HTTP/2 client says first: the preface, and settings of none."""
_SETTINGS = 4
"""The kind of frame that an HTTP/2 server begins with."""


class Stranger:
    """Looked at again and again while a server is waited for."""

    def __init__(self, endpoint: str, *, tls: bool) -> None:
        host, _, port = endpoint.rpartition(":")
        self._address, self._tls = (host.strip("[]"), int(port)), tls
        self._silent_since: float | None = None

    def look(self) -> str | None:
        """Why waiting is in vain, in words; None where that cannot be seen (yet)."""
        if self._tls:  # whether it speaks TLS is looked at elsewhere (tls.py)
            return None
        answer = self._answer()
        if answer == b"":
            now = time.monotonic()
            since = self._silent_since = self._silent_since or now
            if now - since < SILENT_SECONDS:
                return None
            return (
                f"somebody listens there and has said nothing for {SILENT_SECONDS:g} s: another program has that "
                "address, or the server stands stopped. Look at the server's log; choose another address, or end "
                "that program"
            )
        self._silent_since = None
        if answer is None or (len(answer) >= 4 and answer[3] == _SETTINGS):
            return None
        return (
            f"another program has that address (it answers {answer[:40]!r}). Look at the server's log; choose another "
            "address, or end that program"
        )

    def like_ours(self) -> bool:
        """Whether who listens there speaks as a server of ours would; with TLS that is not looked at, and may be."""
        answer = self._answer()
        return self._tls or (answer is not None and len(answer) >= 4 and answer[3] == _SETTINGS)

    def _answer(self) -> bytes | None:
        """What the listener answers; nothing: it is silent. None: nobody is there, or nobody who can be looked at."""
        try:
            with socket.create_connection(self._address, LOOK_SECONDS) as connection:
                connection.settimeout(LOOK_SECONDS)
                connection.sendall(_OPENING)
                return connection.recv(64) or None  # it hangs up: perhaps it ends
        except TimeoutError:
            return b""
        except OSError:
            return None
