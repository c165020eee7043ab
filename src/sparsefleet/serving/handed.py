"""HandedConnection: uvicorn's connection, with the bounds that all of our connections have (`connections.py`)."""

from __future__ import annotations

import asyncio
from collections.abc import Sized
from typing import Any

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from sparsefleet.serving.http import Service
from sparsefleet.serving.log import tell_seldom

REQUESTS_AHEAD = 8
"""That a client may send ahead of an answer; while there are more, we do not read."""


class _Flow(FlowControl):
    """uvicorn reads on with every answer, and whenever it looks for the client's end: far ahead of what is answered."""

    def __init__(self, transport: asyncio.Transport, ahead: Sized) -> None:
        super().__init__(transport)
        self._ahead = ahead

    def resume_reading(self) -> None:
        if len(self._ahead) < REQUESTS_AHEAD:
            super().resume_reading()


class HandedConnection(HttpToolsProtocol):
    def __init__(self, service: Service, **given: Any) -> None:
        super().__init__(**given)
        self._service, self.peer = service, ""
        self._head_timer: asyncio.TimerHandle | None = None
        self._answer_timer: asyncio.TimerHandle | None = None
        """Runs while the client has an answer to take, and too much of it waits for that."""
        self._running: RequestResponseCycle | None = None
        """The request under way; `cycle` is the last one that came, which may have to wait for it."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = _Flow(transport, self.pipeline)
        self.peer = self.client[0] if self.client else "a local socket"

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        self._stop_answer_timer()
        self._service.connections.closed(self)
        super().connection_lost(exc)
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True  # uvicorn tells `cycle` alone; this one would go on, and write to nobody
            self._running.message_event.set()

    def close_idle(self) -> None:
        self.transport.abort()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start_answer_timer()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.transport.is_closing():
            self._stop_answer_timer()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._start_answer_timer()

    def send_400_response(self, msg: str) -> None:
        super().send_400_response(msg)
        self._start_answer_timer()

    # -- what the parser tells -----------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._stop_head_timer()
        self._head_timer = self.loop.call_later(self._service.config.header_timeout, self._no_head)

    def on_headers_complete(self) -> None:
        self._stop_head_timer()
        self._service.connections.became_busy(self)
        super().on_headers_complete()
        if not self.pipeline:
            self._running = self.cycle

    def on_response_complete(self) -> None:
        if self.pipeline:
            self._running = self.pipeline[-1][0]
        super().on_response_complete()
        if self.transport.is_closing():  # which waits for the client to take what was written
            self._start_answer_timer()
        if self.cycle is None or self.cycle.response_complete:  # else a request that came early is under way
            self._service.connections.became_idle(self)

    def _no_head(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            return  # the head is of a request that was sent ahead; the one before it is under way
        seconds = self._service.config.header_timeout
        tell_seldom("no head", f"the head of a request from {self.peer} did not come within {seconds:g} seconds")
        self.transport.close()
        self._start_answer_timer()

    def _not_taken(self) -> None:
        if self.flow.write_paused or self.transport.get_write_buffer_size():
            self._service.not_taken(self.peer)
        self.transport.abort()

    def _start_answer_timer(self) -> None:
        if self._answer_timer is None and self in self.connections:  # else it is lost already
            self._answer_timer = self.loop.call_later(self._service.config.answer_timeout, self._not_taken)

    def _stop_answer_timer(self) -> None:
        if self._answer_timer is not None:
            self._answer_timer.cancel()
            self._answer_timer = None

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
