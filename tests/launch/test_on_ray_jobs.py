"""Whole jobs on a Ray cluster of three nodes, all on loopback; and what bad days get."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ray_cluster import RunningCluster, ray_cluster
from ray_jobs import RayJob, roles_of
from waiting import wait_until

from sparsefleet.datasets.synth import SynthSpec, synth

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.xdist_group("ray")]
EXAMPLES = Path(__file__).parents[2] / "examples"
JOB_SECONDS = 240.0
LONG = ["--epochs", "500"]
"""A job that does not end by itself within a test."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[RunningCluster]:
    with ray_cluster([2, 2, 2], dashboard=True) as started:
        yield started


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    synth(folder, SynthSpec(20_000, 5_000))
    return folder


def train(data: Path, *options: str) -> list[str]:
    words = ["--servers", "2", "--workers", "2", "--batch-size", "100", "--data", str(data / "train")]
    return [sys.executable, "-m", "sparsefleet", "train", *words, "--test-data", str(data / "test"), *options]


def run(
    command: list[str], folder: Path, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=JOB_SECONDS, check=False
    )


def result(done: subprocess.CompletedProcess[str]) -> dict[str, float]:
    assert done.returncode == 0, done.stderr + done.stdout
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


@pytest.mark.parametrize("mode", ["sync", "half_async", "async", "geo"])
def test_a_job_on_ray_learns_what_one_of_this_host_does(
    mode: str, cluster: RunningCluster, data: Path, tmp_path: Path
) -> None:
    options = ["--mode", mode, "--json"]
    here = result(run(train(data, *options), tmp_path))
    there = result(run(train(data, *options, "--on", "ray"), tmp_path, cluster.environment))
    assert there["rows"] == here["rows"] == 20_000
    assert (there["trainers"], there["lost"]) == (2, [])
    assert there["test_auc"] > 0.6
    assert there["test_auc"] == pytest.approx(here["test_auc"], abs=0.02)


FLEETRUN = [sys.executable, "-m", "sparsefleet.launch", "--server_num=2", "--worker_num=2"]


