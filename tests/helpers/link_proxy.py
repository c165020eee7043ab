"""LinkProxy: an address that leads to another, over a link that can be cut in one direction or both, and mended.

While it is cut, nothing is lost and nothing arrives, as with a cable that is pulled for a while: TCP sends again.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self


class LinkProxy:
    def __init__(self, endpoint: str) -> None:
        host, _, port = endpoint.rpartition(":")
        self._target = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._there, self._back = threading.Event(), threading.Event()
        self._closing = False
        self._sockets: list[socket.socket] = [self._listener]
        self._lock = threading.Lock()
        self.mend()
        self._start(self._accept)

    def cut(self, *, there: bool = True, back: bool = True) -> None:
        """there: from who connects to the target; back: the other way."""
        if there:
            self._there.clear()
        if back:
            self._back.clear()

    def mend(self) -> None:
        self._there.set()
        self._back.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._closing = True
        self.mend()
        with self._lock:
            for one in self._sockets:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
                one.close()

    def _accept(self) -> None:
        while not self._closing:
            try:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target, 10)
            except OSError:
                return
            for one in (near, far):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._sockets += [near, far]
            self._start(lambda near=near, far=far: self._pump(near, far, self._there))
            self._start(lambda near=near, far=far: self._pump(far, near, self._back))

    def _pump(self, source: socket.socket, to: socket.socket, open_: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                open_.wait()
                to.sendall(data)
            open_.wait()
        with contextlib.suppress(OSError):
            to.shutdown(socket.SHUT_WR)

    def _start(self, work: object) -> None:
        threading.Thread(target=work, daemon=True).start()  # type: ignore[arg-type]
