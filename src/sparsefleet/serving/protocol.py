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
from typing import Any, NamedTuple, Protocol

from sparsefleet.serving import arrow_body
from sparsefleet.serving.answers import Answer, HttpError, refusal
from sparsefleet.serving.direct import JSON, DirectRequest, most_samples
from sparsefleet.serving.http import LARGE_BODY, Service, seconds_of
from sparsefleet.serving.log import tell_seldom
from sparsefleet.serving.request_log import UNLOGGED

MAX_HEAD = 16 << 10
MAX_AHEAD = 64 << 10
"""Bytes that a client may send ahead of an answer; while there are more, we do not read."""

# Stricter than HTTP: what does not match goes to a parser that knows all of HTTP.
PLAIN = re.compile(rb"POST /v1/predict HTTP/1\.1(?:\r\n[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t\x20-\x7e\x80-\xff]*)+")
LENGTH = re.compile(rb"[0-9]{1,9}")
OTHERS = frozenset({b"transfer-encoding", b"expect", b"upgrade", b"te", b"trailer"})
ARROW = arrow_body.CONTENT_TYPE.encode()
STRANGE = re.compile(rb"[^A-Z]|[A-Z]+[^A-Z ]")
"""What no request begins with: a parser that knows all of HTTP should say so at once."""
JSON_BYTES = [(name.encode(), value.encode()) for name, value in JSON.items()]
_USUAL: list[Any] = [None, b""]
"""uvicorn's headers of this second, and with ours the bytes that they make: of nearly every answer."""
NO_ROOM = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nretry-after: 1\r\nconnection: close\r\n\r\n"


ONCE = frozenset({b"authorization", b"x-request-id", b"x-timeout-ms", b"x-log"})
"""Headers whose values are read here."""


class PlainHead(NamedTuple):
    length: int
    timeout: bytes = b""
    """The header x-timeout-ms."""
    authorization: bytes = b""
    request_id: bytes = b""
    """The header x-request-id, which is sent back."""
    logged: bool = True
    """False by the header x-log: no."""


def plain_head(head: bytes) -> PlainHead | None:
    """What matters of the head of a plain JSON prediction; None where it is another request."""
    if not PLAIN.fullmatch(head):
        return None
    length = None
    timeout = authorization = request_id = b""
    logged = True
    seen: set[bytes] = set()
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        name = name.lower()
        if name in ONCE:
            if name in seen:
                return None  # which of the two counts is for one place to say
            seen.add(name)
        if name == b"authorization":
            authorization = value.strip()
            continue
        if name == b"x-request-id":
            request_id = value.strip()
            continue
        value = value.lower()
        if name == b"x-timeout-ms":
            timeout = value.strip()
        elif name == b"x-log":
            logged = value.strip() != UNLOGGED
        elif name == b"content-length":
            if length is not None or not LENGTH.fullmatch(value.strip()):
                return None
            length = int(value)
        elif (
            name in OTHERS
            or (name == b"connection" and value.strip() != b"keep-alive")
            or (name == b"content-type" and value.partition(b";")[0].strip() == ARROW)
        ):
            return None
    return None if length is None else PlainHead(length, timeout, authorization, request_id, logged)


