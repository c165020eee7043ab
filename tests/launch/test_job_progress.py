"""Outside a terminal, launchers tell now and then how far the job is."""

from __future__ import annotations

import io
import os

from small_jobs import Given, batches, cluster, small_model
from waiting import wait_until

import sparsefleet as sf
from sparsefleet.fleet import DistributedStrategy
from sparsefleet.launch.progress import JobProgress, described
from sparsefleet.launch.view import LiveView, PlainView


def worker(**facts: object) -> dict[str, object]:
    usual = {"state": "present", "doing": "training", "epoch": 0, "epochs": 2, "step": 1500, "rows_per_s": 2000.0}
    return {**usual, "auc": 0.75, "seconds_left": 75.0, **facts}


def test_the_line():
    assert described({}) is None
    assert described({"0": worker(step=0)}) is None, "nobody has begun"
    assert described({"0": worker()}) == "epoch 1/2, step 1,500, 2,000 rows/s, auc 0.75000, 1:15 left"
    both = {"0": worker(), "1": worker(step=1700, rows_per_s=1000.4, auc=0.77, seconds_left=4000)}
    assert described(both) == "epoch 1/2, step 1,500 to 1,700, 3,000 rows/s, auc 0.76000, 1:06:40 left"
    lost = {"0": worker(), "1": worker(state="lost"), "2": worker(doing="saving", auc=None, seconds_left=None)}
    assert described(lost) == "epoch 1/2, step 1,500, 4,000 rows/s, auc 0.75000, 1:15 left, saving"
    begun = worker(rows_per_s=None, auc=None, seconds_left=None)
    assert described({"0": begun}) == "epoch 1/2, step 1,500", "no speed is known yet"
    assert described({"0": begun, "1": worker()}) == "epoch 1/2, step 1,500, 2,000 rows/s, auc 0.75000, 1:15 left"
    assert described({"0": {**begun, "rows_per_s": 0.0}}) == "epoch 1/2, step 1,500, 0 rows/s", "a real 0"


def test_a_running_job_is_asked():
    with cluster(1) as job:
        trainer = sf.Trainer(job.job(sf.optim.Adam(1e-2), DistributedStrategy(), 0, 1), quiet=True)
        progress = JobProgress(job.endpoints, os.environ, 0.05)
        progress.start()
        try:
            trainer.fit(small_model(), Given(batches(5)))
            line = wait_until(progress.line, 30, "the job's progress")
        finally:
            progress.close()
    assert line.startswith("epoch 1/1, step ")
    assert "rows/s, auc 0." in line


def test_only_views_without_live_lines_want_it():
    assert PlainView(io.StringIO()).wants_progress
    assert not LiveView.wants_progress
    never = JobProgress(["127.0.0.1:1"], {}, 0.0)
    never.start()
    assert never.line() is None
    never.close()
