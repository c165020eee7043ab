"""The training threads of one epoch: start them, watch them, end them, whatever happens."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

from sparsefleet.core.batch import Batch
from sparsefleet.data.base import BatchStream, Epoch
from sparsefleet.train.gate import Gate

TICK_SECONDS = 0.1
STEP_SECONDS = 30.0
"""How long a step that is under way may take to end once the run is to stop."""
JOIN_SECONDS = 0.5
"""How long a thread that is not within a step may take to end: one that sits in a user's generator may never."""

Work = Callable[[int, Batch], None]
"""What a thread (by its index) does with a batch."""


def run_threads(
    epoch: Epoch,
    work: Work,
    gate: Gate,
    tick: Callable[[], None],
    leave: Callable[[int], None] = lambda index: None,
) -> None:
    """One thread per stream; each takes its batches through `work`, a step of `gate`. Returns when all have ended.

    The first error of any thread ends the others between two steps and is raised here. So is Ctrl-C: the calling
    thread never blocks for long. Once this returns or raises, no thread makes a step any more; only where
    `gate.quiet` is False, one has not ended the step it was in.
    """
    stop, crew = threading.Event(), _Crew(len(epoch.streams))
    failures: list[BaseException] = []

    def body(index: int, stream: BatchStream) -> None:
        try:
            # torch keeps this per thread: a new thread would otherwise use every core inside each operation, and the
            # training threads would fight over them.
            torch.set_num_threads(1)
            try:
                for batch in stream:
                    with gate.step():
                        if stop.is_set():
                            return
                        work(index, batch)
            finally:
                leave(index)
        except BaseException as error:
            failures.append(error)
            stop.set()
        finally:
            crew.leave()

    threads = [
        threading.Thread(target=body, args=(index, stream), name=f"train-{index}", daemon=True)
        for index, stream in enumerate(epoch.streams)
    ]
    try:
        for thread in threads:
            thread.start()
        gone = False
        while not gone and not stop.is_set():
            gone = crew.gone(TICK_SECONDS)
            tick()  # once at least, however short the epoch
    finally:
        stop.set()
        if not crew.gone(0):
            epoch.close()  # wakes threads that wait for input
            gate.wait_until_quiet(STEP_SECONDS)
            crew.gone(JOIN_SECONDS)
    if failures:
        raise failures[0]


class _Crew:
    """Knows when all threads have ended.

    Their own `join` and `is_alive` will not do: a Ctrl-C in the middle of a join makes Python 3.11 take a thread that
    runs for one that has ended.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._changed = threading.Condition()

    def leave(self) -> None:
        with self._changed:
            self._threads -= 1
            self._changed.notify_all()

    def gone(self, seconds: float) -> bool:
        """All have ended; waits so long for it."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._threads, seconds)
