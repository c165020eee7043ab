"""What a trainer tells its store about itself once a second, for `sparsefleet status` to show."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from sparsefleet.store.base import ParameterStore
from sparsefleet.train.progress import Progress

PERIOD_SECONDS = 1.0
SPEED_SECONDS = 5.0
"""Rows per second are those of the last few seconds."""


class StatusReports:
    def __init__(self, store: ParameterStore, progress: Progress) -> None:
        self._store, self._progress = store, progress
        self.staleness: Callable[[], int] = lambda: 0
        """Steps done here and not applied on the servers; the communicator's to say."""
        self._next = 0.0
        self._counted: deque[tuple[float, int]] = deque()

    def tick(self) -> None:
        """Called often while training."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + PERIOD_SECONDS
        self._counted.append((now, self._progress.rows))
        while now - self._counted[0][0] > SPEED_SECONDS and len(self._counted) > 2:
            self._counted.popleft()
        (since, before), (_, rows) = self._counted[0], self._counted[-1]
        self._tell("training", (rows - before) / (now - since) if now > since else 0.0, self.staleness())

    def resting(self, doing: str) -> None:
        """Between epochs: scoring, saving, waiting for the others, done."""
        self._counted.clear()
        self._next = 0.0
        self._tell(doing, 0.0, 0)

    def _tell(self, doing: str, rows_per_s: float, staleness: int) -> None:
        progress = self._progress
        self._store.report(
            {
                "doing": doing,
                "epoch": progress.epoch,
                "step": progress.step,
                "rows": progress.rows,
                "rows_per_s": round(rows_per_s, 1),
                "staleness": staleness,
            }
        )
