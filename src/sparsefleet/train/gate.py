"""Gate: lets one training thread do something while all others stand still between two steps."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Gate:
    """Open: threads pass for the price of a look at a flag. Closed: they wait, and the one that closed it is alone."""

    def __init__(self, members: int) -> None:
        self._members = members
        self._waiting = 0
        self._closed = False
        self._changed = threading.Condition()

    def pass_through(self) -> None:
        """Called by every member between two steps."""
        if self._closed:
            with self._changed:
                self._wait_until_open()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Inside, no other member is within a step. Members that have left do not count."""
        with self._changed:
            self._wait_until_open()
            self._closed = True
            self._changed.wait_for(lambda: self._waiting == self._members - 1)
        try:
            yield
        finally:
            with self._changed:
                self._closed = False
                self._changed.notify_all()

    def leave(self) -> None:
        """This member has no more steps to make."""
        with self._changed:
            self._members -= 1
            self._changed.notify_all()

    def _wait_until_open(self) -> None:
        self._waiting += 1
        self._changed.notify_all()
        self._changed.wait_for(lambda: not self._closed)
        self._waiting -= 1
