"""RequestLog: every request with its answer, one JSON line each, for `sparsefleet replay`.

A request never waits for the disk: lines queue up to a bound in bytes; lines beyond it are left out and counted. The
file has a bound too: a full one is renamed to `FILE.1` (replacing the one before), and a new one is begun.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import BinaryIO

from sparsefleet.core.errors import ConfigError
from sparsefleet.serving.metrics import Metrics

UNLOGGED = b"no"
"""Of the header x-log: the request is not for the log. `replay` says so, or it would push the originals out."""
QUEUE_BYTES = 64 << 20
IDLE_SECONDS = 60.0
"""How often the writing thread wakes while there is nothing to write."""


class RequestLog:
    def __init__(self, path: str, max_bytes: int, metrics: Metrics, tell: Callable[[str], None]) -> None:
        self._path, self._max_bytes, self._metrics, self._tell = path, max_bytes, metrics, tell
        try:
            self._file: BinaryIO | None = open(path, "ab")  # noqa: SIM115  (open as long as the server runs)
        except OSError as error:
            raise ConfigError(f"cannot log requests to {path}: {error.strerror or error}") from error
        self._size = os.fstat(self._file.fileno()).st_size
        self._lines: deque[bytes] = deque()
        self._waiting = 0
        self._changed = threading.Condition()
        self._closing = self._failed = False
        self._thread = threading.Thread(target=self._work, name="request-log", daemon=True)
        self._thread.start()

    def add(self, answer: bytes, body: bytes) -> None:
        """`answer`: {"version": …, "scores": …} as it is sent; `body`: a JSON request that was understood."""
        # Line ends are white space between JSON's tokens, and within a text they are escaped.
        request = body.strip().replace(b"\n", b" ").replace(b"\r", b" ")
        if not request.startswith(b"{") or b"\0" in request:  # another encoding than UTF-8
            self._metrics.logged("dropped")
            return
        line = b'%b, "time": %.3f, "request": %b}\n' % (answer[:-1], time.time(), request)
        with self._changed:
            fits = self._waiting + len(line) <= QUEUE_BYTES and not self._closing
            if fits:
                self._lines.append(line)
                self._waiting += len(line)
                self._changed.notify()
        if not fits:
            self._metrics.logged("dropped")

    def close(self) -> None:
        """Write the lines that wait, then end."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout=10)

    def _work(self) -> None:
        while lines := self._next():
            try:
                self._write(lines)
                self._metrics.logged("written", len(lines))
                self._failed = False
            except OSError as error:
                self._metrics.logged("dropped", len(lines))
                if not self._failed:  # say it once, until writing works again
                    self._tell(f"cannot log requests to {self._path}: {error.strerror or error}; they are left out")
                self._failed = True
        if self._file is not None:
            self._file.close()

    def _next(self) -> list[bytes]:
        """All lines that wait; empty when the log is closed."""
        with self._changed:
            while not self._lines and not self._closing:
                self._changed.wait(IDLE_SECONDS)
            lines = list(self._lines)
            self._lines.clear()
            self._waiting = 0
        return lines

    def _write(self, lines: list[bytes]) -> None:
        for line in lines:
            if self._size and self._size + len(line) > self._max_bytes:
                self._rotate()
            if self._file is None:
                self._file = open(self._path, "ab")  # noqa: SIM115
                self._size = os.fstat(self._file.fileno()).st_size
            self._file.write(line)
            self._size += len(line)
        if self._file is not None:
            self._file.flush()

    def _rotate(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        os.replace(self._path, self._path + ".1")
        self._size = 0
