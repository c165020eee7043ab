"""Gate: lets one thread do something while no training thread is within a step."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

PARKED_SECONDS = 0.01
"""How often whoever wants to be alone looks for threads that have parked."""


class Gate:
    """Every step is made inside. A thread that waits for input is outside, and nobody waits for it."""

    def __init__(self, parked: Callable[[], int] = lambda: 0) -> None:
        """`parked`: how many threads stand within a step that cannot go on before others make theirs."""
        self._parked = parked
        self._inside = 0
        self._closed = False
        self._failure: BaseException | None = None
        self._changed = threading.Condition()
        self._mine = threading.local()
        self._step = _Step(self)

    def step(self) -> AbstractContextManager[None]:
        """One step; waits while somebody is alone."""
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

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Inside, no other thread makes a step; those that want to be alone too come one by one."""
        with self.aside():
            self.close()
            try:
                yield
            finally:
                self.open()

    def close(self) -> None:
        """Return when no thread is within a step; none begins one until `open`. Not for a thread that is inside."""
        with self._changed:
            self._changed.wait_for(lambda: not self._closed)
            self._closed = True
            while self._inside > self._parked():
                self._changed.wait(PARKED_SECONDS)

    def open(self) -> None:
        with self._changed:
            self._closed = False
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Whoever wants to begin a step, now or later, gets this error: who closed the gate will not open it."""
        with self._changed:
            self._failure = error
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

    def _enter(self, again: bool = False) -> None:
        """again: to end a step that was begun before."""
        with self._changed:
            while self._closed and self._failure is None:
                self._changed.wait()
            if self._failure is not None and not again:
                raise self._failure
            self._inside += 1

    def _leave(self) -> None:
        with self._changed:
            self._inside -= 1
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
