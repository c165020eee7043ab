"""Jobs of real processes whose trainers come and go. The model says how often each sample was trained."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from elastic_jobs import scale_workers
from healing_jobs import HERE, TOKEN, Job

KILL = signal.SIGKILL
MODES = ["sync", "half_async", "async", "geo"]


def elastic(folder: Path, mode: str, **changed: object) -> Job:
    settings: dict[str, object] = {
        "samples": 3000,
        "pace": 0.05,
        "restarts": 0,
        "elastic": "1:4",
        "options": ["leased"],
    }
    return Job(folder, mode, **{**settings, **changed})  # type: ignore[arg-type]


def check_counts(job: Job) -> None:
    counts, everything = job.counts()
    wrong = counts != 1.0
    assert not wrong.any(), f"{wrong.sum()} not once: {counts[wrong][:10]}\n{job.logs()}"
    assert everything == job.samples


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_from_one_trainer_to_three_and_back_to_two_within_an_epoch(tmp_path: Path, mode: str) -> None:
    job = elastic(tmp_path, mode, workers=1, servers=2)

    def grow_and_shrink(job: Job) -> None:
        job.wait_for_step(3)
        assert scale_workers(job, 3) == [0, 1, 2]
        for worker in (1, 2):
            job.wait_for(lambda worker=worker: job.log(f"worker {worker}").count("step ") > 3)
        assert scale_workers(job, 2) == [0, 1]

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
    job = elastic(tmp_path, "async", workers=1, servers=1, samples=2000)
    by_hand: list[subprocess.Popen[str]] = []

    def start(job: Job) -> None:
        job.wait_for_step(3)
        role = job.view.processes["worker 0"].role
        environment = {**os.environ, **role.environment(), "SPARSEFLEET_TOKEN": TOKEN, "OMP_NUM_THREADS": "1"}
        del environment["PADDLE_TRAINER_ID"]
        data, saved = str(job.folder / "data"), str(job.folder / "saved")
        command = [
            sys.executable,
            str(HERE / job.script),
            job.mode,
            data,
            saved,
            str(job.pace),
            str(job.timeout),
            "leased",
        ]
        by_hand.append(
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        )

    assert job.run(start).exit_code == 0, job.logs()
    output, _ = by_hand[0].communicate(timeout=30)
    assert by_hand[0].returncode == 0, output
    assert "server 0 has made this worker 1" in output
    assert output.count("step ") > 3
    check_counts(job)


@pytest.mark.slow
def test_too_few_trainers_end_the_job(tmp_path: Path) -> None:
    job = elastic(tmp_path, "async", workers=2, servers=1, elastic="2:4", timeout=8.0)

    def killer(job: Job) -> None:
        job.wait_for_step(5)
        job.send("worker 1", KILL)

    assert job.run(killer).exit_code != 0, job.logs()
    assert "1 trainers are left, and it needs 2" in job.logs()
