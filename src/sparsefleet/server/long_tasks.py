"""LongTasks: what takes long runs in a thread of its own, and the trainer asks about it until it is done.

The threads stay: glibc gives a new thread whichever of its arenas is next, and an arena keeps what was freed in it
(`core/memory.py`). With a new thread for every checkpoint, the buffers of a write were kept once in each arena:
server 0, which has the most threads, grew by some 30 MB a save until all arenas had theirs.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from sparsefleet.core.errors import SparseFleetError
from sparsefleet.store.wire import refusal

log = logging.getLogger(__name__)

TELL_EVERY = 5.0

Answer = dict[str, Any]


class LongTask:
    def __init__(self, work: Callable[[], Answer]) -> None:
        self._work = work
        self._started = self._told = time.monotonic()
        self._answer: Answer = {}
        self._done = threading.Event()

    def wait(self, patience: float) -> Answer | None:
        """The answer, or None while the task is at work."""
        return self._answer if self._done.wait(patience) else None

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def untold(self) -> bool:
        """Whether it is time to say again that the task is at work, however many ask."""
        due = time.monotonic() - self._told >= TELL_EVERY
        if due:
            self._told = time.monotonic()
        return due

    def run(self) -> None:
        try:
            self._answer = self._work()
        except SparseFleetError as error:
            self._answer = refusal(error)
        except Exception as error:
            log.exception("a task failed")
            self._answer = {"error": f"the server failed: {error!r}; its log says where"}
        finally:
            self._done.set()


class _Threads:
    """Run tasks, each in a thread of its own; a thread that is done takes the next one."""

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[LongTask | None] = queue.SimpleQueue()
        self._idle = self._threads = 0
        self._lock = threading.Lock()

    def start(self, task: LongTask) -> None:
        with self._lock:
            if self._idle:
                self._idle -= 1
            else:
                self._threads += 1
                threading.Thread(target=self._run, name="sparsefleet-task", daemon=True).start()
        self._tasks.put(task)

    def close(self) -> None:
        """Threads end once they are done with what they do."""
        with self._lock:
            for _ in range(self._threads):
                self._tasks.put(None)

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            task.run()
            with self._lock:
                self._idle += 1


class LongTasks:
    def __init__(self, rows: Callable[[], int]) -> None:
        """`rows`: how many rows the server holds, for whoever wants to see that a task gets on."""
        self._rows, self._threads = rows, _Threads()
        self._tasks: dict[str, LongTask] = {}
        self._lock = threading.Lock()

    def close(self) -> None:
        """The server ends: no task is started any more."""
        self._threads.close()

    def ask(self, what: str, work: Callable[[], Answer], patience: float, *, key: str) -> Answer:
        """Start the task of this key unless it runs, and wait a while for its end; `busy` while it is at work."""
        with self._lock:
            task = self._tasks.get(key)
            if task is None:
                task = self._tasks[key] = LongTask(work)
                self._threads.start(task)
        answer = task.wait(patience)
        if answer is None:
            rows = self._rows()
            if task.untold():
                log.info("%s: at work for %.0f s; %s rows are here", what, task.seconds, f"{rows:,}")
            return {"busy": True, "rows": rows}
        with self._lock:
            self._tasks.pop(key, None)
        return answer
