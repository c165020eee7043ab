"""The training threads of one epoch: start them, watch them, end them, whatever happens."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import torch

from sparsefleet.core.batch import Batch
from sparsefleet.data.base import BatchStream, Epoch
from sparsefleet.train.gate import Gate

TICK_SECONDS = 0.1
JOIN_SECONDS = 30.0

Work = Callable[[int, Batch], None]
"""What a thread (by its index) does with a batch."""


def run_threads(
    epoch: Epoch,
    work: Work,
    gate: Gate,
    tick: Callable[[], None],
    leave: Callable[[int, BaseException | None], None] = lambda index, error: None,
) -> None:
    """One thread per stream; each takes its batches through `work`. Returns when all streams have ended.

    The first error of any thread ends the others between two steps and is raised here. So is Ctrl-C: the calling
    thread never blocks for long. `leave` is called by each thread as it ends, with its error if it has failed.
    """
    stop = threading.Event()
    failures: list[BaseException] = []

    def body(index: int, stream: BatchStream) -> None:
        # torch keeps this per thread: a new thread would otherwise use every core inside each operation, and the
        # training threads would fight over them.
        torch.set_num_threads(1)
        failed: BaseException | None = None
        try:
            for batch in stream:
                gate.pass_through()
                if stop.is_set():
                    break
                work(index, batch)
                if stop.is_set():
                    break
        except BaseException as error:
            failed = error
            failures.append(error)
            stop.set()
        gate.leave()
        try:
            leave(index, failed)
        except BaseException as error:
            failures.append(error)
            stop.set()

    threads = [
        threading.Thread(target=body, args=(index, stream), name=f"train-{index}", daemon=True)
        for index, stream in enumerate(epoch.streams)
    ]
    for thread in threads:
        thread.start()
    try:
        while any(thread.is_alive() for thread in threads):
            _join_all(threads, TICK_SECONDS)
            tick()
            if stop.is_set():
                _close(epoch.streams)
    except BaseException:
        stop.set()
        _close(epoch.streams)  # wakes threads that wait for input
        _join_all(threads, JOIN_SECONDS)
        raise
    if failures:
        raise failures[0]


def _join_all(threads: Sequence[threading.Thread], seconds: float) -> None:
    share = seconds / len(threads)
    for thread in threads:
        thread.join(share)


def _close(streams: Sequence[BatchStream]) -> None:
    for stream in streams:
        stream.close()
