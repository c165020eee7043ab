"""Interrupts: the signals that ask the launcher to end, counted."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any, Self

BURST_SECONDS = 0.2
"""One request may come as several signals: from a closing terminal and its shell, from `timeout`, from a wrapper."""


class Interrupts:
    """Counts while it is open; in any thread but the main one it hears nothing."""

    def __init__(self) -> None:
        self.count = 0
        self.first: int | None = None
        """The first signal's number."""
        self._counted_at = 0.0
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                # What was ignored stays so: nohup means it, and so does a shell's "&".
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._handlers[number] = signal.signal(number, self._heard)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    @property
    def handed_on(self) -> signal.Signals:
        """What asks a worker to save and end. Children inherit that a signal is ignored, and would not notice it."""
        return signal.SIGINT if signal.SIGINT in self._handlers else signal.SIGTERM

    def _heard(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.first is None:
            self.first = number
        if not self.count or now - self._counted_at > BURST_SECONDS:
            self.count, self._counted_at = self.count + 1, now
