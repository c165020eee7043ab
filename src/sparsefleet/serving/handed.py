"""HandedConnection: uvicorn's connection, with the bounds that all of our connections have (`connections.py`)."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from sparsefleet.serving.http import Service
from sparsefleet.serving.log import tell_seldom


class HandedConnection(HttpToolsProtocol):
    def __init__(self, service: Service, **given: Any) -> None:
        super().__init__(**given)
        self._service, self.peer = service, ""
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.peer = self.client[0] if self.client else "a local socket"

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        self._service.connections.closed(self)
        super().connection_lost(exc)

    def close_idle(self) -> None:
        self.transport.abort()

    # -- what the parser tells -----------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._stop_head_timer()
        self._head_timer = self.loop.call_later(self._service.config.header_timeout, self._no_head)

    def on_headers_complete(self) -> None:
        self._stop_head_timer()
        self._service.connections.became_busy(self)
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle is None or self.cycle.response_complete:  # else a request that came early is under way
            self._service.connections.became_idle(self)

    def _no_head(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            return  # the head is of a request that was sent ahead; the one before it is under way
        seconds = self._service.config.header_timeout
        tell_seldom("no head", f"the head of a request from {self.peer} did not come within {seconds:g} seconds")
        self.transport.close()

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
