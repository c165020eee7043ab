"""Jobs on Ray that lose roles, actors and nodes: every sample is in the model once, as under the local launcher."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from healing_jobs import HERE, Job
from ray_cluster import RunningCluster, ray_cluster
from ray_jobs import RayJob, parent_of, roles_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.xdist_group("ray")]
SECONDS = 240.0
TIMEOUT = 30.0


def run(
    cluster: RunningCluster, job: Job, killer: Callable[[RayJob], None], *options: str, script: str = "counting_job.py"
) -> str:
    """A whole job on the cluster, and what its driver said."""
    command = [sys.executable, "-m", "sparsefleet.launch", "--on", "ray", "--restarts", "5", "--cut_every", "0.5"]
    command += [f"--server_num={job.servers}", f"--worker_num={job.workers}", "--timeout", str(TIMEOUT), *options]
    command += [str(HERE / script), job.mode, job.make_data(), str(job.folder / "saved"), str(job.pace), str(TIMEOUT)]
    with RayJob(command, job.folder, cluster.environment) as driver:
        killer(driver)
        status = driver.ended(SECONDS)
        assert status == 0, f"{driver.output}\n{job.logs()}"
        return driver.output


def trains(driver: RayJob, step: int) -> None:
    driver.wait_for(f"step {step}\n", "workerlog.0", SECONDS)


def node_of(driver: RayJob, role: str) -> str:
    """The address of the node that a role was started on last."""
    return re.findall(rf"{role}: running, node ([\d.]+)", driver.output)[-1]


def process_of(driver: RayJob, role: str) -> int:
    return int(re.findall(rf"{role}: running, node [\d.]+, pid (\d+) there", driver.output)[-1])


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_node_with_a_server_is_lost_in_mid_epoch(mode: str, tmp_path: Path) -> None:
    job = Job(tmp_path, mode, samples=800, pace=0.1)

    def killer(driver: RayJob) -> None:
        trains(driver, 5)
        roles = ["server 0", "server 1"]
        lost = next(node for node in (node_of(driver, role) for role in roles) if node != "127.0.0.2")
        cluster.kill_node(int(lost.rpartition(".")[2]) - 2)

    with ray_cluster([2, 2, 2]) as cluster:
        said = run(cluster, job, killer)
        assert roles_of(tmp_path) == []
    job.check_counts()
    assert re.search(r"server \d ended \(lost with its actor: .*attempt \d begins from", said), said
    assert "servers are at " in said
    assert not list((tmp_path / "log").glob("cuts-*")), "cuts stay behind"


def test_roles_and_actors_are_killed_and_the_others_live_on(tmp_path: Path) -> None:
    job = Job(tmp_path, "sync", samples=800, pace=0.1)

    def killer(driver: RayJob) -> None:
        trains(driver, 3)
        os.kill(process_of(driver, "server 1"), signal.SIGKILL)
        driver.wait_for("attempt 2 trains on", seconds=SECONDS)
        os.kill(parent_of(process_of(driver, "server 0")), signal.SIGKILL)
        driver.wait_for("attempt 3 trains on", seconds=SECONDS)
        os.kill(parent_of(process_of(driver, "worker 1")), signal.SIGKILL)
        driver.wait_for("attempt 4 trains on", seconds=SECONDS)

    with ray_cluster([2, 2, 2]) as cluster:
        said = run(cluster, job, killer)
        assert roles_of(tmp_path) == []
    job.check_counts()
    assert "server 1 ended (killed by SIGKILL): attempt 2 begins from" in said
    assert "servers are at " not in said  # none has moved
    assert job.log("worker 0").count("call 1 of fit") == 0  # it was never started again


def test_a_job_without_room_waits_and_goes_on_when_a_node_joins(tmp_path: Path) -> None:
    job = Job(tmp_path, "async", samples=600, servers=1, workers=1, pace=0.1)

    def killer(driver: RayJob) -> None:
        trains(driver, 5)
        cluster.kill_node(1)
        driver.wait_for("s for room on the cluster: still without are 1 ", seconds=SECONDS)
        driver.wait_for("the others are ended too, and start again with them", seconds=SECONDS)
        cluster.add_node(2)

    with ray_cluster([2, 2]) as cluster:
        # Each role takes a node.
        said = run(cluster, job, killer, "--server_cpus=2", "--worker_cpus=2")
    job.check_counts()
    assert re.search(r"still without are 1 (server|worker) of 2 CPU and 1.0 GiB; of its 2 CPU", said), said
