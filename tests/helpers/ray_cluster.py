"""A Ray cluster of several nodes on this machine, in a process of its own: addresses 127.0.0.2, 127.0.0.3, …

Not 127.0.0.1: Ray takes that for "this host", and looks for its outer address.

    python ray_cluster.py CPUS,CPUS,… 0    prints its address; reads `kill N` (a node is lost) and `add CPUS` (one
                                           joins); ends with its input. 1: with a dashboard
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ray.cluster_utils import Cluster

SMALL = {"object_store_memory": 80 << 20, "memory": 8 << 30}
NODES_SECONDS = 120.0
TRIES = 2
"""Ray gives a node 30 s to start, which a busy machine may pass."""
ABSENT = "Ray is not installed (pip install 'sparsefleet[ray]'): jobs on Ray are NOT tested"


@dataclass(frozen=True)
class RunningCluster:
    address: str
    dashboard: str
    metrics: str
    """Where the head's metrics are, for Prometheus."""
    folder: Path
    """Where the head keeps its files."""
    grafana_port: int
    """Where its dashboard looks for Grafana: not the usual port, where other programs may listen."""
    prometheus_port: int
    process: subprocess.Popen[str]

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "RAY_ADDRESS": self.address}

    def kill_node(self, number: int) -> None:
        """The node at 127.0.0.(number + 2); 0 is the head."""
        self._ask(f"kill {number}")

    def add_node(self, cpus: int) -> None:
        self._ask(f"add {cpus}")

    def _ask(self, order: str) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{order}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == f"done: {order}\n"


@contextlib.contextmanager
def ray_cluster(cpus: list[int], *, dashboard: bool = False) -> Iterator[RunningCluster]:
    if find_spec("ray") is None:
        pytest.skip(ABSENT)
    command = [sys.executable, str(Path(__file__)), ",".join(map(str, cpus)), str(int(dashboard))]
    said = tempfile.TemporaryFile("w+")  # noqa: SIM115  (open as long as the process)
    # A worker process that starts late on a busy machine is none that failed.
    patient = {**os.environ, "RAY_worker_register_timeout_seconds": "240", "RAY_JOB_STOP_WAIT_TIME_S": "120"}
    grafana, prometheus = free_port(), free_port()
    patient |= {"RAY_GRAFANA_HOST": f"http://localhost:{grafana}"}
    patient |= {"RAY_PROMETHEUS_HOST": f"http://localhost:{prometheus}"}
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, text=True, env=patient
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if line.startswith("{"):
                found = json.loads(line)
                told = (found["address"], found["dashboard"], found["metrics"], Path(found["folder"]))
                yield RunningCluster(*told, grafana, prometheus, process)
                return
        said.seek(0)
        pytest.fail(f"the Ray cluster did not start:\n{said.read()[-5000:]}")
    finally:
        said.close()
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def started(cpus: list[int], dashboard: bool, folder: str) -> Cluster:
    from ray._private.utils import get_ray_address_file
    from ray.cluster_utils import Cluster

    # Cluster writes its address to Ray's usual folder too, and does not make it: on a new machine there is none.
    Path(get_ray_address_file(None)).parent.mkdir(parents=True, exist_ok=True)
    # Another cluster of this machine may have the usual ports: a node that waits for one does not start in time.
    head = {"include_dashboard": dashboard, "dashboard_host": "127.0.0.1", "dashboard_port": free_port()}
    head |= {"dashboard_agent_listen_port": 0, "temp_dir": folder}
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": cpus[0], "node_ip_address": "127.0.0.2", **head, **SMALL},
    )
    try:
        for number, count in enumerate(cpus[1:], 3):
            cluster.add_node(num_cpus=count, node_ip_address=f"127.0.0.{number}", **SMALL)
        cluster.wait_for_nodes(NODES_SECONDS)
    except BaseException:
        cluster.shutdown()
        raise
    return cluster


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def main() -> None:
    cpus, dashboard = [int(count) for count in sys.argv[1].split(",")], sys.argv[2] == "1"
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        for number in range(1, TRIES + 1):
            try:
                own = f"{folder}/{number}"
                cluster = started(cpus, dashboard, own)
                break
            except Exception:
                if number == TRIES:
                    raise
                traceback.print_exc()
        obey(cluster, dashboard, own)


def reap(cluster: Cluster) -> None:
    """Take note of raylets that have ended by themselves. Ray's workers ask whether the number of their raylet is still
    there, and a dead child that nobody has reaped has its number. (On a cluster, raylets are not anybody's children.)
    """
    while True:
        for node in list(cluster.list_all_nodes()):
            for started in list(node.all_processes.values()):
                for one in list(started):
                    one.process.poll()
        time.sleep(0.5)


def obey(cluster: Cluster, dashboard: bool, folder: str) -> None:
    threading.Thread(target=reap, args=(cluster,), daemon=True).start()
    nodes = sorted(cluster.list_all_nodes(), key=lambda node: str(node.node_ip_address))
    try:
        url = cluster.head_node.webui_url if dashboard else ""
        metrics = f"127.0.0.2:{cluster.head_node.metrics_export_port}"
        about = {"address": cluster.address, "dashboard": url, "metrics": metrics, "folder": folder}
        print(json.dumps(about), flush=True)
        for line in sys.stdin:
            order, number = line.split()
            if order == "kill":
                cluster.remove_node(nodes[int(number)], allow_graceful=False)
            else:
                address = f"127.0.0.{len(nodes) + 2}"
                nodes.append(cluster.add_node(num_cpus=int(number), node_ip_address=address, **SMALL))
            print(f"done: {line.strip()}", flush=True)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
