"""Gate: lets one training thread do something while no other is within a step."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Gate:
    """Every step is made inside. A thread that waits for input is outside, and nobody waits for it."""

    def __init__(self) -> None:
        self._inside = 0
        self._closed = False
        self._changed = threading.Condition()

    @contextmanager
    def step(self) -> Iterator[None]:
        """One step; waits while somebody is alone."""
        with self._changed:
            self._changed.wait_for(lambda: not self._closed)
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Called at the end of a step. Inside, no other thread is within one; those that ask too come one by one."""
        with self._changed:
            self._inside -= 1  # this one's step is done: others that want to be alone need not wait for it
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._closed)
            self._closed = True
            self._changed.wait_for(lambda: not self._inside)
        try:
            yield
        finally:
            with self._changed:
                self._closed = False
                self._inside += 1
                self._changed.notify_all()

    @property
    def quiet(self) -> bool:
        """Nobody is within a step, nor alone."""
        with self._changed:
            return not self._inside and not self._closed

    def wait_until_quiet(self, seconds: float) -> bool:
        """Wait so long for steps under way to end; however long for somebody who is alone (a save)."""
        with self._changed:
            while self._closed or self._inside:
                if not self._changed.wait_for(lambda: not self._closed and not self._inside, seconds):
                    if self._closed:
                        continue
                    return False
            return True
