"""Gate: lets one thread do something while no training thread is within a step."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

PARKED_SECONDS = 0.01
"""How often whoever closes the gate looks for threads that have parked."""


class Gate:
    """Every step is made inside. A thread that waits for input is outside, and nobody waits for it."""

    def __init__(self, parked: Callable[[], int] = lambda: 0) -> None:
        """`parked`: how many threads stand within a step that cannot go on before others make theirs."""
        self._parked = parked
        self._inside = 0
        self._closed = False
        self._failure: BaseException | None = None
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._awaited = 0
        """How many wait until no thread is within a step, besides whoever has closed the gate."""
        self._mine = threading.local()
        self._step = _Step(self)

    def step(self) -> AbstractContextManager[None]:
        """One step; waits while the gate is closed."""
        return self._step

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Called at the end of a step, or outside of any: nobody need wait for this thread while it is aside."""
        if not getattr(self._mine, "inside", False):
            yield
            return
        self._mine.inside = False
        self._leave()
        try:
            yield
        finally:
            self._enter(again=True)
            self._mine.inside = True

    def close(self) -> None:
        """Return when no thread is within a step; none begins one until `open`. Not for a thread that is inside."""
        with self._lock:
            self._changed.wait_for(lambda: not self._closed)
            self._closed = True
            while self._inside > self._parked():
                self._changed.wait(PARKED_SECONDS)

    def open(self) -> None:
        with self._lock:
            self._closed = False
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Fail all present and future waiters: the thread that closed the gate died and cannot reopen it."""
        with self._lock:
            self._failure = error
            self._changed.notify_all()

    @property
    def quiet(self) -> bool:
        """Nobody is within a step, and the gate is open."""
        with self._lock:
            return not self._inside and not self._closed

    def wait_until_quiet(self, seconds: float) -> bool:
        """Wait so long for steps under way to end; however long for a gate that is closed (a cut)."""
        with self._lock:
            self._awaited += 1
            try:
                while self._closed or self._inside:
                    if not self._changed.wait_for(lambda: not self._closed and not self._inside, seconds):
                        if self._closed:
                            continue
                        return False
                return True
            finally:
                self._awaited -= 1

    def _enter(self, again: bool = False) -> None:
        """again: to end a step that was begun before."""
        with self._lock:
            while self._closed and self._failure is None:
                self._changed.wait()
            if self._failure is not None and not again:
                raise self._failure
            self._inside += 1

    def _leave(self) -> None:
        with self._lock:
            self._inside -= 1
            if self._closed or self._awaited:
                self._changed.notify_all()


class _Step:
    """What `with gate.step()` enters; one for all threads, for each notes its own step in `gate._mine`."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def __enter__(self) -> None:
        self._gate._enter()
        self._gate._mine.inside = True

    def __exit__(self, *error: object) -> None:
        self._gate._mine.inside = False
        self._gate._leave()
