"""Progress: what has been trained so far. Training threads write it, reporters read it."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sparsefleet.core.batch import Batch
from sparsefleet.metrics import ClickMetrics, Metric, MetricSet, WindowMetrics
from sparsefleet.metrics.clicks import NUM_THRESHOLDS, SLIDE_STEPS
from sparsefleet.nn.objective import Judged


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of training at one moment, as reporters show it."""

    epoch: int
    epochs: int
    step: int
    rows: int
    """Rows trained by this run, over all epochs."""
    seconds: float
    """Since this run began to train, without evaluation and saving."""
    share: float | None
    """Part of the epoch that is done, 0 to 1, where known."""
    loss: float
    """Per sample, since the observer's last look, or over the whole run."""
    auc: float
    batch_auc: float
    done_before: float = 0.0
    """Epochs that were done, as a whole or in part, when this run began: a resumed one does not start at 0."""
    own: Mapping[str, float] = field(default_factory=dict)
    """What the user's own metrics tell."""

    @property
    def rows_per_second(self) -> float:
        return self.rows / self.seconds if self.seconds else math.nan

    def values(self) -> dict[str, float]:
        """What a run logs, by name."""
        return {
            "epoch": self.epoch,
            "step": self.step,
            "rows": self.rows,
            "rows_per_s": self.rows_per_second,
            "loss": self.loss,
            "auc": self.auc,
            "batch_auc": self.batch_auc,
            **self.own,
        }


QUICK = frozenset({"epoch", "step", "rows", "rows_per_s", "loss"})
"""Of `Snapshot.values`, what is known without counting anything."""


class LossWindow:
    """How far one observer has read the sum of losses: each sees the loss since its own last look."""

    __slots__ = ("loss", "rows", "total")

    def __init__(self) -> None:
        self.total, self.rows, self.loss = 0.0, 0, math.nan


class Progress:
    def __init__(
        self,
        epochs: int,
        num_thresholds: int = NUM_THRESHOLDS,
        slide_steps: int = SLIDE_STEPS,
        own: Sequence[Metric] = (),
    ) -> None:
        self.epoch, self.epochs = 0, epochs
        self.step = 0
        """Steps of the whole training, over resumes."""
        self.rows = 0
        """Rows of this run."""
        self.metrics = MetricSet(ClickMetrics(num_thresholds), own)
        self.window = WindowMetrics(num_thresholds, slide_steps)
        self._lock = threading.Lock()
        self._loss = 0.0
        """Summed over all rows of this run."""
        self._seconds, self._since = 0.0, 0.0
        self.done_before: float | None = None

    def add(self, batch: Batch, outcome: Judged) -> int:
        """Count one step; returns its number, from 1."""
        with self._lock:
            self.step += 1
            self.rows += len(batch)
            self._loss += outcome.loss
            self.metrics.update(batch, outcome.outputs())
            self.window.update(outcome.probabilities, batch.labels)
            return self.step

    def start_clock(self) -> None:
        self._since = time.perf_counter()

    def stop_clock(self) -> None:
        self._seconds, self._since = self.seconds, 0.0

    @property
    def seconds(self) -> float:
        return self._seconds + (time.perf_counter() - self._since if self._since else 0.0)

    def seconds_left(self, share: float | None) -> float | None:
        """Until the last epoch's end, at the speed so far; `share`: of the epoch under way."""
        done = self.epoch + (share or 0.0)
        here = done - (self.done_before or 0.0)
        if not share or here <= 0 or done >= self.epochs:
            return None
        return self.seconds * (self.epochs - done) / here

    def quick_numbers(self, window: LossWindow) -> dict[str, float]:
        """Those of `QUICK`."""
        with self._lock:
            self._move(window)
            seconds = self.seconds
            return {
                "epoch": self.epoch,
                "step": self.step,
                "rows": self.rows,
                "rows_per_s": self.rows / seconds if seconds else math.nan,
                "loss": window.loss,
            }

    def _move(self, window: LossWindow) -> None:
        if self.rows > window.rows:
            window.loss = (self._loss - window.total) / (self.rows - window.rows)
            window.total, window.rows = self._loss, self.rows

    def snapshot(
        self, share: float | None, metrics: MetricSet | None = None, window: LossWindow | None = None
    ) -> Snapshot:
        """`metrics`: those of all trainers of the job, where they are known; else this trainer's.

        `window`: the observer's own, moved on; None: the loss is that of the whole run.
        """
        with self._lock:
            window, metrics = window or LossWindow(), metrics or self.metrics
            self._move(window)
            return Snapshot(
                epoch=self.epoch,
                epochs=self.epochs,
                step=self.step,
                rows=self.rows,
                seconds=self.seconds,
                share=share,
                loss=window.loss,
                auc=metrics.click_values()["auc"],
                batch_auc=self.window.auc(),
                done_before=self.done_before or 0.0,
                own=metrics.own_values(),
            )
