"""Jobs of two launchers, as on two hosts: what one host's bad start does to the other."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

HELPERS = Path(__file__).parents[1] / "helpers"
TIMEOUT = 150
SOON = 60.0
"""Well below the time-outs, also on a busy machine."""
ENDS_WITH = 11

JOB = f"""
    from small_jobs import Given, batches, small_model
    from sparsefleet import fleet, optim
    from sparsefleet.train import Trainer

    fleet.init()
    strategy = fleet.DistributedStrategy(mode="async", timeout={TIMEOUT}, connect_timeout=float(sys.argv[2]))
    optimizer = fleet.distributed_optimizer(optim.SGD(1e-2), strategy)
    if fleet.is_server():
        if sys.argv[1] == "killed" and fleet.server_index() == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        if sys.argv[1] == "fails" and fleet.server_index() == 0:
            sys.exit({ENDS_WITH})
        fleet.init_server()
        fleet.run_server()
    fleet.init_worker()
    Trainer(optimizer).fit(small_model(), Given(batches(30, seed=fleet.worker_index())), epochs=2)
    fleet.stop_worker()
"""


def hosts(launcher, free_port: int) -> list[str]:
    """Lists of one server and one worker on each of two hosts."""
    launcher.environment = {"PYTHONPATH": os.pathsep.join([str(HELPERS), *sys.path])}
    lists = ["--servers", f"127.0.0.1:{free_port},127.0.0.2:{free_port}", "--workers", "127.0.0.1,127.0.0.2"]
    return [*lists, "--timeout=5"]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["killed", "fails"])
def test_a_server_that_dies_while_it_starts_keeps_the_other_host_waiting_for_seconds_only(
    launcher, free_port: int, how: str
) -> None:
    script, lists = launcher.script(JOB), hosts(launcher, free_port)
    began = time.monotonic()
    there = launcher.start(*lists, "--host_ip=127.0.0.2", "--log_dir=there", script, how, 120)
    here = launcher.start(*lists, "--host_ip=127.0.0.1", script, how, 120)
    said_here, said_there = launcher.finish(here), launcher.finish(there)
    assert time.monotonic() - began < SOON
    assert here.returncode == (128 + signal.SIGKILL if how == "killed" else ENDS_WITH), said_here
    assert there.returncode == 1, said_there
    how_it_ended = "killed by SIGKILL" if how == "killed" else f"exit status {ENDS_WITH}"
    assert f"server 0 did not start: {how_it_ended}" in said_there
    assert launcher.left() == []


@pytest.mark.slow
def test_a_worker_with_a_wrong_token_is_missed_in_time_and_the_job_does_not_end_well(launcher, free_port: int) -> None:
    """Neither it nor its launcher can tell the servers anything: they miss it after `connect_timeout`."""
    script, lists = launcher.script(JOB), hosts(launcher, free_port)
    lists[1] = f"127.0.0.1:{free_port}"  # only the first host has a server
    launcher.environment |= {"SPARSEFLEET_TOKEN": "a" * 32}
    began = time.monotonic()
    here = launcher.start(*lists, "--host_ip=127.0.0.1", script, "well", 12)
    launcher.environment |= {"SPARSEFLEET_TOKEN": "b" * 32}
    there = launcher.start(*lists, "--host_ip=127.0.0.2", "--log_dir=there", script, "well", 12)
    said_there, said_here = launcher.finish(there), launcher.finish(here)
    assert time.monotonic() - began < SOON
    assert there.returncode == 1, said_there
    assert "this server wants a token; another came: set SPARSEFLEET_TOKEN to the same value" in said_there
    assert here.returncode == 3, said_here
    assert "but for worker 1 (never registered); rows that it had not trained are missing" in said_here
    assert launcher.left() == []
