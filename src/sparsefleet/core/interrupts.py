"""A polite end that a scheduler or a parent process asks for."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """SIGTERM is treated like Ctrl-C: stop between two steps, save if asked to. For the main thread."""

    import pyarrow as pa

    # Arrow takes signals for itself while it reads, and one that comes just before it is done would be lost.
    pa.enable_signal_handlers(False)

    def interrupt(signum: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
