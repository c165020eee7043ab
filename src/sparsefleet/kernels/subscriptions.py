"""Who wants to hear of which keys: a typed face over the native kernel. The twin is `kernels.reference.subscriptions`.

Arrays of keys must be C-contiguous and of uint64: nothing is converted here.
"""

from __future__ import annotations

import numpy as np

from sparsefleet.core.batch import U64
from sparsefleet.kernels.levels import native as _native


class Subscriptions:
    """Of one table: per key a bitmap of workers, per worker the changed keys that it has not been told of.

    Any number of threads may call anything at any time. Its layout: native subscriptions.h.
    """

    def __init__(self) -> None:
        self._native = _native.Subscriptions()

    def subscribe(self, keys: U64, worker: int) -> None:
        """The worker wants to hear of these keys."""
        self._native.subscribe(keys, worker)

    def note(self, keys: U64, worker: int) -> None:
        """The worker has changed these keys: all others that subscribe will hear of them.

        Those that are new to the worker it subscribes to, and hears of itself: others may have changed them before.
        """
        self._native.note(keys, worker)

    def tell(self, keys: U64) -> None:
        """Somebody who subscribes to nothing has changed these keys: all that subscribe will hear of them."""
        self._native.tell(keys)

    def take(self, worker: int) -> U64:
        """The keys that others have changed since the last time, and those new to it (`note`), each once."""
        keys = np.empty(self._native.changed(worker), np.uint64)
        return keys[: self._native.take(worker, keys)]

    def forget(self, worker: int) -> None:
        """The worker hears of nothing more; keys that nobody else subscribes to are gone, with their memory."""
        self._native.forget(worker)

    def keys_of(self, worker: int) -> int:
        """How many keys the worker subscribes to."""
        count: int = self._native.keys_of(worker)
        return count

    def __len__(self) -> int:
        """How many keys anybody subscribes to."""
        count: int = self._native.keys()
        return count

    def memory_bytes(self) -> int:
        """All memory: rows, index, lists and slack."""
        total: int = self._native.memory_bytes()
        return total
