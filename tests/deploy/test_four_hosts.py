"""The pods of deploy/kubernetes by hand: each in namespaces of its own, with the variables that its manifest sets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from manifests import documents, pods_of

from sparsefleet.datasets.synth import SynthSpec, synth

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from parts.namespaces import Network, missing

JOB_SECONDS = 180.0


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_pods_in_four_namespaces_train_one_model(tmp_path: Path) -> None:
    if reason := missing():
        pytest.skip(reason)
    data = tmp_path / "data"
    synth(data, SynthSpec(20_000, 2_000))
    pods = [*pods_of(documents("servers.yaml")[1]), *pods_of(documents("trainers.yaml")[0])]
    service = documents("servers.yaml")[0]["metadata"]["name"]
    # What the cluster's DNS says of a headless service.
    names = {f"{pod.name}.{service}": pod.name for pod in pods if pod.name.startswith(service)}
    mounts = {"/shared/data": str(data), "/shared/model": str(tmp_path / "model")}
    processes: dict[str, subprocess.Popen[bytes]] = {}
    with Network([pod.name for pod in pods], known_as=names, folder=tmp_path) as network:
        for pod in pods:
            program, *words = pod.command
            assert program == "sparsefleet"
            for mounted, folder in mounts.items():
                words = [word.replace(mounted, folder) for word in words]
            environment = {**os.environ, **pod.environment, **dict.fromkeys(pod.secrets, "of the secret")}
            command = [sys.executable, "-m", "sparsefleet", *words, "--json"]
            with open(tmp_path / f"{pod.name}.log", "wb") as log:
                processes[pod.name] = network[pod.name].start(command, environment, log, tmp_path)
        deadline = time.monotonic() + JOB_SECONDS
        for name in ["ctr-trainers-0", "ctr-trainers-1", "ctr-servers-0", "ctr-servers-1"]:
            try:
                status = processes[name].wait(max(1.0, deadline - time.monotonic()))
            finally:
                logs = "\n".join(f"--- {pod.name}\n{(tmp_path / f'{pod.name}.log').read_text()}" for pod in pods)
            assert status == 0, logs
    result = json.loads((tmp_path / "ctr-trainers-0.log").read_text().splitlines()[-1])
    assert result["rows"] == 20_000, logs
    assert result["trainers"] == 2
    assert result["lost"] == []
    assert result["test_auc"] > 0.55
    assert Path(result["model"]).is_dir()
