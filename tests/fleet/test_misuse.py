"""Scripts that use the facade in another order, or leave it without a word."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from server_processes import SOURCES, servers
from small_jobs import Given, batches, small_model

from sparsefleet import optim
from sparsefleet.core.errors import ConfigError, StoreError
from sparsefleet.core.process_role import PROCESS_ROLE
from sparsefleet.fleet import Role
from sparsefleet.fleet.facade import Fleet
from sparsefleet.store import LocalStore
from sparsefleet.train import Trainer

SERVERS = ["127.0.0.1:1"]


@pytest.fixture(autouse=True)
def as_before(monkeypatch):
    monkeypatch.setattr(PROCESS_ROLE, "part_of_job", "")


def test_a_trainer_without_the_jobs_optimizer_is_refused_in_a_job_of_several():
    fleet = Fleet()
    fleet.init(Role.worker(1, 2, SERVERS))
    with pytest.raises(ConfigError, match=r"this process is worker 1 of a job, but its Trainer would train a model of"):
        Trainer(optim.Adam()).fit(small_model(), Given(batches(2)))
    alone = Trainer(optim.Adam(), store=LocalStore())
    assert alone.fit(small_model(), Given(batches(2))).rows == 40
    fleet.init(Role())
    assert Trainer(optim.Adam()).fit(small_model(), Given(batches(2))).rows == 40


def test_a_server_needs_to_know_the_strategy():
    fleet = Fleet()
    fleet.init(Role.server(0, 1, SERVERS))
    fleet.init_server()
    with pytest.raises(
        ConfigError, match=r"call fleet.distributed_optimizer\(optimizer, strategy\) before fleet.run_s"
    ):
        fleet.run_server()


def test_the_strategy_comes_before_the_connection():
    with servers() as job:
        job.start(1)
        fleet = Fleet()
        fleet.init(Role.worker(0, 1, job.endpoints))
        fleet.init_worker()
        try:
            with pytest.raises(ConfigError, match=r"distributed_optimizer\(\) after init_worker\(\): call it before"):
                fleet.distributed_optimizer(optim.SGD())
        finally:
            fleet.stop_worker()


SCRIPT = """
import sys
from sparsefleet import fleet, optim
fleet.init()
fleet.distributed_optimizer(optim.SGD())
fleet.init_worker()
{end}
"""


@pytest.mark.parametrize(
    ("end", "error"),
    [
        (
            "raise ValueError('no such column')",
            r"the job has ended: worker 1 \(.*\) failed: no such column\. Once that",
        ),
        pytest.param(
            "try: raise ValueError('no such column')\nfinally: fleet.stop_worker()",
            r"the job has ended: worker 1 \(.*\) failed: no such column\. Once that",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "try: sys.exit(3)\nfinally: fleet.stop_worker()",
            r"the job has ended: worker 1 \(.*\) failed: exit status 3\. Once that",
            marks=pytest.mark.slow,
        ),
        (
            "sys.exit(3)",
            r"lost worker 1 \(.*\), which failed: it ended without fleet.stop_worker\(\); the time-out is 20 s",
        ),
        ("", r"lost worker 1 \(.*\), which failed: it ended without fleet.stop_worker\(\); the time-out is 20 s"),
    ],
)
def test_a_script_that_ends_without_stop_worker_is_lost_at_once(end, error):
    with servers() as job:
        other = job.start(1, "--timeout", "20").store(0, 2)
        environment = {**os.environ, "PYTHONPATH": str(SOURCES), **Role.worker(1, 2, job.endpoints).environment()}
        script = subprocess.run(
            [sys.executable, "-c", SCRIPT.format(end=end)], env=environment, capture_output=True, text=True, timeout=60
        )
        assert script.returncode == (0 if not end else 3 if "sys.exit(3)" in end else 1), script.stderr
        with pytest.raises(StoreError, match=error):
            other.crew.barrier("end", timeout=5)


def test_a_forked_child_that_ends_is_no_trainer_that_ends():
    with servers() as job:
        other = job.start(1, "--timeout", "20").store(0, 2)
        environment = {**os.environ, "PYTHONPATH": str(SOURCES), **Role.worker(1, 2, job.endpoints).environment()}
        end = "import os\nif os.fork() == 0: sys.exit(0)\nos.wait()\nfleet.barrier_worker('end')\nfleet.stop_worker()"
        script = subprocess.Popen([sys.executable, "-c", SCRIPT.format(end=end)], env=environment)
        try:
            other.crew.barrier("end", timeout=60)
            assert script.wait(timeout=30) == 0
        finally:
            script.kill()
            script.wait()
        assert other.crew.lost() == []


@pytest.mark.parametrize(
    "end",
    [
        "try: sys.exit(0)\nfinally: fleet.stop_worker()",
        # handled: nothing is wrong
        pytest.param("try: raise OSError('busy')\nexcept OSError: fleet.stop_worker()", marks=pytest.mark.slow),
    ],
)
def test_stop_worker_on_the_way_out_of_a_script_that_ends_well(end):
    with servers() as job:
        other = job.start(1, "--timeout", "20").store(0, 2)
        environment = {**os.environ, "PYTHONPATH": str(SOURCES), **Role.worker(1, 2, job.endpoints).environment()}
        subprocess.run([sys.executable, "-c", SCRIPT.format(end=end)], env=environment, check=True, timeout=60)
        other.crew.barrier("end", timeout=5)
        assert other.crew.lost() == []
        assert other.stats()["workers"]["1"]["state"] in ("gone", "stopped")
