"""What observers see of a run: each of them the loss since its own last look."""

from __future__ import annotations

import math

import numpy as np
import pytest
from fit_jobs import network, rows_of, trainer

from sparsefleet.core.batch import Batch
from sparsefleet.nn.objective import Judged
from sparsefleet.train import FetchHandler
from sparsefleet.train.progress import LossWindow, Progress
from sparsefleet.train.reporting.base import Reporter


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


def test_in_a_run_a_handler_that_looks_after_each_step_leaves_the_reporters_their_loss(clicks):
    class EachStep(FetchHandler):
        def handler(self, fetched):
            losses.append(float(fetched[0]))

    class AtTheEnd(Reporter):
        loss = math.nan

        def epoch_end(self, snapshot):
            self.loss = snapshot.loss

    losses, seldom = list[float](), (AtTheEnd(), AtTheEnd())
    trainer(reporters=seldom).fit(network(), rows_of(clicks), fetch=[EachStep(["loss"], period_batches=1)])
    assert len(losses) > 10
    assert [one.loss for one in seldom] == [pytest.approx(np.mean(losses), rel=1e-6)] * 2
    assert losses[-1] != pytest.approx(np.mean(losses), rel=1e-3), "the mean over the run is not the last step's loss"
