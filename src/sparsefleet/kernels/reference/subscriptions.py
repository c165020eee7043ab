"""What `kernels.subscriptions` does, in plain Python."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from sparsefleet.core.batch import U64

MAX_WORKERS = 1 << 16


class Subscriptions:
    """A dictionary from key to the set of its workers, and from worker to the keys to tell it of, in order."""

    def __init__(self) -> None:
        self._workers: dict[int, set[int]] = {}
        self._changed: dict[int, dict[int, None]] = defaultdict(dict)

    def subscribe(self, keys: U64, worker: int) -> None:
        _check(worker)
        for key in keys.tolist():
            self._workers.setdefault(key, set()).add(worker)

    def note(self, keys: U64, worker: int) -> None:
        _check(worker)
        for key in keys.tolist():
            subscribed = self._workers.setdefault(key, set())
            if worker not in subscribed:
                subscribed.add(worker)
                self._changed[worker][key] = None
            for other in subscribed - {worker}:
                self._changed[other][key] = None

    def tell(self, keys: U64) -> None:
        for key in keys.tolist():
            for worker in self._workers.get(key, ()):
                self._changed[worker][key] = None

    def take(self, worker: int) -> U64:
        return np.array(list(self._changed.pop(worker, {})), np.uint64)

    def forget(self, worker: int) -> None:
        self._changed.pop(worker, None)
        for workers in self._workers.values():
            workers.discard(worker)
        self._workers = {key: workers for key, workers in self._workers.items() if workers}

    def keys_of(self, worker: int) -> int:
        return sum(worker in workers for workers in self._workers.values())

    def __len__(self) -> int:
        return len(self._workers)

    def memory_bytes(self) -> int:
        return sum(8 + len(workers) for workers in self._workers.values())


def _check(worker: int) -> None:
    if worker >= MAX_WORKERS:
        raise ValueError(f"a worker's number must be below {MAX_WORKERS}")
