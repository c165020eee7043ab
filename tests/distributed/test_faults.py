"""Faults of real processes: whoever is killed or stopped, nobody hangs, and the error names who it was."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest
from role_processes import Options, role_job

from sparsefleet.fleet.roles import Role

TIMEOUT = Options.timeout
SLACK = 8.0
"""Seconds that a busy machine may add."""
KILL, STOP, CONTINUE = signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT


def check_servers_end(job, status, within=2 * TIMEOUT + SLACK):
    """Without trainers the servers end too; nothing is left."""
    for name in job.processes:
        if name.startswith("server"):
            assert job.exit_of(name, within) in (status, -KILL), job.logs()


def test_nothing_happens(tmp_path):
    with role_job(tmp_path, mode="sync", steps=10) as job:
        job.start_all()
        for name in ("worker0", "worker1"):
            assert job.exit_of(name, 30) == 0, job.logs()
            assert job.result_of(name)["rows"] == 200
        check_servers_end(job, 0)


def test_a_killed_trainer_stops_sync_with_its_name(tmp_path):
    with role_job(tmp_path, workers=3, mode="sync", steps=500) as job:
        job.start_all().wait_for_step(3, "worker0", "worker1", "worker2")
        pid = job.processes["worker1"].pid
        killed = job.signal("worker1", KILL)
        for name in ("worker0", "worker2"):
            assert job.exit_of(name, TIMEOUT + SLACK) == 1
            assert f"lost worker 1 (process {pid} on " in job.log(name), job.log(name)
            assert f"the time-out is {TIMEOUT:g} s" in job.log(name)
        assert time.monotonic() - killed < TIMEOUT + SLACK
        check_servers_end(job, 1)


@pytest.mark.slow
def test_a_killed_trainer_is_left_out_of_sync_by_setting(tmp_path):
    with role_job(tmp_path, mode="sync", steps=30, lost_trainer="drop") as job:
        job.start_all().wait_for_step(3, "worker0", "worker1")
        job.signal("worker1", KILL)
        assert job.exit_of("worker0", TIMEOUT + 2 * SLACK) == 0, job.logs()
        assert job.result_of("worker0") == {**job.result_of("worker0"), "rows": 600, "lost": 1}
        assert "went on without worker 1 (process " in job.log("worker0")
        check_servers_end(job, 3)


@pytest.mark.parametrize(
    "mode", ["async", *(pytest.param(mode, marks=pytest.mark.slow) for mode in ("half_async", "geo"))]
)
def test_a_killed_trainer_does_not_stop_the_others(tmp_path, mode):
    with role_job(tmp_path, mode=mode, steps=30) as job:
        job.start_all().wait_for_step(3, "worker0", "worker1")
        job.signal("worker1", KILL)
        assert job.exit_of("worker0", TIMEOUT + 2 * SLACK) == 0, job.logs()
        assert job.result_of("worker0") == {**job.result_of("worker0"), "rows": 600, "lost": 1}
        assert "the job ends without worker 1 (process " in job.log("worker0")
        check_servers_end(job, 3)


@pytest.mark.parametrize("mode", ["async", *(pytest.param(m, marks=pytest.mark.slow) for m in ("half_async", "geo"))])
def test_an_error_of_one_trainer_ends_the_job_and_nothing_is_saved(tmp_path, mode):
    model = tmp_path / "model"
    with role_job(tmp_path, mode=mode, steps=500, save_to=str(model)) as job:
        for index in range(2):
            job.start_server(index)
        job.start_worker(0)
        job.start_worker(1, fail_at=20)
        assert job.exit_of("worker1", 30) == 1
        assert job.exit_of("worker0", SLACK) == 1, job.logs()  # at once: no time-out has to pass
        assert re.search(r"worker 1 \(process .*\) failed: a loss that is no number", job.log("worker0"))
        check_servers_end(job, 1)
    assert not model.exists()


@pytest.mark.slow
def test_a_trainer_that_is_interrupted_alone_is_lost_and_the_others_go_on(tmp_path):
    with role_job(tmp_path, mode="async", steps=60, timeout=30.0, save=str(tmp_path / "saved")) as job:
        job.start_all().wait_for_step(3, "worker0", "worker1")
        job.signal("worker1", signal.SIGINT)
        assert job.exit_of("worker1", 30) == 1
        assert "not saved, since the other trainers go on or are gone" in job.log("worker1"), job.logs()
        assert job.exit_of("worker0", 30) == 0, job.logs()
        assert job.result_of("worker0") == {**job.result_of("worker0"), "rows": 1200, "lost": 1}


@pytest.mark.slow
def test_a_stopped_trainer_is_lost_too(tmp_path):
    with role_job(tmp_path, mode="sync", steps=500) as job:
        job.start_all().wait_for_step(3, "worker0", "worker1")
        job.signal("worker1", STOP)
        assert job.exit_of("worker0", TIMEOUT + SLACK) == 1
        assert "lost worker 1 (process " in job.log("worker0")
        job.signal("worker1", CONTINUE)
        assert job.exit_of("worker1", 2 * TIMEOUT + SLACK) == 1, job.logs()
        check_servers_end(job, 1)


FAULTS = [("async", KILL), ("sync", STOP)]
MORE_FAULTS = [(m, s) for m in ("sync", "half_async", "async", "geo") for s in (KILL, STOP) if (m, s) not in FAULTS]


@pytest.mark.parametrize(
    ("mode", "fault"), [*FAULTS, *(pytest.param(*each, marks=pytest.mark.slow) for each in MORE_FAULTS)]
)
def test_a_dead_server_ends_every_trainer_with_its_name_and_the_last_checkpoint(tmp_path, mode, fault):
    folder = tmp_path / "saved"
    with role_job(tmp_path, mode=mode, steps=40, epochs=30, save=str(folder)) as job:
        job.start_all().wait_for_step(50, "worker0", "worker1")  # within the second epoch
        job.wait_until(lambda: all("knows of" in job.log(f"worker{i}") for i in (0, 1)), 30)
        struck = job.signal("server1", fault)
        for name in ("worker0", "worker1"):
            assert job.exit_of(name, TIMEOUT + SLACK) == 1, job.logs()
            assert f"server 1 ({job.endpoints[1]})" in job.log(name), job.log(name)
            assert f"resume from {folder}/step-" in job.log(name), job.log(name)
        assert time.monotonic() - struck < TIMEOUT + SLACK
        job.signal("server1", CONTINUE) if fault == STOP else None
        check_servers_end(job, 1)
        # What the message says to resume from is whole.
        path = Path(job.log("worker0").rpartition("resume from ")[2].split()[0])
        assert (path / "manifest.json").exists()


def test_who_waits_for_a_trainer_notices_a_dead_server_too(tmp_path):
    """The trainer waited for is stuck itself: without a look at the servers, it would get the blame."""
    with role_job(tmp_path, mode="async", steps=5) as job:
        for server in range(2):
            job.start_server(server)
        job.start_worker(0, hold=str(tmp_path / "never"))
        job.start_worker(1)
        job.wait_for_step(2, "worker0")
        job.wait_for_step(5, "worker1")
        job.signal("server1", STOP)
        assert job.exit_of("worker1", TIMEOUT + SLACK) == 1
        assert f"server 1 ({job.endpoints[1]}) did not answer" in job.log("worker1"), job.log("worker1")


def test_without_a_checkpoint_the_message_says_so(tmp_path):
    with role_job(tmp_path, servers=1, workers=1, mode="async", steps=500) as job:
        job.start_all().wait_for_step(3, "worker0")
        job.signal("server0", KILL)
        assert job.exit_of("worker0", TIMEOUT + SLACK) == 1
        assert "no checkpoint was saved in this run" in job.log("worker0")


def test_a_trainer_waits_for_servers_with_a_message(tmp_path):
    with role_job(tmp_path, workers=1, steps=5) as job:
        job.start_worker(0)
        job.wait_until(lambda: f"waiting for server 0 ({job.endpoints[0]}) to come up" in job.log("worker0"))
        job.start_server(0)
        job.start_server(1)
        assert job.exit_of("worker0", 30) == 0, job.logs()
        check_servers_end(job, 0)


def test_and_not_for_ever(tmp_path):
    with role_job(tmp_path, workers=1, connect_timeout=1.5) as job:
        job.start_worker(0)
        assert job.exit_of("worker0", 1.5 + SLACK) == 1
        assert f"server 0 ({job.endpoints[0]}) did not come up within 1.5 s" in job.log("worker0")


def test_trainers_that_do_not_belong_are_refused_and_the_job_goes_on(tmp_path):
    """A second trainer of the same number, and trainers with another list of servers or another count."""
    hold = tmp_path / "go on"
    with role_job(tmp_path, mode="sync", steps=10, hold=str(hold)) as job:
        job.start_all().wait_for_step(2, "worker0", "worker1")
        swapped = Role.worker(1, 2, job.endpoints[::-1]).environment()
        other = Role.worker(1, 2, (*job.endpoints, "127.0.0.1:9")).environment()
        more = Role.worker(2, 3, job.endpoints).environment()
        job.start("second", Role.worker(0, 2, job.endpoints).environment())
        job.start("swapped", swapped)
        job.start("other", other)
        job.start("more", more)
        said = {
            "second": f"worker 0 (process {job.processes['second'].pid} on ",
            "swapped": "the server lists differ in order",
            "other": "server lists differ: worker 1",
            "more": "worker counts differ: worker 2",
        }
        for name, words in said.items():
            assert job.exit_of(name, 20) == 1
            assert words in job.log(name), job.log(name)
        assert "is refused" in job.log("second")
        hold.touch()
        for name in ("worker0", "worker1"):
            assert job.exit_of(name, 30) == 0, job.logs()
            assert job.result_of(name)["lost"] == 0
        check_servers_end(job, 0)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"TRAINING_ROLE": "TRAINR"}, "TRAINING_ROLE='TRAINR' is not a role; set it to PSERVER or TRAINER"),
        ({"PADDLE_TRAINER_ID": ""}, "PADDLE_TRAINER_ID is not set"),
        ({"PADDLE_TRAINER_ID": "2"}, "PADDLE_TRAINER_ID=2 with PADDLE_TRAINERS_NUM=2; allowed is 0 to 1"),
        ({"PADDLE_TRAINERS_NUM": "two"}, "PADDLE_TRAINERS_NUM='two' is not a whole number"),
        ({"PADDLE_PSERVERS_IP_PORT_LIST": "127.0.0.1"}, "PADDLE_PSERVERS_IP_PORT_LIST: '127.0.0.1' is not an address"),
    ],
)
def test_a_wrong_environment_is_named(tmp_path, changed, named):
    with role_job(tmp_path) as job:
        job.start("worker", {**Role.worker(0, 2, job.endpoints).environment(), **changed})
        assert job.exit_of("worker", 20) == 1
        assert named in job.log("worker")


def test_no_role_is_left_when_the_test_ends(tmp_path):
    with role_job(tmp_path, mode="sync", steps=500) as job:
        job.start_all().wait_for_step(1, "worker0", "worker1")
        pids = [process.pid for process in job.processes.values()]
    for pid in pids:
        with pytest.raises(ProcessLookupError, match="No such process"):
            os.kill(pid, 0)
