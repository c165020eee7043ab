"""A Ray cluster of several nodes on this machine, in a process of its own: addresses 127.0.0.2, 127.0.0.3, …

Not 127.0.0.1: Ray takes that for "this host", and looks for its outer address.

    python ray_cluster.py CPUS,CPUS,…      prints its address; reads `kill N` (a node is lost); ends with its input
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

ABSENT = "Ray is not installed (pip install 'sparsefleet[ray]'): jobs on Ray are NOT tested"


@dataclass(frozen=True)
class RunningCluster:
    address: str
    dashboard: str
    process: subprocess.Popen[str]

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "RAY_ADDRESS": self.address}

    def kill_node(self, number: int) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"kill {number}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == f"killed {number}\n"


@contextlib.contextmanager
def ray_cluster(cpus: list[int], *, dashboard: bool = False) -> Iterator[RunningCluster]:
    if find_spec("ray") is None:
        pytest.skip(ABSENT)
    command = [sys.executable, str(Path(__file__)), ",".join(map(str, cpus)), str(int(dashboard))]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if line.startswith("{"):
                found = json.loads(line)
                yield RunningCluster(found["address"], found["dashboard"], process)
                return
        pytest.fail("the Ray cluster did not start")
    finally:
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def main() -> None:
    from ray.cluster_utils import Cluster

    cpus, dashboard = [int(count) for count in sys.argv[1].split(",")], sys.argv[2] == "1"
    small = {"object_store_memory": 80 << 20, "memory": 8 << 30}
    head = {"include_dashboard": dashboard, "dashboard_host": "127.0.0.1"}
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": cpus[0], "node_ip_address": "127.0.0.2", **head, **small},
    )
    nodes = [cluster.head_node]
    try:
        for number, count in enumerate(cpus[1:], 3):
            nodes.append(cluster.add_node(num_cpus=count, node_ip_address=f"127.0.0.{number}", **small))
        cluster.wait_for_nodes()
        url = cluster.head_node.webui_url if dashboard else ""
        print(json.dumps({"address": cluster.address, "dashboard": url}), flush=True)
        for line in sys.stdin:
            number = int(line.split()[1])
            cluster.remove_node(nodes[number], allow_graceful=False)
            print(f"killed {number}", flush=True)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
