"""Callers: a caller's own streams to all servers, with its own count of messages.

Every thread that calls a RemoteStore gets a caller of its own; a thread that ends gives it back for the next one. All
servers see the same number for the same push: that is how they agree on one moment when a checkpoint is cut.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from sparsefleet.core.errors import SparseFleetError, StoreError
from sparsefleet.core.stopwatch import lapped
from sparsefleet.store.remote.link import ServerLink
from sparsefleet.store.remote.packing import Memory
from sparsefleet.store.remote.stream import Call, Stream, Watchdog
from sparsefleet.store.wire import Frame
from sparsefleet.store.wire.frames import Bytes

T = TypeVar("T")

Message = tuple[Mapping[str, Any], Bytes, int]
"""Header, body, and about how many bytes the answer carries."""


class Joined(Generic[T]):
    """The Pending of a call to several servers. What `finish` returns holds copies, never a frame's own bytes."""

    __slots__ = ("_calls", "_error", "_finish", "_result", "_seconds")

    def __init__(self, calls: Sequence[Call], finish: Callable[[list[Frame]], T], seconds: float) -> None:
        self._calls, self._seconds = calls, seconds
        self._finish: Callable[[list[Frame]], T] | None = finish
        self._error: SparseFleetError | None = None
        self._result: T

    def wait(self, timeout: float | None = None) -> T:
        if self._error is not None:
            raise self._error
        if self._finish is not None:
            seconds = self._seconds if timeout is None else timeout
            until = None if timeout is None else time.monotonic() + timeout
            try:
                self._result = self._finish([call.wait(seconds, until) for call in self._calls])
            except SparseFleetError as error:
                self._error = error
                raise
            # Before the answers are let go of: interrupted there and waited for again, they would be read once more.
            calls, self._calls, self._finish = self._calls, (), None
            for call in calls:
                call.release()
        return self._result


GOODBYE_SECONDS = 1.0
"""For all streams of a store together to end in good order."""


class Caller:
    def __init__(self, links: Sequence[ServerLink], hello: Mapping[str, Any], number: int, watchdog: Watchdog) -> None:
        self._streams = [Stream(link, {**hello, "lane": number}, watchdog) for link in links]
        self._lock = threading.Lock()  # a caller is one thread's, but close() may come from another
        self._sequence = 0
        self.memory = Memory()

    def room(self, server: int, size: int) -> Bytes:
        """Bytes to fill and send to this server as a body."""
        with self._lock:
            return self._streams[server].room(size)

    def shares_memory(self, server: int) -> bool:
        """Whether large bodies reach this server past the network."""
        return self._streams[server].shares_memory

    def send(self, operation: str, messages: Mapping[int, Message], first: int = 0) -> list[Call]:
        """Send one call: a message to each of the given servers, all under the same number.

        first: how many of the messages are to arrive before the others are sent; these ask for a `receipt`.
        Ctrl-C on the way is raised when all servers have theirs, or will have it with the next call: a step that only
        some of them had would be in no checkpoint.
        """
        calls: list[Call] = []
        interrupt: KeyboardInterrupt | None = None
        with self._lock:
            self._sequence += 1
            for server, (header, body, answer_bytes) in messages.items():
                if first and len(calls) == first and interrupt is None:
                    interrupt = _wait_until_received(calls)
                try:
                    message = {**header, "seq": self._sequence}
                    calls.append(self._streams[server].send(operation, message, body, answer_bytes))
                except KeyboardInterrupt as error:
                    interrupt = error
        if interrupt is not None:
            raise interrupt
        return calls

    def close(self, deadline: float) -> None:
        for stream in self._streams:
            stream.close(deadline)


def _wait_until_received(calls: Sequence[Call]) -> KeyboardInterrupt | None:
    """Wait for all receipts. Ctrl-C ends that, and is raised once the rest has been sent.

    A fault of a server shows in its calls. That the job has ended, or an attempt of it, is raised here, and nothing
    more is sent.
    """
    try:
        with lapped("push", "waiting"):
            for call in calls:
                call.stream.wait_until_received(call, call.stream.link.config.timeout)
    except KeyboardInterrupt as error:
        return error
    return None


class _Holder:
    """Lives as long as its thread."""

    __slots__ = ("__weakref__", "caller")

    def __init__(self, caller: Caller) -> None:
        self.caller = caller


class Callers:
    """The callers of one store; `mine` is the calling thread's."""

    def __init__(self, links: Sequence[ServerLink], hello: Mapping[str, Any], timeout: float) -> None:
        self._links, self._hello = links, hello
        self._watchdog = Watchdog(timeout)
        self._local = threading.local()
        self._all: list[Caller] = []
        self._free: deque[Caller] = deque()
        self._lock = threading.Lock()
        self._closed = False

    def mine(self) -> Caller:
        holder: _Holder | None = getattr(self._local, "holder", None)
        if holder is None:
            holder = _Holder(self._take())
            weakref.finalize(holder, self._free.append, holder.caller).atexit = False
            self._local.holder = holder
        if self._closed:
            raise StoreError("the store is closed")
        return holder.caller

    def _take(self) -> Caller:
        with self._lock:
            try:
                return self._free.popleft()
            except IndexError:
                caller = Caller(self._links, self._hello, len(self._all), self._watchdog)
                self._all.append(caller)
                return caller

    def close(self) -> None:
        self._closed = True
        with self._lock:
            callers = list(self._all)
        deadline = time.monotonic() + GOODBYE_SECONDS
        for caller in callers:
            caller.close(deadline)
        self._watchdog.stop()
