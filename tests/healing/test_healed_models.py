"""In sync, a job that has lost processes makes the model of the undisturbed one."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from healing_jobs import Job
from trained_rows import check_same, trained

pytestmark = pytest.mark.slow


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
    check_same(*map(trained, folders))
