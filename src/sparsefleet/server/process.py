"""ParameterServer: one server from start to end: listens when built, `serve` blocks until it is told to stop."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

import pyarrow as pa

from sparsefleet.core.errors import StoreError
from sparsefleet.core.memory import keep_freed_memory
from sparsefleet.server.config import INCOMPLETE, ServerConfig
from sparsefleet.server.service import ParameterService
from sparsefleet.server.state import Hook, ServerState
from sparsefleet.store.wire.auth import open_to_all

log = logging.getLogger(__name__)

LOOK_EVERY = 0.25
FAILED = 1
"""Exit status where all trainers were lost."""


class ParameterServer:
    def __init__(self, config: ServerConfig, after_apply: Hook | None = None) -> None:
        self.config = config
        self._parent = os.getppid()
        self._stopping = threading.Event()
        self.status = 0
        """For the process to exit with, once `serve` has returned."""
        state = ServerState(config, after_apply)
        self._check_port()
        try:
            self._service = ParameterService(state)
        except (pa.ArrowException, OSError) as error:
            # The port is free, and of certificates Flight says no more than that it has failed.
            why = "tls_certificate and tls_key are not a certificate and its key (PEM)" if config.tls_key else error
            raise StoreError(f"server {config.index} cannot listen on {config.host}:{config.port}: {why}") from error
        log.info("server %d listens on %s", config.index, self.endpoint)

    def _check_port(self) -> None:
        """Flight says no more than that it has failed, among remarks of gRPC's on stderr."""
        host, port = self.config.host.strip("[]"), self.config.port
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            with socket.socket(family, kind, protocol) as probe:
                # As gRPC does: a launcher may hold the port for us.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
        except OSError as error:
            raise StoreError(
                f"server {self.config.index} cannot listen on {host}:{port}: {error.strerror or error}. Choose another "
                "address, or end the process that has it"
            ) from None

    @property
    def state(self) -> ServerState:
        """Of the present attempt."""
        return self._service.state

    @property
    def port(self) -> int:
        return int(self._service.port)

    @property
    def endpoint(self) -> str:
        return f"{self.config.host}:{self.port}"

    def serve(self) -> str:
        """Block until a signal, `stop` of all trainers, or (if asked) the parent's end; return which it was."""
        stopping, why = self._stopping, ["stop() was called"]

        def on_signal(number: int, frame: FrameType | None) -> None:
            why[0] = f"signal {signal.Signals(number).name}"
            stopping.set()

        main = threading.current_thread() is threading.main_thread()
        signals = (signal.SIGTERM, signal.SIGINT)
        before = {number: signal.signal(number, on_signal) for number in signals} if main else {}
        try:
            while not stopping.wait(LOOK_EVERY):
                # Meetings, where lost trainers are noticed, are on server 0.
                self.state.sessions.leave_out_silent("geo", self.state.geo.subscribers())
                if self.state.sessions.finished():
                    why[0] = "all trainers have stopped"
                    if unfinished := self.state.sessions.unfinished():
                        self.status = INCOMPLETE
                        why[0] += f", but for {', '.join(unfinished)}; rows that it had not trained are missing"
                    break
                if self.state.sessions.abandoned():
                    why[0], self.status = f"all trainers have been silent for {self.config.abandoned_after:g} s", FAILED
                    log.error("server %d gives up: %s", self.config.index, why[0])
                    break
                if self.config.watch_parent and os.getppid() != self._parent:
                    why[0] = "the process that started this server has ended"
                    break
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        level = logging.ERROR if self.status == INCOMPLETE else logging.INFO
        log.log(level, "server %d ends: %s", self.config.index, why[0])
        self.close()
        return why[0]

    def stop(self) -> None:
        """Make `serve` return; from any thread."""
        self._stopping.set()

    def close(self, grace: float = 2.0) -> bool:
        """Stop listening. False where streams were still open: Flight cannot cut them, only the process's end does."""
        self.state.tasks.close()
        thread = threading.Thread(target=self._service.shutdown, daemon=True)
        thread.start()
        thread.join(grace)
        return not thread.is_alive()


def run_server(
    config: ServerConfig, announce: Callable[[str], None] = lambda endpoint: None, after_apply: Hook | None = None
) -> NoReturn:
    """A server process's whole life: listen, tell where, serve. Ends the process, whatever streams are still open."""
    keep_freed_memory()
    server = ParameterServer(config, after_apply)
    if not config.token and not config.insecure:
        log.warning("%s", open_to_all(f"server {config.index}"))
    announce(server.endpoint)
    server.serve()
    logging.shutdown()
    os._exit(server.status)
