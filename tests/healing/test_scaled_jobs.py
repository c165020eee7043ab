"""`sparsefleet scale`: a running job goes on with more or fewer servers. No sample is lost, none counts twice."""

from __future__ import annotations

from pathlib import Path

import pytest
from healing_jobs import TOKEN, Job
from trained_rows import check_same, trained
from typer.testing import CliRunner

from sparsefleet.cli.app import application

pytestmark = pytest.mark.slow


def scale(job: Job, servers: int) -> None:
    """As a user does; returns when the job trains on."""
    (started,) = [line for line in job.view.said if "servers at" in line][:1]
    address = started.rpartition("servers at ")[2].split(",")[0]
    words = ["scale", address, "--servers", str(servers), "--timeout", "100"]
    result = CliRunner().invoke(application(words), words, env={"SPARSEFLEET_TOKEN": TOKEN})
    assert result.exit_code == 0, f"{result.output}\n{job.logs()}"
    assert f"trains on with {servers} servers" in result.output


def there_and_back(job: Job) -> None:
    job.wait_for_cut()
    for servers in (3, 1):
        scale(job, servers)
        assert sorted(job.view.processes) == sorted(
            [*(f"server {index}" for index in range(servers)), *(f"worker {index}" for index in range(job.workers))]
        )
    job.hurry()


@pytest.mark.parametrize("mode", ["async", "half_async", "geo", "sync"])
def test_two_servers_then_three_then_one(tmp_path: Path, mode: str) -> None:
    job = Job(tmp_path, mode, samples=4000, pace=0.3, cut_every=1.0)
    assert job.run(there_and_back).exit_code == 0, job.logs()
    job.check_counts()
    said = "\n".join(job.view.said)
    assert "goes on with 3 servers instead of 2 (sparsefleet scale): attempt 2 begins from" in said
    assert "goes on with 1 server instead of 3 (sparsefleet scale): attempt 3 begins from" in said
    assert "ended (" not in said, "nothing was lost"
    for worker in ("worker 0", "worker 1"):
        assert job.log(worker).count("step 1\n") == 1, "it has lived all the time in one process"


def test_a_loss_in_the_new_shape_is_healed_in_it(tmp_path: Path) -> None:
    job = Job(tmp_path, "async", samples=4000, pace=0.3, cut_every=1.0)

    def killer(job: Job) -> None:
        job.wait_for_cut()
        scale(job, 3)
        for attempt, role in ((3, "server 2"), (4, "worker 1"), (5, "server 0")):
            job.send(role, 9)  # type: ignore[arg-type]
            job.wait_for_attempt(attempt)
        job.hurry()

    assert job.run(killer).exit_code == 0, job.logs()
    job.check_counts()


def test_sync_makes_the_model_of_the_job_that_was_left_alone(tmp_path: Path) -> None:
    folders = [tmp_path / "alone", tmp_path / "scaled"]
    for folder in folders:
        folder.mkdir()
    alone = Job(folders[0], "sync", samples=2000, pace=0.0, restarts=0, script="click_job.py")
    assert alone.run().exit_code == 0, alone.logs()
    scaled = Job(folders[1], "sync", samples=2000, pace=0.4, cut_every=1.0, script="click_job.py")
    assert scaled.run(there_and_back).exit_code == 0, scaled.logs()
    check_same(*map(trained, folders))
