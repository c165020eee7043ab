"""Gate: every record passes it on its way to the tables; it holds records off while a cut is named."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from sparsefleet.core.errors import StoreError

OnWait = Callable[[str], None]
"""Called about once a second by whoever waits, with what is waited for; tells the client that the server is alive."""

SLICE = 1.0
"""Seconds between two such calls."""


class Ticket(Protocol):
    """A caller's step, as far as the gate looks at it: whose, and which of that caller's."""

    @property
    def key(self) -> str: ...

    @property
    def sequence(self) -> int: ...


def never_over(owner: str) -> bool:
    return False


class Gate:
    """Open; or held: nobody passes but records that another server has applied already (`let_through`).

    A hold belongs to its owner. It ends with the owner's life, and at its deadline unless it is renewed.
    """

    def __init__(self, is_over: Callable[[str], bool] = never_over) -> None:
        """`is_over`: whether the life that holds the gate has ended, and so will never open it."""
        self._is_over = is_over
        self._changed = threading.Condition()
        self._inside = 0
        self._waiting = 0
        self._owner: str | None = None
        self._deadline = 0.0
        self._let_through: Mapping[str, int] = {}
        self.passed = 0
        """Records that have passed, ever: the number of the last one."""

    @property
    def waiting(self) -> int:
        return self._waiting

    def enter(self, tickets: Sequence[Ticket], on_wait: OnWait) -> int:
        """Return the record's number once it may be applied; `leave` must follow."""
        with self._changed:
            if self._owner is None:
                self._inside += 1
                self.passed += 1
                return self.passed
        told = time.monotonic()
        while True:
            with self._changed:
                if self._passes(tickets):
                    self._inside += 1
                    self.passed += 1
                    return self.passed
                self._waiting += 1
                self._changed.wait(min(SLICE, max(0.01, self._deadline - time.monotonic())))
                self._waiting -= 1
            if time.monotonic() - told >= SLICE:
                told = time.monotonic()
                on_wait("a checkpoint is being cut")

    def leave(self) -> None:
        with self._changed:
            self._inside -= 1
            if self._owner is not None:
                self._changed.notify_all()

    # --- the owner

    def hold(self, owner: str, seconds: float | None, patience: float) -> None:
        """Hold all records off, and wait for those that are being applied. Without `seconds`, until it is opened."""
        with self._changed:
            self._expire()
            if self._owner not in (None, owner):
                raise StoreError("another checkpoint is being saved right now; wait for it")
            self._owner, self._let_through = owner, {}
            self._deadline = math.inf if seconds is None else time.monotonic() + seconds
            if not self._changed.wait_for(lambda: self._inside == 0, patience):
                self._open()
                raise StoreError(
                    f"pushes under way did not end within {patience:g} s, so no moment could be named: save again"
                )

    def renew(self, owner: str, seconds: float) -> bool:
        """Hold on for so many seconds from now; False where this owner does not hold the gate."""
        with self._changed:
            self._expire()
            if self._owner == owner:
                self._deadline = time.monotonic() + seconds
            return self._owner == owner

    def let_through(self, owner: str, steps: Mapping[str, int], reached: Callable[[], bool], patience: float) -> None:
        """Let steps of these callers through, up to the given ones, until they are applied."""
        with self._changed:
            self._mine(owner)
            self._let_through = dict(steps)
            self._changed.notify_all()
            done = self._changed.wait_for(lambda: self._inside == 0 and reached(), patience)
            self._let_through = {}
            if not done:
                raise StoreError(
                    f"a push that other servers have applied did not come here within {patience:g} s: no moment is the "
                    "same on all servers. Did a trainer die? Save again"
                )

    def open(self, owner: str) -> None:
        """Let everybody on, if the gate is this owner's."""
        with self._changed:
            if self._owner == owner:
                self._open()

    def check(self, owner: str) -> None:
        """Raise unless this owner holds the gate."""
        with self._changed:
            self._mine(owner)

    # --- with `_changed` held

    def _passes(self, tickets: Sequence[Ticket]) -> bool:
        self._expire()
        return self._owner is None or any(
            self._let_through.get(ticket.key, -1) >= ticket.sequence for ticket in tickets
        )

    def _expire(self) -> None:
        if self._owner is None or self._deadline == math.inf:
            return
        if time.monotonic() >= self._deadline or self._is_over(self._owner):
            self._open()

    def _open(self) -> None:
        self._owner, self._let_through = None, {}
        self._changed.notify_all()

    def _mine(self, owner: str) -> None:
        self._expire()
        if self._owner != owner:
            raise StoreError(
                "this server is held for that checkpoint no longer (it was not renewed in time, or is another's); "
                "save again"
            )
