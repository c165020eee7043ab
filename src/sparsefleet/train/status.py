"""What a trainer tells its crew about itself once a second, for `sparsefleet status` to show."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable

from sparsefleet.crew import Crew
from sparsefleet.train.progress import LossWindow, Progress

PERIOD_SECONDS = 1.0
SPEED_SECONDS = 5.0
"""Rows per second are those of the last few seconds of training: scoring, saving and waiting do not count."""


class StatusReports:
    def __init__(self, crew: Crew, progress: Progress) -> None:
        self._crew, self._progress = crew, progress
        self.staleness: Callable[[], int] = lambda: 0
        """Steps done here and not applied on the servers; the communicator's to say."""
        self.share: Callable[[], float | None] = lambda: None
        """Part of the epoch that is done, where known; the reader's to say."""
        self.again = 0
        """Samples that are trained again because processes of the job were lost."""
        self._next = 0.0
        self._window = LossWindow()
        self._counted: deque[tuple[float, int]] = deque([(progress.seconds, progress.rows)])

    def tick(self) -> None:
        """Called often while training."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + PERIOD_SECONDS
        self._tell("training", self._speed(), self.staleness())

    def resting(self, doing: str) -> None:
        """Between epochs: scoring, saving, waiting for the others, done. The speed is that of the training before."""
        self._next = 0.0
        self._tell(doing, self._speed(), 0)

    def _speed(self) -> float | None:
        """None: not known yet. A run that has just begun has trained nothing, which does not make it a slow one."""
        # Over the ends of epochs: there are epochs shorter than the time between two reports.
        now, rows = self._progress.seconds, self._progress.rows
        self._counted.append((now, rows))
        while now - self._counted[0][0] > SPEED_SECONDS and len(self._counted) > 2:
            self._counted.popleft()
        since, before = self._counted[0]
        if now <= since or (rows == before and now - since < PERIOD_SECONDS):
            return None
        return (rows - before) / (now - since)

    def _tell(self, doing: str, rows_per_s: float | None, staleness: int) -> None:
        progress = self._progress
        auc, left = progress.metrics.click_values()["auc"], progress.seconds_left(self.share())
        loss = progress.quick_numbers(self._window)["loss"]
        self._crew.report(
            {
                "doing": doing,
                "epoch": progress.epoch,
                "epochs": progress.epochs,
                "loss": loss if math.isfinite(loss) else None,
                "auc": auc if math.isfinite(auc) else None,
                "seconds_left": None if left is None else round(left, 1),
                "step": progress.step,
                "rows": progress.rows,
                "rows_per_s": None if rows_per_s is None else round(rows_per_s, 1),
                "staleness": staleness,
                **({"trained_again": self.again} if self.again else {}),
            }
        )
