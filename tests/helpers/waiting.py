"""Waiting for what happens, in tests."""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")


def wait_until(condition: Callable[[], Found], seconds: float, what: str | Callable[[], str]) -> Found:
    """Return what the condition gives as soon as that counts as true; fail the test when it never does.

    seconds: generous. It bounds a test that would hang; one that passes does not wait for it.
    what: what is waited for; or a function that says it, with all that helps to see why it does not come.
    """
    deadline, pause = time.monotonic() + seconds, 0.001
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() >= deadline:
            raise AssertionError(f"waited {seconds:g} s in vain for {what if isinstance(what, str) else what()}")
        time.sleep(pause)
        pause = min(0.05, 2 * pause)


def stands_waiting(thread: threading.Thread) -> bool:
    """Whether the thread stands still until another lets it go on: in a wait of `threading`, or of a queue."""
    # Python 3.11 holds a lock of its own meanwhile, and stands still for ever where a collection of garbage then frees
    # something that needs it, a `threading.local` for instance (python/cpython#106883).
    collects = gc.isenabled()
    gc.disable()
    try:
        frame = sys._current_frames().get(thread.ident or 0)
    finally:
        if collects:
            gc.enable()
    return frame is not None and frame.f_code.co_filename == threading.__file__ and frame.f_code.co_name == "wait"
