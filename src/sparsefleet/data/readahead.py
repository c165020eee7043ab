"""Reading ahead: a thread of its own fills a small bounded queue that one training thread empties.

An error of the reading thread is raised by `next()` in the training thread, with its traceback. A training thread
whose own input has ended takes batches from the queues of the others, so that all of them finish at about the same
time, however unevenly files and threads run.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from sparsefleet.core.batch import Batch
from sparsefleet.core.errors import ConfigError, DataError
from sparsefleet.data.base import BatchStream

log = logging.getLogger(__name__)

CLOSE_SECONDS = 0.9
"""How long `close` waits for a thread that is busy inside a format or a user's generator."""
LOOK_SECONDS = 1.0
"""How often a training thread that waits looks whether its reading thread still lives."""

Groups = Callable[[], Iterator[Sequence[Batch]]]
"""Starts the reading; yields batches in groups, as they come out of one chunk (an empty group is fine)."""


def check_capacity(capacity: int) -> int:
    if isinstance(capacity, bool) or not isinstance(capacity, int) or capacity < 1:
        raise ConfigError(f"capacity={capacity!r} must be a whole number of batches to read ahead, 1 or above")
    return capacity


class Stream(BatchStream):
    """What our readers hand out: a stream that knows whether it is over."""

    @property
    @abstractmethod
    def finished(self) -> bool:
        """True when no further batch can come."""

    def ask_to_stop(self) -> None:
        """Stop reading ahead, without waiting until it has stopped."""


class Together:
    """The streams of one epoch: one lock for all their queues, for they take from each other's."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        self.streams: list[ReadAhead] = []


class ReadAhead(Stream):
    """A stream read ahead by one thread.

    A group goes into the queue whole as soon as fewer than `capacity` batches wait there: one hand-over per
    chunk, and memory stays bounded by `capacity` batches and one chunk.
    """

    def __init__(
        self,
        groups: Groups,
        *,
        capacity: int,
        name: str,
        interrupt: Callable[[], None] | None = None,
        hand_out: Callable[[Batch], None] | None = None,
        together: Together | None = None,
    ) -> None:
        """`hand_out` is told of each batch as it leaves the queue. `together`: the streams of the same epoch."""
        self._groups = groups
        self._capacity = check_capacity(capacity)
        self._interrupt, self._hand_out = interrupt, hand_out
        self._queue: deque[Batch] = deque()
        self._together = together or Together()
        self._together.streams.append(self)
        self._lock, self._changed = self._together.lock, self._together.changed
        self._stopping = False
        self._close_by = 0.0
        self._ended = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def finished(self) -> bool:
        return self._stopping or (self._ended and not self._queue)

    def __next__(self) -> Batch:
        with self._lock:
            while True:
                if self._stopping:
                    raise StopIteration
                if self._queue:
                    return self._take()
                if self._error is not None:
                    raise self._error
                if self._ended:
                    reading = [other for other in self._together.streams if not other.finished]
                    if not reading:
                        raise StopIteration
                    fullest = max(reading, key=lambda other: len(other._queue))
                    if fullest._queue:
                        return fullest._take()
                if not self._changed.wait(LOOK_SECONDS) and not self._thread.is_alive() and not self._ended:
                    raise DataError(
                        f"the reading thread {self._thread.name} has ended without an error or an end; "
                        "readers do not survive a fork: open the reader in the process that reads"
                    )

    def coming(self) -> Batch | None:
        with self._lock:
            return self._queue[0] if self._queue else None

    def _take(self) -> Batch:
        """The oldest batch; under the lock."""
        batch = self._queue.popleft()
        if self._hand_out is not None:
            self._hand_out(batch)
        if len(self._queue) == self._capacity - 1 or (self._ended and not self._queue):
            self._changed.notify_all()
        return batch

    def ask_to_stop(self) -> None:
        with self._lock:
            if not self._stopping:
                self._close_by = time.monotonic() + CLOSE_SECONDS
            self._stopping = True
            self._queue.clear()
            self._changed.notify_all()
        if self._interrupt is not None:
            self._interrupt()

    def close(self) -> None:
        self.ask_to_stop()
        if self._thread is threading.current_thread():
            return
        # Only an interrupt ends some reads, and the thread may begin another just after one: interrupt repeatedly.
        while self._thread.is_alive() and time.monotonic() < self._close_by:
            if self._interrupt is not None:
                self._interrupt()
            self._thread.join(0.1)
        if self._thread.is_alive():
            log.warning("%s is still busy in a read; it ends as soon as that returns", self._thread.name)

    def _run(self) -> None:
        groups = None
        try:
            groups = self._groups()
            for group in groups:
                if group and not self._put(group):
                    break
                if self._stopping:
                    break
        except BaseException as error:
            self._error = error
        finally:
            try:
                if groups is not None and hasattr(groups, "close"):
                    groups.close()
            except BaseException as error:
                self._error = self._error or error
            with self._lock:
                self._ended = True
                self._changed.notify_all()

    def _put(self, group: Sequence[Batch]) -> bool:
        with self._lock:
            while len(self._queue) >= self._capacity and not self._stopping:
                self._changed.wait()
            if self._stopping:
                return False
            self._queue.extend(group)
            self._changed.notify_all()
            return True
