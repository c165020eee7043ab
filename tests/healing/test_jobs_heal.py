"""Jobs of real processes that lose servers and trainers: whatever dies, every sample is in the model once."""

from __future__ import annotations

import random
import re
import signal
import time
from pathlib import Path

import pytest
from healing_jobs import Job

KILL, STOP = signal.SIGKILL, signal.SIGSTOP


def test_a_server_and_a_trainer_are_killed_in_one_job(tmp_path: Path) -> None:
    job = Job(tmp_path, "sync", samples=600)

    def killer(job: Job) -> None:
        job.wait_for_cut()
        job.send("server 1", KILL)
        job.wait_for_attempt(2)
        job.send("worker 1", KILL)

    assert job.run(killer).exit_code == 0, job.logs()
    job.check_counts()
    said = "\n".join(job.view.said)
    assert "server 1 ended (killed by SIGKILL): attempt 2 begins from" in said
    assert "worker 1 ended (killed by SIGKILL): attempt 3 begins from" in said
    assert "samples are trained again here" in job.log("worker 0")
    assert job.log("worker 0").count("call 1 of fit") == 0  # it was never started again
    assert not list((tmp_path / "log").glob("cuts-*")), "cuts stay behind"


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["async", "half_async", "geo", "sync"])
@pytest.mark.parametrize("role", ["server 0", "worker 0"])
def test_every_mode_survives_every_kind_of_loss(tmp_path: Path, mode: str, role: str) -> None:
    job = Job(tmp_path, mode)

    def killer(job: Job) -> None:
        job.wait_for_cut()
        job.send(role, KILL)

    assert job.run(killer).exit_code == 0, job.logs()
    job.check_counts()
    assert any("attempt 2 begins" in line for line in job.view.said)


@pytest.mark.slow
@pytest.mark.parametrize("role", ["server 1", "worker 1"])
def test_one_that_hangs_is_killed_after_the_time_out_and_started_again(tmp_path: Path, role: str) -> None:
    job = Job(tmp_path, "async", timeout=6.0)

    def killer(job: Job) -> None:
        job.wait_for_cut()
        job.send(role, STOP)

    assert job.run(killer).exit_code == 0, job.logs()
    job.check_counts()
    assert f"{role} gives no sign of life: killing it" in job.view.said


@pytest.mark.slow
def test_two_roles_at_a_time(tmp_path: Path) -> None:
    job = Job(tmp_path, "half_async")

    def killer(job: Job) -> None:
        job.wait_for_cut()
        for role in ("server 0", "worker 1"):
            job.send(role, KILL)

    assert job.run(killer).exit_code == 0, job.logs()
    job.check_counts()


@pytest.mark.slow
def test_too_many_losses_end_the_job_with_their_causes(tmp_path: Path) -> None:
    job = Job(tmp_path, "async", restarts=1, pace=0.1)

    def killer(job: Job) -> None:
        job.wait_for_step(3)
        job.send("worker 1", KILL)
        job.wait_for_attempt(2)
        job.send("server 0", KILL)

    assert job.run(killer).exit_code == 128 + KILL
    (error,) = [line for line in job.view.said if line.startswith("giving up")]
    assert "2 losses within" in error
    assert error.index("worker 1 ended (killed by SIGKILL)") < error.index("server 0 ended (killed by SIGKILL)")
    assert "Go on with: --resume" in error


@pytest.mark.slow
def test_a_trainer_that_dies_at_the_same_sample_each_time_is_told_with_file_and_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIE_AT", "155")
    job = Job(tmp_path, "async", restarts=4)
    assert job.run().exit_code == 128 + KILL, job.logs()
    (told,) = [line for line in job.view.said if "killed 3 times after the same cut" in line]
    assert told.startswith("worker 0 was killed 3 times after the same cut: perhaps by one of the next samples.")
    place = re.search(r"It reads on (\S+) from line (\d+) on", told)
    assert place is not None, told
    assert place[1] == str(tmp_path / "data" / "part-0")
    assert int(place[2]) <= 156, "the sample stands in the line after"
    assert any(line.startswith("giving up: 5 losses within") for line in job.view.said)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sync", "async", "half_async", "geo"])
@pytest.mark.parametrize("seed", range(3))
def test_random_kills(tmp_path: Path, mode: str, seed: int) -> None:
    """At any moment: while processes start, meet, cut, load or end too."""
    job, chance = Job(tmp_path, mode, restarts=20), random.Random(f"{mode} {seed}")

    def killer(job: Job) -> None:
        job.wait_for(lambda: len(job.view.processes) == 4)
        for _ in range(3):
            time.sleep(chance.uniform(0.1, 6.0))  # not a wait for anything: any moment will do
            if job.outcome is None:
                job.send(chance.choice(sorted(job.view.processes)), KILL)

    assert job.run(killer).exit_code == 0, job.logs()
    job.check_counts()
