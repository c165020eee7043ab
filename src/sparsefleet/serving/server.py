"""The server process: a socket, an event loop, signals."""

from __future__ import annotations

import asyncio
import faulthandler
import functools
import json
import signal
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, cast

import uvicorn

from sparsefleet.core.errors import ConfigError, SparseFleetError
from sparsefleet.serving.config import ServeConfig
from sparsefleet.serving.connections import KEEP_ALIVE
from sparsefleet.serving.handed import HandedConnection
from sparsefleet.serving.http import Service, application
from sparsefleet.serving.log import UVICORN, tell
from sparsefleet.serving.pointer import resolve
from sparsefleet.serving.protocol import PredictionConnection
from sparsefleet.serving.tls import TlsListener
from sparsefleet.serving.versions import open_predictor

if TYPE_CHECKING:
    from sparsefleet.serving.kserve.server import KServeServer

SWITCH_SECONDS = 0.0001
"""How long one thread may keep the interpreter while another waits for it. Python's 5 ms would show in every p99."""


class _Server(uvicorn.Server):
    """uvicorn, except that SIGTERM is a normal end: requests under way are answered, then the process exits with 0.

    Clients may be sending a request at this very moment, or connect for one: who routes to us hears late that we end.
    So for `linger` seconds after SIGTERM the server goes on as before, except that every answer says
    `Connection: close`. Ctrl-C ends that wait, or leaves it out: a person at a terminal routes nothing. A second one
    does not wait for requests under way either.
    """

    def __init__(self, settings: uvicorn.Config, about: dict[str, Any]) -> None:
        """`about`: told on stdout, in a line of JSON, once the server listens."""
        super().__init__(settings)
        self._about, self._grpc = about, cast("KServeServer | None", None)
        self._hurried = False
        """Ctrl-C was pressed: nobody need wait for requests that may yet come."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        context = self.config.ssl
        await super().startup(sockets if context is None else [])
        if self.should_exit:
            return
        try:
            self._begin()
        except SparseFleetError:
            await super().shutdown(sockets)
            raise
        if context is not None:
            self._listen_over_tls(sockets or [], context)
        print(json.dumps(self._about), flush=True)

    def _listen_over_tls(self, sockets: list[socket.socket], context: ssl.SSLContext) -> None:
        service: Service = self.lifespan.state["service"]
        made = functools.partial(
            cast("Callable[..., asyncio.Protocol]", self.config.http_protocol_class),
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
            _loop=None,
        )
        listening = [TlsListener(one, context, service.config, service.connections, made) for one in sockets]
        self.servers.extend(cast("list[asyncio.base_events.Server]", listening))

    def _begin(self) -> None:
        if (refused := self.lifespan.state["refused"]) is not None:
            raise refused
        service: Service = self.lifespan.state["service"]
        if service.config.grpc_port is not None:
            from sparsefleet.serving.kserve.server import KServeServer

            self._grpc = KServeServer(service)
            self._about["grpc"] = f"{service.config.host}:{self._grpc.port}"

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        service: Service | None = self.lifespan.state.get("service")
        if service is not None and not self.force_exit:
            service.draining = True
            tell(f"told to end; {len(service.connections)} connections are open")
            until = time.monotonic() + service.config.linger
            # Also where nobody is connected for a moment: clients that were told to close come again.
            while time.monotonic() < until and not self._hurried:
                await asyncio.sleep(0.02)
        if self._grpc is not None:
            began = time.monotonic()
            await self._grpc.close(lambda: self.force_exit)
            if (whole := self.config.timeout_graceful_shutdown) is not None:
                # What is under way over HTTP has had that time, too: whoever kills us counts with it once.
                self.config.timeout_graceful_shutdown = max(1, round(whole - (time.monotonic() - began)))
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        def end(number: int, frame: FrameType | None) -> None:
            if number == signal.SIGINT:
                self.force_exit, self._hurried = self._hurried, True
            self.should_exit = True

        before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def serve(config: ServeConfig) -> None:
    """Serve until a signal comes. One JSON line on stdout says where the server listens."""
    faulthandler.enable()  # no signal of the processor ends the process without a word
    path, pointer = resolve(config.bundle)
    predictor = open_predictor(config, path)
    listener = _listen(config)
    host, port = listener.getsockname()[:2]
    scheme = "http" if config.tls_cert is None else "https"
    url = f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
    sys.setswitchinterval(SWITCH_SECONDS)
    settings = uvicorn.Config(
        application(config, predictor, pointer, path),
        http="httptools",
        ws="none",  # a connection that became another protocol would never be told of as closed
        ssl_certfile=config.tls_cert,
        ssl_keyfile=config.tls_key,
        log_config=UVICORN,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=max(1, round(config.drain_timeout)),
        timeout_keep_alive=KEEP_ALIVE,
    )
    _begin_connections_directly(settings)
    about = {"url": url, "version": predictor.version}
    del predictor  # the application's, until another version takes its place
    _Server(settings, about).run(sockets=[listener])


def _begin_connections_directly(settings: uvicorn.Config) -> None:
    """Let every connection begin as a `PredictionConnection`, which hands over to uvicorn's own kind."""
    settings.load()

    def connection(**given: Any) -> PredictionConnection:
        service, state = given["app_state"]["service"], given["server_state"]
        loop = given["_loop"] or asyncio.get_running_loop()
        return PredictionConnection(
            service, state, settings.timeout_keep_alive, loop, lambda: HandedConnection(service, **given)
        )

    settings.http_protocol_class = connection  # type: ignore[assignment]


def _listen(config: ServeConfig) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
        listener = socket.create_server((config.host, config.port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"cannot listen on {config.host}, port {config.port}: {error}") from error
    # Connections inherit this option; asyncio sets it only on sockets that it made itself. uvicorn writes head and body
    # of an answer one after the other, and without the option the body would wait 40 ms for the head's acknowledgement.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener
