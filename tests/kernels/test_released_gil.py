"""Kernels run without the GIL, and get it back whoever has it (native/bindings/released_gil.h)."""

from __future__ import annotations

import threading
import time

import numpy as np

from sparsefleet.kernels.rows import counted_keys

SECONDS = 20.0
"""At most."""


def test_kernels_of_many_threads_beside_one_that_keeps_the_gil():
    """Threads that wait for each other a little, and for one that comes from no kernel and says nothing."""
    keys = np.random.default_rng(0).integers(0, 5000, 20_000).astype(np.uint64)
    wanted = counted_keys(keys)
    wrong, left = [], threading.Semaphore(0)

    def work():
        try:
            for _ in range(100):
                found = counted_keys(keys)
                wrong.extend(
                    at for at, (a, b) in enumerate(zip(found, wanted, strict=True)) if not np.array_equal(a, b)
                )
        finally:
            left.release()

    threads = [threading.Thread(target=work, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    end, done = time.monotonic() + SECONDS, 0
    while done < len(threads) and time.monotonic() < end:
        done += left.acquire(blocking=False)  # pure Python, which gives the GIL away only when it is asked to
    assert done == len(threads)
    assert not wrong
