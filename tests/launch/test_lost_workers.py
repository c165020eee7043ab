"""Workers of real jobs that end badly under the launcher: what becomes of the job is up to its servers, not to a flag.

The time-out is long: whoever hears of the end has been told of it.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest

from sparsefleet.checkpoint import Checkpoint, latest

HELPERS = Path(__file__).parents[1] / "helpers"
TIMEOUT = 150
SOON = 60.0
"""Well below the time-out, also on a busy machine."""

JOB = f"""
    from small_jobs import Given, batches, small_model
    from sparsefleet import fleet, optim
    from sparsefleet.train import FetchHandler, SavePolicy, Trainer

    class Held(FetchHandler):
        def handler(self, fetched):
            print("step", int(fetched[0]), "pid", os.getpid())
            if fetched[0] == 5:
                until("go")

    fleet.init()
    strategy = fleet.DistributedStrategy(mode=sys.argv[1], timeout={TIMEOUT})
    optimizer = fleet.distributed_optimizer(optim.SGD(1e-2), strategy)
    if fleet.is_server():
        fleet.init_server()
        fleet.run_server()
    if sys.argv[2:] == ["fails", str(fleet.worker_index())]:
        sys.exit("error: this worker never registers")
    fleet.init_worker()
    if sys.argv[2:] == ["leaves", str(fleet.worker_index())]:
        sys.exit()
    result = Trainer(optimizer).fit(
        small_model(),
        Given(batches(30, seed=fleet.worker_index())),
        epochs=2,
        save=SavePolicy("run", every_steps=10),
        fetch=[Held(["step"], period_batches=1)],
    )
    if fleet.is_first_worker():
        fleet.save_persistables("model")
    fleet.stop_worker()
    print(result.rows, "rows without", ", ".join(result.lost))
"""


@pytest.fixture
def job(launcher):
    """Starts a job of a mode, kills a worker in its midst, and returns what the launcher ended with and said."""
    launcher.environment = {"PYTHONPATH": os.pathsep.join([str(HELPERS), *sys.path])}

    def run(mode: str, killed: int) -> tuple[int, str]:
        process = launcher.start("--server_num=2", "--worker_num=2", launcher.script(JOB), mode)
        logs = launcher.logs
        launcher.wait_until(lambda: all("step 5 " in logs().get(f"workerlog.{w}", "") for w in range(2)))
        os.kill(int(re.findall(r"pid (\d+)", logs()[f"workerlog.{killed}"])[-1]), signal.SIGKILL)
        killed_at = time.monotonic()
        (launcher.folder / "go").touch()
        said = launcher.finish(process)
        assert time.monotonic() - killed_at < SOON, said
        assert launcher.left() == []
        return process.returncode, said

    return run


@pytest.mark.parametrize(("mode", "killed"), [("async", 0), pytest.param("geo", 1, marks=pytest.mark.slow)])
def test_the_rest_finish_and_the_model_is_saved(launcher, job, mode: str, killed: int) -> None:
    status, said = job(mode, killed)
    other = 1 - killed
    assert status == 128 + signal.SIGKILL, said
    assert f"worker {killed} failed (killed by SIGKILL); the others go on without it" in said
    assert f"the job went on without worker {killed}: worker {other} ended well" in said
    log = launcher.logs()[f"workerlog.{other}"]
    assert f"1200 rows without worker {killed} (process " in log, log
    assert f"the job ends without worker {killed} (process " in log
    for path in (launcher.folder / "model", latest(launcher.folder / "run")):
        training = Checkpoint.open(path).manifest.extra["training"]
        assert training["epoch"] == 2, json.dumps(training)[:300]


@pytest.mark.slow
def test_in_sync_the_rest_end_too_and_name_it(launcher, job) -> None:
    status, said = job("sync", 0)
    assert status == 128 + signal.SIGKILL
    assert "worker 0 failed (killed by SIGKILL); the others may go on for 30 s" in said
    assert "worker 1 (exit status 1)" in said
    assert "lost worker 0 (process " in launcher.logs()["workerlog.1"]


@pytest.mark.slow
def test_one_that_fails_before_it_registers_ends_the_job_though_the_mode_would_go_on(launcher) -> None:
    launcher.environment = {"PYTHONPATH": os.pathsep.join([str(HELPERS), *sys.path])}
    (launcher.folder / "go").touch()
    process = launcher.start("--server_num=2", "--worker_num=2", launcher.script(JOB), "async", "fails", 1)
    launcher.wait_until(lambda: "never registers" in launcher.logs().get("workerlog.1", ""))
    ended_at = time.monotonic()
    said = launcher.finish(process)
    assert time.monotonic() - ended_at < SOON, said
    assert process.returncode == 1
    assert "worker 1 failed (exit status 1); the others may go on for 30 s" in said
    assert "failed too: worker 0 (exit status 1)" in said
    assert "worker 1 (ended before it registered: exit status 1)" in launcher.logs()["workerlog.0"]
    assert launcher.left() == []


@pytest.mark.slow
def test_one_that_leaves_with_status_0_before_its_work_is_done_does_not_pass_for_done(launcher) -> None:
    launcher.environment = {"PYTHONPATH": os.pathsep.join([str(HELPERS), *sys.path])}
    (launcher.folder / "go").touch()
    process = launcher.start("--server_num=1", "--worker_num=2", launcher.script(JOB), "async", "leaves", 1)
    said = launcher.finish(process)
    assert process.returncode == 3, said
    assert "server 0 failed first: exit status 3" in said
    assert "may go on for" not in said, "the rest has stopped, and may take as long as it likes to end"
    assert re.search(
        r"worker 1 \(.*\), which failed: it ended without fleet.stop_worker\(\); rows that it had not", said
    )
    assert "1200 rows without worker 1" in launcher.logs()["workerlog.0"]  # the rest has finished all the same
    assert "this trainer ends without fleet.stop_worker()" in launcher.logs()["workerlog.1"]
