"""In sync, a job that has lost processes makes the model of the undisturbed one."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest
from healing_jobs import Job

from sparsefleet.checkpoint import Checkpoint

pytestmark = pytest.mark.slow
TABLE = "SparseFeatFactors"


def rows_of(folder: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    checkpoint = Checkpoint.open(folder / "saved")
    rows = list(checkpoint.sparse_rows(TABLE))
    keys = np.concatenate([part.keys for part in rows])
    order = np.argsort(keys)
    values = np.concatenate([np.concatenate([part.values, part.state], axis=1) for part in rows])[order]
    size = sum(int(np.prod(shape)) for _, shape in checkpoint.manifest.block("dense").layout)
    return keys[order], values, checkpoint.dense_cut("dense", 0, size).values, checkpoint.manifest.table(TABLE).step


def test_sync_with_kills_equals_the_undisturbed_run(tmp_path: Path) -> None:
    folders = [tmp_path / "calm", tmp_path / "killed"]
    for folder in folders:
        folder.mkdir()
    calm = Job(folders[0], "sync", samples=2000, pace=0.0, restarts=0, script="click_job.py")
    assert calm.run().exit_code == 0, calm.logs()

    def killer(job: Job) -> None:
        for attempt, role in enumerate(("server 0", "worker 0", "server 1"), 2):
            job.wait_for_cut()
            job.send(role, signal.SIGKILL)
            job.wait_for_attempt(attempt)

    killed = Job(folders[1], "sync", samples=2000, pace=0.05, script="click_job.py")
    assert killed.run(killer).exit_code == 0, killed.logs()
    assert any("attempt 3 trains on" in line for line in killed.view.said), killed.logs()
    (keys, values, dense, step), (keys_killed, values_killed, dense_killed, step_killed) = map(rows_of, folders)
    np.testing.assert_array_equal(keys, keys_killed)
    np.testing.assert_allclose(values_killed, values, atol=1e-5)
    np.testing.assert_allclose(dense_killed, dense, atol=1e-5)
    assert step == step_killed
