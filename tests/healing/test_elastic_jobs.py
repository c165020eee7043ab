"""Jobs of real processes whose trainers come and go. The model says how often each sample was trained."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest
from elastic_jobs import by_hand, check_counts, elastic, scale_workers
from healing_jobs import Job

KILL = signal.SIGKILL
MODES = ["sync", "half_async", "async", "geo"]


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_from_one_trainer_to_three_and_back_to_two_within_an_epoch(tmp_path: Path, mode: str) -> None:
    job = elastic(tmp_path, mode, workers=1, servers=2, samples=30_000)

    def grow_and_shrink(job: Job) -> None:
        job.wait_for_step(3)
        assert scale_workers(job, 3) == [0, 1, 2]
        for worker in (1, 2):
            job.wait_for(lambda worker=worker: job.log(f"worker {worker}").count("step ") > 3)
        assert scale_workers(job, 2) == [0, 1]
        job.hurry()

    assert job.run(grow_and_shrink).exit_code == 0, job.logs()
    check_counts(job)
    assert "leaves the job, as it was asked to" in job.log("worker 2")
    assert "step " in job.log("worker 1")


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES[:3])
def test_a_trainer_that_is_killed_is_not_waited_for_and_its_data_is_trained(tmp_path: Path, mode: str) -> None:
    # One server: of several, some may have had the last step of the lost trainer and others not.
    job = elastic(tmp_path, mode, workers=3, servers=1, samples=1500, timeout=10.0)

    def killer(job: Job) -> None:
        job.wait_for_step(5)
        job.send("worker 1", KILL)

    assert job.run(killer).exit_code == 0, job.logs()
    check_counts(job)
    assert any("worker 1 ended (killed by SIGKILL); the others go on with its data" in line for line in job.view.said)


@pytest.mark.slow
def test_one_that_is_started_by_hand_gets_a_number(tmp_path: Path) -> None:
    job = elastic(tmp_path, "async", workers=1, servers=1, samples=30_000)
    output = tmp_path / "by-hand.log"
    started: list[subprocess.Popen[bytes]] = []

    def start(job: Job) -> None:
        job.wait_for_step(3)
        started.append(by_hand(job, output))
        job.wait_for(lambda: output.read_text().count("step ") > 3)
        job.hurry()

    assert job.run(start).exit_code == 0, job.logs()
    assert started[0].wait(30) == 0, output.read_text()
    assert "server 0 has made this worker 1" in output.read_text()
    assert output.read_text().count("step ") > 3
    check_counts(job)


@pytest.mark.slow
def test_too_few_trainers_end_the_job(tmp_path: Path) -> None:
    job = elastic(tmp_path, "async", workers=2, servers=1, elastic="2:4", timeout=8.0)

    def killer(job: Job) -> None:
        job.wait_for_step(5)
        job.send("worker 1", KILL)

    assert job.run(killer).exit_code != 0, job.logs()
    assert "1 trainers are left, and it needs 2" in job.logs()


@pytest.mark.slow
def test_the_last_trainer_is_killed_and_one_that_left_before_is_no_other(tmp_path: Path) -> None:
    job = elastic(tmp_path, "async", workers=2, servers=1, timeout=8.0)

    def killer(job: Job) -> None:
        job.wait_for_step(5)
        assert scale_workers(job, 1) == [0]
        job.wait_for(lambda: not job.view.processes["worker 1"].running)
        job.send("worker 0", KILL)

    outcome = job.run(killer)
    assert outcome.exit_code != 0, job.logs()
    assert "worker 0" in [str(role) for role, _ in outcome.failed]
