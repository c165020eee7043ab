"""A polite end that a user, a scheduler or a parent process asks for."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


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


@contextmanager
def interrupts_held_off() -> Iterator[None]:
    """Ctrl-C, and SIGTERM where it is treated like that, wait until the block is done: it is short, and half of it
    would be wrong. The second one does not wait. Python interrupts the main thread alone: in others this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    known = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    handlers = {number: handler for number, handler in known.items() if callable(handler)}
    came: list[int] = []
    done = False

    def note(signum: int, frame: FrameType | None) -> None:
        came.append(signum)
        if done or len(came) > 1:
            handlers[signal.Signals(signum)](signum, frame)

    try:
        for number in handlers:
            signal.signal(number, note)
        yield
    finally:
        done = True
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if came:
        handlers[signal.Signals(came[0])](came[0], None)
