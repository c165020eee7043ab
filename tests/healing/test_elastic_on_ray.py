"""Elastic jobs on Ray: trainers more are actors more, where there is room, and those that leave give theirs back."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from elastic_jobs import check_counts, elastic
from healing_jobs import HERE, TOKEN, Job
from ray_cluster import RunningCluster, ray_cluster
from ray_jobs import RayJob, roles_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.xdist_group("ray")]
SECONDS = 240.0
TIMEOUT = 30.0
SAMPLES = 30_000
"""Minutes of training, until `Job.hurry`: actors take long to start on a busy machine."""


def started(cluster: RunningCluster, job: Job, *options: str) -> RayJob:
    command = [sys.executable, "-m", "sparsefleet.launch", "--on", "ray", "--elastic", "1:4", "--timeout", str(TIMEOUT)]
    command += [f"--server_num={job.servers}", f"--worker_num={job.workers}", *options, str(HERE / job.script)]
    command += [job.mode, job.make_data(), str(job.folder / "saved"), str(job.pace), str(TIMEOUT), *job.options]
    return RayJob(command, job.folder, {**cluster.environment, "SPARSEFLEET_TOKEN": TOKEN})


def scale(driver: RayJob, workers: int) -> subprocess.Popen[str]:
    server = re.findall(r"servers at (\S+)", driver.output)[-1]
    command = [sys.executable, "-m", "sparsefleet", "scale", server, "--workers", str(workers), "--json"]
    return subprocess.Popen([*command, "--timeout", str(SECONDS)], stdout=subprocess.PIPE, text=True)


def present(scaling: subprocess.Popen[str]) -> list[int]:
    said, _ = scaling.communicate(timeout=SECONDS + 30)
    assert scaling.returncode == 0
    found: list[int] = json.loads(said)["workers"]
    return found


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_from_one_trainer_to_three_and_back_to_two_within_an_epoch(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARSEFLEET_TOKEN", TOKEN)
    job = elastic(tmp_path, mode, workers=1, samples=SAMPLES, pace=0.1)
    with ray_cluster([2, 2, 2]) as cluster, started(cluster, job) as driver:
        driver.wait_for("step 3\n", "workerlog.0", SECONDS)
        assert present(scale(driver, 3)) == [0, 1, 2]
        for worker in (1, 2):
            driver.wait_for("step ", f"workerlog.{worker}", SECONDS)
        assert present(scale(driver, 2)) == [0, 1]
        job.hurry()
        assert driver.ended(SECONDS) == 0, f"{driver.output}\n{job.logs()}"
        assert roles_of(tmp_path) == []
    check_counts(job)
    assert "leaves the job, as it was asked to" in job.log("worker 2")


def test_a_trainer_more_waits_for_room_that_another_gives_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARSEFLEET_TOKEN", TOKEN)
    job = elastic(tmp_path, "async", workers=2, servers=1, samples=SAMPLES, pace=0.1)
    with ray_cluster([1, 2]) as cluster, started(cluster, job, "--restarts", "3", "--cut_every", "0.5") as driver:
        driver.wait_for("step 3\n", "workerlog.1", SECONDS)
        waiting = scale(driver, 3)
        driver.wait_for("still without are 1 worker of 1 CPU", seconds=SECONDS)
        waiting.kill()
        waiting.communicate()
        assert present(scale(driver, 1)) == [0]
        driver.wait_for("leaves the job, as it was asked to", "workerlog.1", SECONDS)
        assert present(scale(driver, 2)) == [0, 1]
        assert driver.log("workerlog.1").count("leaves the job, as it was asked to") == 1  # a second life, and its room
        job.hurry()
        assert driver.ended(SECONDS) == 0, f"{driver.output}\n{job.logs()}"
    check_counts(job)
