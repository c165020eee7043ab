"""What observers see of a run: each of them the loss since its own last look."""

from __future__ import annotations

import numpy as np
import pytest

from sparsefleet.core.batch import Batch
from sparsefleet.nn.objective import Judged
from sparsefleet.train.progress import LossWindow, Progress


def step(progress: Progress, loss: float, samples: int = 1) -> None:
    offsets = np.arange(samples + 1, dtype=np.int64)
    keys, dense = np.zeros(samples, np.uint64), np.zeros((samples, 0), np.float32)
    batch = Batch(np.ones(samples, np.float32), dense, keys, offsets, ("C1",))
    progress.add(batch, Judged(loss, np.full(samples, 0.5, np.float32), lambda: None))


def test_a_second_observer_does_not_take_the_loss_from_the_first():
    progress, often, seldom = Progress(1), LossWindow(), LossWindow()
    step(progress, 10.0)
    assert progress.snapshot(None, window=often).loss == 10.0
    step(progress, 0.1)
    assert progress.snapshot(None, window=often).loss == pytest.approx(0.1)
    assert progress.snapshot(None, window=seldom).loss == pytest.approx(5.05)
    assert progress.snapshot(None).loss == pytest.approx(5.05), "over the whole run"


def test_without_a_step_the_last_loss_stays():
    progress, window = Progress(1), LossWindow()
    assert np.isnan(progress.snapshot(None, window=window).loss)
    step(progress, 6.0, samples=3)
    assert progress.snapshot(None, window=window).loss == 2.0
    assert progress.snapshot(None, window=window).loss == 2.0
