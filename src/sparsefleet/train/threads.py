"""The training threads of one epoch: start them, watch them, end them, whatever happens."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from sparsefleet.core.batch import Batch
from sparsefleet.core.stopwatch import lap
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
    leave: Callable[[int, BaseException | None], None] = lambda index, error: None,
    begin: Callable[[], None] = lambda: None,
) -> None:
    """One thread per stream; each takes its batches through `work`, a step of `gate`. Returns when all have ended.

    The first error of any thread ends the others between two steps and is raised here. So is Ctrl-C: the calling
    thread never blocks for long. Once this returns or raises, no thread makes a step any more; only where
    `gate.quiet` is False, one has not ended the step it was in. `begin` is called by each thread as it starts,
    `leave` as it ends, with its error if it has failed.
    """
    stop = threading.Event()
    failures: list[BaseException] = []

    def body(index: int, stream: BatchStream) -> None:
        failed: BaseException | None = None
        try:
            # torch keeps this per thread: a new thread would otherwise use every core inside each operation, and the
            # training threads would fight over them.
            torch.set_num_threads(1)
            begin()
            for batch in stream:
                lap("reading")
                with gate.step():
                    lap("waiting")
                    if stop.is_set():
                        break
                    work(index, batch)
                lap("other")
        except BaseException as error:
            failed = error
            failures.append(error)
            stop.set()
        try:
            leave(index, failed)
        except BaseException as error:
            failures.append(error)
            stop.set()
        finally:
            ended[index].set()

    # Not Thread.join: interrupted by Ctrl-C it takes a running thread for an ended one (CPython 3.11), and a save would
    # then catch that thread within its step.
    ended = [threading.Event() for _ in epoch.streams]
    threads = [
        threading.Thread(target=body, args=(index, stream), name=f"train-{index}", daemon=True)
        for index, stream in enumerate(epoch.streams)
    ]
    try:
        for thread in threads:
            thread.start()
        done = False
        while not done and not stop.is_set():
            done = _all_set(ended, TICK_SECONDS)
            tick()
    finally:
        stop.set()
        for thread, event in zip(threads, ended, strict=True):
            if thread.ident is None:  # never started: it will not end
                event.set()
        if not _all_set(ended, 0.0):
            epoch.close()  # wakes threads that wait for input
            gate.wait_until_quiet(STEP_SECONDS)
            _all_set(ended, JOIN_SECONDS)
    if failures:
        raise failures[0]


def _all_set(events: Sequence[threading.Event], seconds: float) -> bool:
    """Wait until all are set, so long at most."""
    deadline = time.monotonic() + seconds
    return all(event.wait(max(0.0, deadline - time.monotonic())) for event in events)


@contextmanager
def intra_op_threads_kept() -> Iterator[None]:
    """Training threads turn off torch's own threads, which changes this process-wide; the caller gets them back."""
    threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
