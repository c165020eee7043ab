"""TlsListener: connections over TLS, bounded from the moment that they are taken and not only after their handshake.

asyncio's own server tells of a connection once its handshake is done. Whoever connects and sends nothing, or half of a
handshake, would hold an open file that no bound counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable

from sparsefleet.serving.config import ServeConfig
from sparsefleet.serving.connections import Connections
from sparsefleet.serving.log import tell_failure, tell_seldom

PAUSE_SECONDS = 0.1
"""Before the next try, where a connection could not be taken: there are no files left, say."""


class TlsListener:
    """In place of asyncio's server: made on the event loop, and takes connections until it is closed."""

    def __init__(
        self,
        listener: socket.socket,
        context: ssl.SSLContext,
        config: ServeConfig,
        connections: Connections,
        made: Callable[[], asyncio.Protocol],
    ) -> None:
        """`made`: makes what takes a connection over after its handshake."""
        listener.setblocking(False)
        self._listener, self._context, self._made = listener, context, made
        self._seconds, self._connections = config.header_timeout, connections
        self._handshakes: dict[asyncio.Task[None], _Handshake] = {}
        self._loop = asyncio.get_running_loop()
        self._taking = asyncio.create_task(self._take())

    def close(self) -> None:
        self._taking.cancel()
        for handshake in self._handshakes.values():
            handshake.close_idle()

    async def wait_closed(self) -> None:
        await asyncio.gather(self._taking, *self._handshakes, return_exceptions=True)

    async def _take(self) -> None:
        while True:
            try:
                raw, _ = await self._loop.sock_accept(self._listener)
                self._begin(raw)
            except OSError as error:
                tell_seldom("accept", f"cannot take a connection: {error}")
                await asyncio.sleep(PAUSE_SECONDS)
            except Exception as error:  # a bug of ours must not be the end of taking connections
                tell_failure(error)
                await asyncio.sleep(PAUSE_SECONDS)

    def _begin(self, raw: socket.socket) -> None:
        handshake = _Handshake(raw)
        if not self._connections.opened(handshake):
            raw.close()  # an answer in words would need a handshake
            return
        task = self._loop.create_task(self._shake_hands(handshake))
        self._handshakes[task] = handshake
        task.add_done_callback(self._handshakes.pop)

    async def _shake_hands(self, handshake: _Handshake) -> None:
        try:
            await self._loop.connect_accepted_socket(
                lambda: _AfterHandshake(self._connections, handshake, self._made),
                handshake.raw,
                ssl=self._context,
                ssl_handshake_timeout=self._seconds,
            )
        except ConnectionAbortedError:  # so both event loops tell that it took too long
            tell_seldom(
                "no handshake", f"the TLS handshake of {handshake.peer} did not come within {self._seconds:g} seconds"
            )
        except (OSError, ssl.CertificateError):
            pass  # whoever it was has gone, or does not speak TLS as we do
        except Exception as error:
            tell_failure(error)
        finally:
            self._connections.closed(handshake)


class _Handshake:
    """A connection before the end of its handshake: one that can be told to go."""

    def __init__(self, raw: socket.socket) -> None:
        self.raw, self.peer = raw, "somebody"
        with contextlib.suppress(OSError):  # it has gone already
            self.peer = str(raw.getpeername()[0])

    def close_idle(self) -> None:
        with contextlib.suppress(OSError):
            self.raw.shutdown(socket.SHUT_RDWR)  # the handshake finds its end


class _AfterHandshake(asyncio.Protocol):
    """Gives the place of a handshake to the connection itself."""

    def __init__(self, connections: Connections, handshake: _Handshake, made: Callable[[], asyncio.Protocol]) -> None:
        self._connections, self._handshake, self._made = connections, handshake, made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._connections.closed(self._handshake)
        connection = self._made()
        transport.set_protocol(connection)
        connection.connection_made(transport)
