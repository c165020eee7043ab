"""Elastic jobs of real processes that heal: trainers come and go, processes are lost, and every sample counts once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from elastic_jobs import by_hand, check_counts, elastic, scale_servers, scale_workers
from healing_jobs import TOKEN, Job

KILL, STOP = signal.SIGKILL, signal.SIGSTOP
MODES = ["sync", "half_async", "async", "geo"]


def healing(folder: Path, mode: str, **changed: object) -> Job:
    """Its pace leaves time for what is to happen; `hurry` ends it."""
    return elastic(folder, mode, **{"restarts": 10, "samples": 4000, "pace": 0.3, "cut_every": 0.5, **changed})


def steps(job: Job, worker: int) -> int:
    return job.log(f"worker {worker}").count("step ")


def wait_for_more_steps(job: Job, *workers: int) -> None:
    before = {worker: steps(job, worker) for worker in workers}
    job.wait_for(lambda: all(steps(job, worker) > before[worker] + 1 for worker in workers))


def test_a_killed_server_takes_an_elastic_job_back_to_its_cut(tmp_path: Path) -> None:
    job = healing(tmp_path, "async", workers=2, servers=1, elastic="1:3", samples=1000)

    def killer(job: Job) -> None:
        job.wait_for_cut()
        job.send("server 0", KILL)
        job.wait_for_attempt(2)
        job.hurry()

    assert job.run(killer).exit_code == 0, job.logs()
    check_counts(job)
    assert any("server 0 ended (killed by SIGKILL): attempt 2 begins from" in line for line in job.view.said)
    assert "samples are trained again here" in job.log("worker 0")


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_a_job_that_has_grown_loses_a_server_then_shrinks_and_grows_again(tmp_path: Path, mode: str) -> None:
    job = healing(tmp_path, mode, workers=1, servers=2)

    def killer(job: Job) -> None:
        job.wait_for_cut()
        assert scale_workers(job, 3) == [0, 1, 2]
        wait_for_more_steps(job, 1, 2)
        job.send("server 1", KILL)
        job.wait_for_attempt(2)
        wait_for_more_steps(job, 0, 1, 2)
        assert scale_workers(job, 1) == [0]
        job.wait_for(lambda: not any(job.view.processes[f"worker {one}"].running for one in (1, 2)))
        assert scale_workers(job, 2) == [0, 1], "a number is free again within an attempt"
        wait_for_more_steps(job, 1)
        job.send("server 0", KILL)
        job.wait_for_attempt(3)
        wait_for_more_steps(job, 0, 1)
        job.hurry()

    assert job.run(killer).exit_code == 0, job.logs()
    check_counts(job)
    said = "\n".join(job.view.said)
    assert "attempt 4" not in said, f"nobody waited for those that had left\n{job.logs()}"


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES[:3])
def test_a_lost_trainer_of_an_elastic_job_costs_no_going_back(tmp_path: Path, mode: str) -> None:
    # One server: there is none that could lack its last step.
    job = healing(tmp_path, mode, workers=2, servers=1)

    def killer(job: Job) -> None:
        job.wait_for_cut()
        assert scale_workers(job, 3) == [0, 1, 2]
        wait_for_more_steps(job, 2)
        job.send("worker 2", KILL)
        job.wait_for(lambda: any("it joins attempt 1" in line for line in job.view.said))
        wait_for_more_steps(job, 2)
        job.hurry()

    assert job.run(killer).exit_code == 0, job.logs()
    check_counts(job)
    assert "attempt 2" not in "\n".join(job.view.said)
    assert "samples are trained again" not in job.log("worker 0")


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_trainers_killed_on_several_servers_count_once_whether_their_last_step_was_torn_or_not(
    tmp_path: Path, mode: str
) -> None:
    job = healing(tmp_path, mode, workers=3, servers=3, samples=10_000, pace=0.03)

    def killer(job: Job) -> None:
        job.wait_for_cut()
        for worker in (1, 2, 0):
            lost = len(losses(job))
            job.send(f"worker {worker}", KILL)
            job.wait_for(lambda lost=lost: len(losses(job)) > lost)
            wait_for_more_steps(job, worker)
        job.hurry()

    assert job.run(killer).exit_code == 0, job.logs()
    check_counts(job)
    assert len(losses(job)) >= 3


def losses(job: Job) -> list[str]:
    return [line for line in job.view.said if "restarts are used up" in line]


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_more_servers_and_fewer_while_trainers_come_and_go(tmp_path: Path, mode: str) -> None:
    job = healing(tmp_path, mode, workers=1, servers=1)

    def change(job: Job) -> None:
        job.wait_for_cut()
        assert scale_workers(job, 2) == [0, 1]
        wait_for_more_steps(job, 1)
        scale_servers(job, 3)
        wait_for_more_steps(job, 0, 1)
        assert scale_workers(job, 3) == [0, 1, 2]
        wait_for_more_steps(job, 2)
        scale_servers(job, 2)
        wait_for_more_steps(job, 0, 1, 2)
        assert scale_workers(job, 1) == [0]
        job.hurry()

    assert job.run(change).exit_code == 0, job.logs()
    check_counts(job)
    assert "ended (" not in "\n".join(job.view.said), "nothing was lost"


@pytest.mark.slow
def test_one_that_was_started_by_hand_comes_to_the_next_attempt_too_and_may_die(tmp_path: Path) -> None:
    job = healing(tmp_path, "async", workers=1, servers=1, timeout=6.0)
    output = tmp_path / "by-hand.log"
    started: list[subprocess.Popen[bytes]] = []

    def steps_by_hand() -> int:
        return output.read_text().count("step ") if output.exists() else 0

    def killer(job: Job) -> None:
        job.wait_for_cut()
        started.append(by_hand(job, output))
        job.wait_for(lambda: steps_by_hand() > 2)
        job.send("server 0", KILL)
        job.wait_for_attempt(2)
        before = steps_by_hand()
        job.wait_for(lambda: steps_by_hand() > before + 2)
        started[0].kill()
        job.wait_for(lambda: any("worker 1 gives no sign of life; the others go on" in one for one in job.view.said))
        job.hurry()

    try:
        assert job.run(killer).exit_code == 0, f"{job.logs()}\n{output.read_text()}"
    finally:
        for process in started:
            process.kill()
            process.wait(10)
    check_counts(job)
    assert "attempt 3" not in "\n".join(job.view.said)


@pytest.mark.slow
def test_when_restarts_are_used_up_the_others_go_on_without_a_lost_trainer_down_to_the_least(tmp_path: Path) -> None:
    job = healing(tmp_path, "async", workers=3, servers=1, elastic="2:3", restarts=1)

    def killer(job: Job) -> None:
        job.wait_for_cut()
        job.send("worker 1", KILL)
        job.wait_for(lambda: any("it joins attempt 1" in line for line in job.view.said))
        wait_for_more_steps(job, 1)
        job.send("worker 2", KILL)
        job.wait_for(lambda: any("it is not started again" in line for line in job.view.said))
        wait_for_more_steps(job, 0, 1)
        job.hurry()

    assert job.run(killer).exit_code == 0, job.logs()
    check_counts(job)


@pytest.mark.slow
def test_one_loss_too_many_below_the_least_ends_the_job(tmp_path: Path) -> None:
    job = healing(tmp_path, "async", workers=2, servers=1, elastic="2:3", restarts=1)

    def killer(job: Job) -> None:
        job.wait_for_cut()
        for _ in range(2):
            job.send("worker 1", KILL)
            job.wait_for(lambda: not job.view.processes["worker 1"].running or losses(job))
            job.wait_for(lambda: job.view.processes["worker 1"].running)

    assert job.run(killer).exit_code == 128 + KILL, job.logs()
    assert any(line.startswith("giving up: 2 losses within") for line in job.view.said)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(2))
def test_random_kills_of_an_elastic_job(tmp_path: Path, mode: str, seed: int) -> None:
    """At any moment, while trainers come and go too."""
    job, chance = healing(tmp_path, mode, workers=2, servers=2, restarts=30), random.Random(f"elastic {mode} {seed}")
    scaling: list[subprocess.Popen[bytes]] = []

    def killer(job: Job) -> None:
        job.wait_for_cut()
        for _ in range(5):
            if job.outcome is not None:
                break
            if chance.random() < 0.5:
                address = job.view.processes["server 0"].role.server_endpoints[0]
                command = [sys.executable, "-m", "sparsefleet", "scale", address, "--timeout", "60"]
                scaling.append(
                    subprocess.Popen(
                        [*command, "--workers", str(chance.randrange(1, 5))],
                        env={**os.environ, "SPARSEFLEET_TOKEN": TOKEN},
                        stdout=subprocess.DEVNULL,
                        stderr=subprocess.DEVNULL,
                    )
                )
            time.sleep(chance.uniform(0.1, 6.0))  # not a wait for anything: any moment will do
            alive = [name for name, process in sorted(job.view.processes.items()) if process.running]
            if alive:
                job.send(chance.choice(alive), KILL)
        job.hurry()

    try:
        assert job.run(killer).exit_code == 0, job.logs()
    finally:
        for process in scaling:
            process.kill()
            process.wait(10)
    check_counts(job)