class ServerConnection(Protocol):
    """What uvicorn's server and we need of a connection."""

    peer: str

    def close_idle(self) -> None: ...
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
        self.peer = ""
        self._request: DirectRequest | None = None
        self._head = PlainHead(0)
        self._beginning = b""
        """Of a request whose head is not complete."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = self._due = 0.0
        """When the timer wakes us, and when it is time for `_then`: mostly later, see `_set_timer`."""
        self._then: Callable[[], None] | None = None
        self._chunks: list[bytes] = []
        """Of a request whose body is not complete: `_missing` bytes are to come, the body starts at `_start`."""
        self._missing = self._start = self._length = 0
        self._ahead = b""
        """Bytes that came after the request under way."""
        self._waiting = False
        """We have stopped reading: the client is too far ahead."""
        self._busy = self._choked = self._ending = self._heading = False

    # -- what the transport tells --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        peer = transport.get_extra_info("peername")
        self.peer = str(peer[0]) if peer else "a local socket"
        if not self._service.connections.opened(self):
            self._transport.write(NO_ROOM)
            self._transport.close()
            return
        self._state.connections.add(self)
        self._set_timer(self._keep_alive, self._close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._state.connections.discard(self)
        self._service.connections.closed(self)
        self._end_timer()
        if self._request is not None:
            self._service.direct.abandon(self._request)
            self._request = None

    def close_idle(self) -> None:
        self._state.connections.discard(self)
        self._end_timer()
        self._transport.abort()  # whoever fills our room gets no time to be told

    def data_received(self, data: bytes) -> None:
        if self._busy or self._choked:
            self._ahead += data
            if len(self._ahead) > MAX_AHEAD and not self._waiting:
                self._waiting = True
                self._transport.pause_reading()
            return
        self._take(data)

    def pause_writing(self) -> None:
        self._choked = True
        if not self._busy and not self._chunks and not self._beginning:  # else the answer to that request sees to it
            self._set_timer(self._service.config.answer_timeout, self._not_taken)

    def resume_writing(self) -> None:
        self._choked = False
        if not self._busy and not self._transport.is_closing():
            self._go_on()

    def shutdown(self) -> None:
        """Called when uvicorn's server ends. A request under way is answered first."""
        self._ending = True
        if not self._busy and not self._chunks and not self._beginning:
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
        if self._beginning:
            data, self._beginning = self._beginning + data, b""
        end = data.find(b"\r\n\r\n", 0, MAX_HEAD)
        if end < 0 and len(data) < MAX_HEAD and not STRANGE.match(data):
            if self._then is None or not self._heading:
                self._set_timer(self._service.config.header_timeout, self._no_head)
                self._heading = True
            self._beginning = data
            return
        self._heading = False
        head = plain_head(data[:end]) if end > 0 else None
        if head is None or head.length > min(LARGE_BODY, self._service.config.max_body):
            self._hand_over(data)
            return
        self._service.connections.became_busy(self)
        self._head, self._start, self._length = head, end + 4, head.length
        self._missing = self._start + head.length - len(data)
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
        try:
            self._service.allow(self._head.authorization)
            seconds = seconds_of(self._head.timeout, self._service.config.deadline)
        except HttpError as error:
            answer = refusal(error, self._service.versions.current.version)
            assert answer is not None
            self._service.metrics.answered("/v1/predict", answer[0], 0.0)
            self._loop.call_soon(self._answer, answer)
            return
        self._request = self._service.direct.ask(body, samples, seconds, self._answer, self._head.logged)
        self._set_timer(seconds, self._late)

    def _answer(self, answer: Answer) -> None:
        self._busy, self._request = False, None
        self._stop_timer()
        if self._transport.is_closing():
            return
        status, body, headers = answer
        self._ending |= headers.get("connection") == "close" or self._service.draining
        self._transport.write(self._head_bytes(status, len(body), headers) + body)
        if self._ending:
            self._close()
        elif not self._choked:
            self._go_on()
        else:
            self._set_timer(self._service.config.answer_timeout, self._not_taken)

    def _head_bytes(self, status: int, length: int, headers: dict[str, str]) -> bytes:
        given = self._state.default_headers  # uvicorn makes them anew every second
        if headers is JSON and status == 200 and not self._ending and not self._head.request_id:
            if _USUAL[0] is not given:
                _USUAL[:] = given, b"\r\n" + b"".join(b"%b: %b\r\n" % header for header in (*given, *JSON_BYTES))
            return b"HTTP/1.1 200 OK\r\ncontent-length: %d%b\r\n" % (length, _USUAL[1])
        lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-length: {length}\r\n".encode()]
        lines += [b"%b: %b\r\n" % header for header in given]
        lines += [f"{name}: {value}\r\n".encode() for name, value in headers.items()]
        lines += [b"x-request-id: %b\r\n" % self._head.request_id] if self._head.request_id else []
        lines += [b"connection: close\r\n"] if self._ending and "connection" not in headers else []
        return b"".join((*lines, b"\r\n"))

    def _go_on(self) -> None:
        if self._ahead:
            ahead, self._ahead = self._ahead, b""
            self._service.connections.became_idle(self)
            self._take(ahead)
        else:
            self._set_timer(self._keep_alive, self._close)
            self._service.connections.became_idle(self)
        if self._waiting and len(self._ahead) <= MAX_AHEAD:
            self._read_on()

    def _read_on(self) -> None:
        if self._waiting:
            self._waiting = False
            self._transport.resume_reading()

    def _close(self) -> None:
        """Once the client has taken what was written; for that it has the time of an answer."""
        self._transport.close()
        self._set_timer(self._service.config.answer_timeout, self._not_taken)

    def _hand_over(self, data: bytes) -> None:
        self._end_timer()
        self._read_on()
        self._state.connections.discard(self)
        other = self._other()
        self._service.connections.handed_over(self, other)
        self._transport.set_protocol(other)
        other.connection_made(self._transport)
        other.data_received(data)
        if self._ending:
            other.shutdown()

    # -- time-outs -----------------------------------------------------------------------------------------------------

    def _no_head(self) -> None:
        seconds = self._service.config.header_timeout
        tell_seldom("no head", f"the head of a request from {self.peer} did not come within {seconds:g} seconds")
        self._beginning, self._head = b"", PlainHead(0)
        self._answer(self._service.direct.too_slow(seconds, "head"))

    def _too_slow(self) -> None:
        seconds = self._service.config.body_timeout
        self._chunks = []
        self._answer(self._service.direct.too_slow(seconds))

    def _late(self) -> None:
        if self._request is not None:
            self._answer(self._service.direct.give_up(self._request))

    def _not_taken(self) -> None:
        if self._choked or self._transport.get_write_buffer_size():
            self._service.not_taken(self.peer)
        self._transport.abort()

    def _set_timer(self, seconds: float, what: Callable[[], None]) -> None:
        """In place of the one before. A request sets several, and nearly none is ever due: so the event loop gets a
        timer only where there is none that wakes us before."""
        self._due, self._then = self._loop.time() + seconds, what
        if self._timer is None or self._due < self._timer_at:
            self._wake_at(self._due)

    def _stop_timer(self) -> None:
        self._then = None

    def _end_timer(self) -> None:
        self._then = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wake_at(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at, self._timer = when, self._loop.call_at(when, self._woken)

    def _woken(self) -> None:
        self._timer, then = None, self._then
        if then is None:
            return
        if self._loop.time() < self._due:
            self._wake_at(self._due)
            return
        self._then = None
        then()
