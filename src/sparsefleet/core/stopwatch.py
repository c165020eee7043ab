"""Where a thread's time goes: whoever does a part of a step says when it is done with it.

A thread that nobody watches takes no time: the marks find no stopwatch and return.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager


class Stopwatch:
    """Seconds by part; of one thread."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._since = time.perf_counter()

    def lap(self, part: str) -> None:
        now = time.perf_counter()
        self.seconds[part] += now - self._since
        self._since = now


class _Mine(threading.local):
    stopwatch: Stopwatch | None = None  # a default in the class: one that is missing would raise at every mark


_mine = _Mine()


def watch_this_thread() -> Stopwatch:
    """From now on the marks of this thread go to the stopwatch returned."""
    made: Stopwatch = Stopwatch()
    _mine.stopwatch = made
    return made


def lap(part: str) -> None:
    """All that has passed since this thread's last mark went into this part."""
    if _mine.stopwatch is not None:
        _mine.stopwatch.lap(part)


@contextmanager
def lapped(before: str, inside: str) -> Iterator[None]:
    """What has passed until here went into one part, what passes inside goes into another."""
    lap(before)
    try:
        yield
    finally:
        lap(inside)
