"""PredictionConnection: the short way of a plain prediction from a socket to the scoring threads and back.

A web framework adds a third to the cost of scoring one prediction. So every connection begins here: a request that is
plainly a JSON prediction, short and with a content length, goes to the scoring threads as it came. The first request
that is anything else, right or wrong, moves the connection to uvicorn and the application, which answer everything,
predictions too; the connection stays there. So this file need not know HTTP's corners.

A connection has one request under way at a time: what a client sends before the answer waits its turn.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Protocol

from sparsefleet.serving import arrow_body
from sparsefleet.serving.answers import Answer
from sparsefleet.serving.direct import most_samples
from sparsefleet.serving.http import LARGE_BODY, Service

MAX_HEAD = 16 << 10
MAX_AHEAD = 64 << 10
"""Bytes that a client may send ahead of an answer; beyond them we stop reading until the answer is sent."""

# Stricter than HTTP: what does not match goes to a parser that knows all of HTTP.
PLAIN = re.compile(rb"POST /v1/predict HTTP/1\.1(?:\r\n[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t\x20-\x7e\x80-\xff]*)+")
LENGTH = re.compile(rb"[0-9]{1,9}")
OTHERS = frozenset({b"transfer-encoding", b"expect", b"upgrade", b"te", b"trailer"})
ARROW = arrow_body.CONTENT_TYPE.encode()


def plain_length(head: bytes) -> int | None:
    """The length of the body where this is the head of a plain JSON prediction; else None."""
    if not PLAIN.fullmatch(head):
        return None
    length = None
    for line in head.lower().split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name == b"content-length":
            if length is not None or not LENGTH.fullmatch(value.strip()):
                return None
            length = int(value)
        elif (
            name in OTHERS
            or (name == b"connection" and value.strip() != b"keep-alive")
            or (name == b"content-type" and value.partition(b";")[0].strip() == ARROW)
        ):
            return None
    return length


class ServerConnection(Protocol):
    """What uvicorn's server needs of a connection."""

    def connection_made(self, transport: asyncio.Transport) -> None: ...
    def data_received(self, data: bytes) -> None: ...
    def shutdown(self) -> None: ...


class PredictionConnection(asyncio.Protocol):
    """Lives on the event loop."""

    def __init__(
        self,
        service: Service,
        state: Any,
        keep_alive: float,
        loop: asyncio.AbstractEventLoop,
        other: Callable[[], ServerConnection],
    ) -> None:
        """`state`: uvicorn's `ServerState`. `other`: makes what takes over at the first other request."""
        self._service, self._state, self._keep_alive, self._loop, self._other = service, state, keep_alive, loop, other
        self._transport: Any = None
        self._timer: asyncio.TimerHandle | None = None
        self._chunks: list[bytes] = []
        """Of a request whose body is not complete: `_missing` bytes are to come, the body starts at `_start`."""
        self._missing = self._start = self._length = 0
        self._ahead = b""
        """Bytes that came after the request under way."""
        self._busy = self._choked = self._ending = False

    # -- what the transport tells --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._state.connections.add(self)
        self._set_timer(self._keep_alive, transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._state.connections.discard(self)
        self._stop_timer()

    def data_received(self, data: bytes) -> None:
        if self._busy or self._choked:
            self._ahead += data
            if len(self._ahead) > MAX_AHEAD:
                self._transport.pause_reading()
            return
        self._take(data)

    def pause_writing(self) -> None:
        self._choked = True

    def resume_writing(self) -> None:
        self._choked = False
        if not self._busy and not self._transport.is_closing():
            self._go_on()

    def shutdown(self) -> None:
        """Called when uvicorn's server ends. A request under way is answered first."""
        self._ending = True
        if not self._busy and not self._chunks:
            self._transport.close()

    # -- one request ---------------------------------------------------------------------------------------------------

    def _take(self, data: bytes) -> None:
        if self._chunks:
            self._chunks.append(data)
            self._missing -= len(data)
            if self._missing <= 0:
                data, self._chunks = b"".join(self._chunks), []
                self._ask(data)
            return
        end = data.find(b"\r\n\r\n", 0, MAX_HEAD)
        length = plain_length(data[:end]) if end > 0 else None
        if length is None or length > min(LARGE_BODY, self._service.config.max_body):
            self._hand_over(data)
            return
        self._start, self._length = end + 4, length
        self._missing = self._start + length - len(data)
        if self._missing <= 0:
            self._ask(data)
            return
        self._chunks = [data]
        self._set_timer(self._service.config.body_timeout, self._too_slow)

    def _ask(self, data: bytes) -> None:
        stop = self._start + self._length
        body = data[self._start : stop]
        samples = most_samples(body)
        if samples > self._service.config.batch_rows:  # only the application scores a request piece by piece
            self._hand_over(data)
            return
        self._stop_timer()
        self._busy, self._ahead = True, data[stop:]
        self._service.direct.ask(body, samples, self._answer)

    def _answer(self, answer: Answer) -> None:
        self._busy = False
        if self._transport.is_closing():
            return
        status, body, headers = answer
        self._ending |= headers.get("connection") == "close"
        lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-length: {len(body)}\r\n".encode()]
        lines += [b"%b: %b\r\n" % header for header in self._state.default_headers]
        lines += [f"{name}: {value}\r\n".encode() for name, value in headers.items()]
        lines += [b"connection: close\r\n"] if self._ending and "connection" not in headers else []
        self._transport.write(b"".join((*lines, b"\r\n", body)))
        if self._ending:
            self._transport.close()
        elif not self._choked:
            self._go_on()

    def _go_on(self) -> None:
        self._transport.resume_reading()
        if self._ahead:
            ahead, self._ahead = self._ahead, b""
            self._take(ahead)
        else:
            self._set_timer(self._keep_alive, self._transport.close)

    def _hand_over(self, data: bytes) -> None:
        self._stop_timer()
        self._state.connections.discard(self)
        other = self._other()
        self._transport.set_protocol(other)
        other.connection_made(self._transport)
        other.data_received(data)
        if self._ending:
            other.shutdown()

    # -- time-outs -----------------------------------------------------------------------------------------------------

    def _too_slow(self) -> None:
        seconds = self._service.config.body_timeout
        self._chunks = []
        self._answer(self._service.direct.too_slow(seconds))

    def _set_timer(self, seconds: float, what: Callable[[], None]) -> None:
        self._stop_timer()
        self._timer = self._loop.call_later(seconds, what)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
