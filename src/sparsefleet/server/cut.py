"""PushLane: what has been applied of one caller's pushes. CutGate: holds pushes off while a checkpoint is cut."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping

from sparsefleet.core.errors import StoreError

OnWait = Callable[[str], None]
"""Called about once a second by whoever waits, with what is waited for; tells the client that the server is alive."""

SLICE = 1.0


class PushLane:
    """Pushes of a lane come in the order of their numbers, perhaps more than once; `applied` was the last to count."""

    __slots__ = ("applied", "incarnation", "key", "lock", "number", "round", "steps", "worker")

    def __init__(self, worker: int, incarnation: str, number: int) -> None:
        self.worker, self.incarnation, self.number = worker, incarnation, number
        self.key = f"{worker}/{incarnation}/{number}"
        self.lock = threading.Lock()
        """Held from looking at `applied` to changing it: a push sent again may meet its first self at work."""
        self.applied = 0
        self.round = 0
        self.steps = 0
        """Batches of the trainer that were in the pushes applied."""


class CutGate:
    """States: open; frozen (nobody passes but pushes that another server has applied already, see `advance`).

    A freeze belongs to its owner, and ends with it, or at its deadline if not renewed.
    """

    def __init__(self, is_lost: Callable[[str], bool] = lambda owner: False) -> None:
        """`is_lost`: whether that owner will never thaw."""
        self._is_lost = is_lost
        self._changed = threading.Condition()
        self._inside = 0
        self._waiting = 0
        self._owner: str | None = None
        self._deadline = 0.0
        self._let_through: Mapping[str, int] = {}

    @property
    def waiting(self) -> int:
        return self._waiting

    def enter(self, pushes: Iterable[tuple[PushLane, int]], on_wait: OnWait) -> None:
        """Return when these pushes may be applied; `leave` must follow."""
        pushes = list(pushes)
        told = time.monotonic()
        while True:
            with self._changed:
                if self._passes(pushes):
                    self._inside += 1
                    return
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

    def freeze(self, owner: str, seconds: float, patience: float) -> None:
        """Hold all pushes off and wait for those that are being applied."""
        with self._changed:
            self._expire()
            if self._owner not in (None, owner):
                raise StoreError("another checkpoint is being saved right now; wait for it")
            self._owner, self._deadline, self._let_through = owner, time.monotonic() + seconds, {}
            if not self._changed.wait_for(lambda: self._inside == 0, patience):
                self._open()
                raise StoreError(f"pushes under way did not end within {patience:g} s; the freeze was given up")

    def renew(self, owner: str, seconds: float) -> None:
        with self._changed:
            self._mine(owner)
            self._deadline = time.monotonic() + seconds

    def advance(self, owner: str, lanes: Mapping[str, int], reached: Callable[[], bool], patience: float) -> None:
        """Let pushes of these lanes through, up to the given numbers, until they are applied."""
        with self._changed:
            self._mine(owner)
            self._let_through = dict(lanes)
            self._changed.notify_all()
            done = self._changed.wait_for(lambda: self._inside == 0 and reached(), patience)
            self._let_through = {}
            if not done:
                raise StoreError(
                    f"a push that other servers have applied did not come here within {patience:g} s: no moment is the "
                    "same on all servers. Did a trainer die? Try again"
                )

    def thaw(self, owner: str) -> None:
        with self._changed:
            if self._owner == owner:
                self._open()

    def check(self, owner: str) -> None:
        with self._changed:
            self._mine(owner)

    def _passes(self, pushes: list[tuple[PushLane, int]]) -> bool:
        if self._owner is None:
            return True
        self._expire()
        return self._owner is None or any(self._let_through.get(lane.key, -1) >= number for lane, number in pushes)

    def _expire(self) -> None:
        if self._owner is not None and (time.monotonic() >= self._deadline or self._is_lost(self._owner)):
            self._open()

    def _open(self) -> None:
        self._owner, self._let_through = None, {}
        self._changed.notify_all()

    def _mine(self, owner: str) -> None:
        self._expire()
        if self._owner != owner:
            raise StoreError("the freeze has ended (it was not renewed in time, or belongs to another): save again")