def told(folder: Path) -> dict[str, float]:
    """What the first worker of a script said in the end."""
    return json.loads((folder / "log" / "workerlog.0").read_text().splitlines()[-1])  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def script_here(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    """The example's result under the local launcher."""
    folder = tmp_path_factory.mktemp("here")
    words = ["--batch-size", "100", "--data", str(data / "train"), "--test-data", str(data / "test")]
    done = run([*FLEETRUN, str(EXAMPLES / "ctr" / "train.py"), *words], folder)
    assert done.returncode == 0, done.stderr
    return told(folder)


def test_a_script_by_fleetrun(
    cluster: RunningCluster, data: Path, tmp_path: Path, script_here: dict[str, float]
) -> None:
    command = [*FLEETRUN, "--on", "ray", str(EXAMPLES / "ctr" / "train.py"), "--data", str(data / "train")]
    command += ["--test-data", str(data / "test"), "--batch-size", "100"]
    done = run(command, tmp_path, cluster.environment)
    assert done.returncode == 0, done.stderr
    found = told(tmp_path)
    assert found["rows"] == script_here["rows"] == 20_000
    assert found["test_auc"] == pytest.approx(script_here["test_auc"], abs=0.02)


def test_by_ray_job_submit(cluster: RunningCluster, data: Path, tmp_path: Path, script_here: dict[str, float]) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "train.py").write_text((EXAMPLES / "ctr" / "train.py").read_text())
    inner = [*FLEETRUN, "--on", "ray", "--log_dir", str(tmp_path / "log"), "train.py", "--batch-size", "100"]
    inner += ["--data", str(data / "train"), "--test-data", str(data / "test")]
    done = run(submit(cluster, "submit", "--working-dir", "job", "--", *inner), tmp_path, cluster.environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all done: 2 workers ended well" in done.stdout + done.stderr
    found = told(tmp_path)
    assert found["rows"] == script_here["rows"] == 20_000
    assert found["test_auc"] == pytest.approx(script_here["test_auc"], abs=0.02)


def test_ctrl_c_lets_trainers_save_and_leaves_nothing(cluster: RunningCluster, data: Path, tmp_path: Path) -> None:
    command = train(data, "--on", "ray", "--save", str(tmp_path / "model"), *LONG)
    with RayJob(command, tmp_path, cluster.environment) as job:
        job.wait_for("epoch ", "workerlog.0")
        job.process.send_signal(signal.SIGINT)
        assert job.ended() == 130, job.output
        assert f"go on with: --resume {tmp_path / 'model'} (checkpoint step-" in job.output
        assert "did not end within" not in job.output
        assert "not saved" not in job.log("workerlog.0")
        assert roles_of(tmp_path) == []


def nodes_of(cluster: RunningCluster, job: str) -> dict[str, str]:
    """On which node each role of a job is, as Ray's dashboard tells of its actors."""
    with urllib.request.urlopen(f"http://{cluster.dashboard}/api/v0/actors?limit=1000", timeout=30) as answer:
        actors = json.loads(answer.read())["data"]["result"]["result"]
    named = [(one["name"].partition(" of "), one["node_id"]) for one in actors]
    return {role: node for (role, _, of), node in named if of == job}


def test_prometheus_and_the_dashboard_know_each_role_of_the_job_by_its_name(
    cluster: RunningCluster, data: Path, tmp_path: Path
) -> None:
    def series() -> set[tuple[str, str, str]]:
        """Name, job and role."""
        with urllib.request.urlopen(f"http://{cluster.metrics}/metrics", timeout=30) as answer:
            lines = [line for line in answer.read().decode().splitlines() if line.startswith("ray_sparsefleet_")]
        assert not any(re.search(r'[{,]job="', line) for line in lines), "Prometheus would rename that label"
        found = [(line.partition("{")[0], dict(re.findall(r'(\w+)="([^"]*)"', line))) for line in lines]
        return {(name.removeprefix("ray_sparsefleet_"), labels["job_name"], labels["role"]) for name, labels in found}

    with RayJob(train(data, "--on", "ray", *LONG), tmp_path, cluster.environment) as job:
        job.wait_for("nodes of Ray (sparsefleet-")
        [name] = set(re.findall(r"of Ray \((sparsefleet-\w+)\)", job.output))
        wanted = {(figure, name, f"worker {index}") for figure in ("samples_per_second", "loss") for index in (0, 1)}
        wanted |= {(figure, name, f"server {index}") for figure in ("memory_bytes", "restarts") for index in (0, 1)}
        wait_until(lambda: wanted <= series(), 120, lambda: f"{wanted - series()}: {job.output}")
        nodes = nodes_of(cluster, name)
        assert nodes.keys() == {role for _, _, role in wanted}
        assert nodes["server 0"] != nodes["server 1"], "servers are spread where there are nodes enough"
        job.process.send_signal(signal.SIGINT)
        assert job.ended() == 130, job.output
        wait_until(lambda: all(of != name for _, of, _ in series()), 120, lambda: f"the end of {series()}")


def test_a_killed_driver_leaves_no_role(cluster: RunningCluster, data: Path, tmp_path: Path) -> None:
    command = train(data, "--on", "ray", "--save", str(tmp_path / "model"), *LONG)
    with RayJob(command, tmp_path, cluster.environment) as job:
        job.wait_for("epoch ", "workerlog.1")
        assert len(roles_of(tmp_path)) == 4
        job.process.kill()
        wait_until(lambda: not roles_of(tmp_path), 60, lambda: f"the end of {roles_of(tmp_path)}")
        assert f"--resume {tmp_path / 'model'}" in job.output  # said at its start: there was no time later


def test_the_dashboard_shows_training_figures_without_prometheus_and_grafana(
    cluster: RunningCluster, data: Path, tmp_path: Path
) -> None:
    def ask(url: str) -> dict[str, Any]:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return json.loads(answer.read())  # type: ignore[no-any-return]

    def drawn() -> set[str]:
        charts = ask(f"{told['data']['grafanaHost']}/sparsefleet/figures")["charts"]
        return {f"{chart['name']} of {line['role']}" for chart in charts for line in chart["lines"]}

    command = [sys.executable, "-m", "sparsefleet", "ray-metrics", "--temp-dir", str(cluster.folder)]
    command += ["--port", str(cluster.grafana_port), "--prometheus-port", str(cluster.prometheus_port)]
    (tmp_path / "page").mkdir()
    with (
        RayJob(command, tmp_path / "page", cluster.environment) as page,
        RayJob(train(data, "--on", "ray", *LONG), tmp_path, cluster.environment) as job,
    ):
        page.wait_for("shows training figures under Metrics")
        told = ask(f"http://{cluster.dashboard}/api/grafana_health")
        assert (told["result"], told["msg"]) == (True, "Grafana running")
        assert ask(f"http://{cluster.dashboard}/api/prometheus_health")["result"] is True
        wanted = {"loss of worker 0", "auc of worker 1", "table_rows of server 0", "restarts of server 1"}
        wait_until(lambda: wanted <= drawn(), JOB_SECONDS, lambda: f"charts of {wanted - drawn()}: {page.output}")
        page.process.send_signal(signal.SIGINT)
        assert page.ended() == 0, page.output
        job.process.send_signal(signal.SIGINT)
        assert job.ended() == 130, job.output


def test_a_cluster_without_room_is_waited_for_with_words(cluster: RunningCluster, data: Path, tmp_path: Path) -> None:
    command = train(data, "--on", "ray", "--worker-cpus", "50")
    with RayJob(command, tmp_path, cluster.environment) as job:
        job.wait_for("s for room on the cluster: still without are 2 workers of 50 CPU and 1.0 GiB each; of its 6 CPU")
        assert "(2 CPU and 8.0 GiB on the node with most CPU free)" in job.output
        assert "; no node is large enough for a worker: ask for less" in job.output
        job.process.send_signal(signal.SIGINT)
        assert job.ended() == 130, job.output
        assert "gave up waiting for room; nothing was started" in job.output


def test_two_jobs_on_one_cluster_do_not_meet(cluster: RunningCluster, data: Path, tmp_path: Path) -> None:
    jobs = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        words = ["--servers", "1", "--workers", "1", "--batch-size", "100", "--data", str(data / "train"), "--json"]
        command = [sys.executable, "-m", "sparsefleet", "train", *words, "--on", "ray", "--save", "model"]
        jobs.append(RayJob(command, tmp_path / name, cluster.environment))
    for job in jobs:
        with job:
            assert job.ended(JOB_SECONDS) == 0, job.output
            assert json.loads(job.output.splitlines()[-1])["rows"] == 20_000
            assert (job.folder / "model").is_dir()


def submit(cluster: RunningCluster, *words: str) -> list[str]:
    """`ray job …`."""
    main = "from ray.scripts.scripts import main; main()"
    return [sys.executable, "-c", main, "job", words[0], "--address", f"http://{cluster.dashboard}", *words[1:]]


def test_ray_job_stop_lets_trainers_save_and_leaves_nothing(
    cluster: RunningCluster, data: Path, tmp_path: Path
) -> None:
    model, inner = tmp_path / "model", [*train(data, "--on", "ray", "--log-dir", str(tmp_path / "log"), *LONG)]
    inner += ["--save", str(model)]
    options = ["--submission-id", "to-be-stopped", "--no-wait", "--"]
    done = run(submit(cluster, "submit", *options, *inner), tmp_path, cluster.environment)
    assert done.returncode == 0, done.stdout + done.stderr

    def log() -> str:
        path = tmp_path / "log" / "workerlog.0"
        return path.read_text() if path.exists() else ""

    wait_until(lambda: "epoch " in log(), JOB_SECONDS, lambda: f"an epoch: {log()}")
    stopped = run(submit(cluster, "stop", "to-be-stopped"), tmp_path, cluster.environment)
    assert stopped.returncode == 0, stopped.stdout + stopped.stderr
    said = run(submit(cluster, "logs", "to-be-stopped"), tmp_path, cluster.environment).stdout
    assert f"go on with: --resume {model} (checkpoint step-" in said
    assert "did not end within" not in said
    assert "not saved" not in log()
    assert roles_of(tmp_path) == []


def test_a_lost_head_leaves_no_role_and_what_to_resume_from(data: Path, tmp_path: Path) -> None:
    with ray_cluster([1, 2, 2]) as own:
        command = train(data, "--on", "ray", "--save", str(tmp_path / "model"), *LONG)
        with RayJob(command, tmp_path, own.environment) as job:
            job.wait_for("epoch 3/", "workerlog.0")
            own.kill_node(0)
            assert job.ended(JOB_SECONDS) != 0
            wait_until(lambda: not roles_of(tmp_path), JOB_SECONDS, lambda: f"the end of {roles_of(tmp_path)}")
            assert f"--resume {tmp_path / 'model'}" in job.output


def test_a_lost_node_ends_the_job_and_says_what_to_resume_from(data: Path, tmp_path: Path) -> None:
    with ray_cluster([1, 2, 2]) as own:
        command = train(data, "--on", "ray", "--save", str(tmp_path / "model"), "--timeout", "5", *LONG)
        with RayJob(command, tmp_path, own.environment) as job:
            job.wait_for("epoch 3/", "workerlog.0")  # checkpoints of the first epochs are there
            own.kill_node(2)
            assert job.ended(180) != 0
            assert "lost with its actor: node 127.0.0.4 is gone" in job.output
            assert f"go on with: --resume {tmp_path / 'model'} (checkpoint " in job.output
            wait_until(lambda: not roles_of(tmp_path), 60, lambda: f"the end of {roles_of(tmp_path)}")
