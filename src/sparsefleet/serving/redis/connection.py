"""Connection: one connection to Redis, its protocol (RESP2), its time-outs, and what its errors mean.

Why not redis-py: rows go straight between the socket and arrays here, without a Python object for each. An MGET of
2,600 packed rows takes redis-py 13 times our processor time, and 3.7 times with hiredis (benchmarks/clients.md). And
one deadline bounds a whole exchange, where redis-py bounds each read of the socket.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import ssl
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from sparsefleet.export.kernels.bundle_rows import U8
from sparsefleet.serving.redis.address import PASSWORD, RedisAddress
from sparsefleet.serving.source import SourceError

BUFFER = 256 << 10
MAX_VALUE = 64 << 20
"""The longest value that we read; a longer one is not ours."""

Word = bytes | str | int

_ADVICE = {
    "NOAUTH": f"it wants a password: give one in the URL or as {PASSWORD}",
    "WRONGPASS": f"it does not take this user and password; they come from the URL, or {PASSWORD}",
    "NOPERM": "its access rules do not allow this user what is needed",
    "OOM": "it is out of memory: raise its maxmemory, or remove something",
    "READONLY": "it is a replica, which takes no writes: publish to its primary",
    "MOVED": "it is a Redis Cluster, which is not supported: use a standalone Redis or a primary with replicas",
    "CROSSSLOT": "it is a Redis Cluster, which is not supported: use a standalone Redis or a primary with replicas",
    "CLUSTERDOWN": "it is a Redis Cluster, which is not supported: use a standalone Redis or a primary with replicas",
    "LOADING": "it is still loading its data; try again in a moment",
    "BUSY": "it is busy with a script; try again in a moment",
    "MISCONF": "it cannot save to its disk and takes no writes until it can",
    "WRONGTYPE": "there is something else under the names that rows would have: choose another prefix",
}


class RedisError(SourceError):
    """Redis is not there, does not answer in time, or refuses. `code` is the first word of a refusal."""

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class Connection:
    """For one thread at a time. Any error except a refusal closes it."""

    def __init__(self, address: RedisAddress, timeout: float | None = None) -> None:
        self.address = address
        self._timeout = timeout or address.timeout
        self._received: U8 = np.empty(BUFFER, np.uint8)
        self._begin = self._end = 0
        self._deadline = time.monotonic() + self._timeout
        self._socket: socket.socket | None = None
        try:
            self._socket = self._open()
        except OSError as error:
            raise self._unreachable(error) from error
        try:
            self._introduce()
        except BaseException:
            self.close()
            raise

    # -- commands ----------------------------------------------------------------------------------------------------

    def command(self, *words: Word) -> Any:
        """The reply: bytes, int, None or a list of these. A refusal raises."""
        return self.pipeline([words])[0]

    def pipeline(self, commands: Sequence[Sequence[Word]]) -> list[Any]:
        """All replies. If one is a refusal, the first refusal raises after all have come."""
        self.start()
        self.send(b"".join(_resp(words) for words in commands))
        replies = [self.reply() for _ in commands]
        for reply in replies:
            if isinstance(reply, RedisError):
                raise reply
        return replies

    def start(self, timeout: float | None = None) -> None:
        """Set one deadline for everything up to the next `start`."""
        self._deadline = time.monotonic() + (timeout or self._timeout)

    def send(self, data: Any) -> None:
        view = memoryview(data)
        try:
            self._connected().settimeout(self._left())
            self._connected().sendall(view)
        except OSError as error:
            raise self._lost(error) from error

    def reply(self) -> Any:
        """The next reply; a refusal is returned as RedisError."""
        line = self._line()
        kind, rest = line[:1], line[1:]
        if kind == b"+":
            return rest
        if kind == b"-":
            return self.refusal(rest)
        try:
            number = int(rest)
        except ValueError:
            raise self._garbled() from None
        if kind == b":":
            return number
        if kind == b"$":
            return None if number == -1 else self._value(number)
        if kind == b"*" and number <= 1 << 20:
            return None if number == -1 else [self.reply() for _ in range(number)]
        raise self._garbled()

    def settle(self) -> None:
        """Wait until Redis has done all that was sent here, and drop the replies that nobody has read."""
        token = secrets.token_hex(8).encode()
        self.start()
        self.send(_resp(("ECHO", token)))
        while self.reply() != token:
            pass

    def close(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.close()
            self._socket = None

    # -- received bytes, for callers that parse replies themselves ----------------------------------------------------

    @property
    def received(self) -> tuple[U8, int, int]:
        """The buffer, and the begin and end of the bytes in it that are not consumed yet."""
        return self._received, self._begin, self._end

    def consume(self, count: int) -> None:
        self._begin += count

    @property
    def descriptor(self) -> int:
        """Of the socket, for callers that receive into the buffer themselves; -1 where its bytes are encrypted."""
        return -1 if self.address.tls else self._connected().fileno()

    def seconds_left(self) -> float:
        """Of this exchange; 0 where its time is up."""
        return max(0.0, self._deadline - time.monotonic())

    def received_up_to(self, begin: int, end: int, error: int) -> None:
        """What a caller that received itself has left in the buffer, and the errno that it met."""
        self._begin, self._end = begin, end
        if error:
            raise self._lost(OSError(error, os.strerror(error)))

    def receive(self) -> None:
        """Wait for more bytes."""
        if self._begin == self._end:
            self._begin = self._end = 0
        elif self._end == len(self._received):
            left = self._received[self._begin : self._end]
            if len(left) > MAX_VALUE:
                raise self._garbled()
            # If the buffer is half empty, move the rest to its front; else a value is longer than the buffer.
            room = self._received if 2 * len(left) <= len(self._received) else np.empty(2 * len(left), np.uint8)
            room[: len(left)] = left
            self._received, self._begin, self._end = room, 0, len(left)
        try:
            connected = self._connected()
            connected.settimeout(self._left())
            count = connected.recv_into(self._received[self._end :].data)
        except OSError as error:
            raise self._lost(error) from error
        if not count:
            raise self._lost(ConnectionResetError("it closed the connection"))
        self._end += count

    def refusal(self, text: bytes) -> RedisError:
        said = text.decode("utf-8", "replace")
        code = said.partition(" ")[0]
        advice = _ADVICE.get(code)
        where = self.address.shown
        return RedisError(f"Redis at {where}: {advice} ({said})" if advice else f"Redis at {where} says: {said}", code)

    # -- details -----------------------------------------------------------------------------------------------------

    def _open(self) -> socket.socket:
        address = self.address
        opened = socket.create_connection((address.host, address.port), timeout=self._left())
        try:
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if address.tls:
                return ssl.create_default_context().wrap_socket(opened, server_hostname=address.host)
        except BaseException:
            opened.close()
            raise
        return opened

    def _introduce(self) -> None:
        address = self.address
        commands: list[tuple[Word, ...]] = []
        if address.password:
            commands.append(("AUTH", address.user, address.password) if address.user else ("AUTH", address.password))
        if address.db:
            commands.append(("SELECT", address.db))
        if commands:
            self.pipeline(commands)

    def _line(self) -> bytes:
        while True:
            data, begin, end = self.received
            raw = data[begin:end].tobytes() if end - begin < 1024 else data[begin : begin + 1024].tobytes()
            line, found, _ = raw.partition(b"\r\n")
            if found:
                self.consume(len(line) + 2)
                return line
            if len(raw) == 1024:
                raise self._garbled()
            self.receive()

    def _value(self, size: int) -> bytes:
        if not 0 <= size <= MAX_VALUE:
            raise self._garbled()
        while self._end - self._begin < size + 2:
            self.receive()
        value = self._received[self._begin : self._begin + size].tobytes()
        self.consume(size + 2)
        return value

    def _left(self) -> float:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    def _connected(self) -> socket.socket:
        if self._socket is None:
            raise ConnectionResetError("the connection is closed")
        return self._socket

    def _unreachable(self, error: OSError) -> RedisError:
        why = "it did not answer in time" if isinstance(error, TimeoutError) else (error.strerror or str(error))
        return RedisError(f"cannot reach Redis at {self.address.shown}: {why}; is it running, and is this its address?")

    def _lost(self, error: OSError) -> RedisError:
        self.close()
        if isinstance(error, TimeoutError):
            return RedisError(f"Redis at {self.address.shown} did not answer in time", "TIMEOUT")
        return RedisError(f"the connection to Redis at {self.address.shown} broke: {error.strerror or error}", "LOST")

    def _garbled(self) -> RedisError:
        self.close()
        return RedisError(f"{self.address.shown} does not answer as Redis does; is this its address?", "GARBLED")


def _resp(words: Sequence[Word]) -> bytes:
    raw = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(raw) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in raw)
