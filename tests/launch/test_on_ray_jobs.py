"""Whole jobs on a Ray cluster of three nodes, all on loopback; and what bad days get."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray_cluster import RunningCluster, ray_cluster
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


class Job:
    """A command under way; its output in a file."""

    def __init__(self, command: list[str], folder: Path, environment: dict[str, str]) -> None:
        self.folder, self._output = folder, folder / "output"
        with open(self._output, "wb") as output:
            self.process = subprocess.Popen(
                command, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )

    @property
    def output(self) -> str:
        return self._output.read_text()

    def log(self, name: str) -> str:
        path = self.folder / "log" / name
        return path.read_text() if path.exists() else ""

    def wait_for(self, text: str, log: str | None = None, seconds: float = 120.0) -> None:
        wait_until(
            lambda: text in (self.output if log is None else self.log(log)),
            seconds,
            lambda: f"{text!r} in {log or 'its output'}:\n{self.output}\n{self.log(log or 'workerlog.0')}",
        )

    def ended(self, seconds: float = 120.0) -> int:
        return self.process.wait(seconds)

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.wait()


def roles_of(folder: Path) -> list[int]:
    """Processes of roles that were given this folder's paths."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                environment = (entry / "environ").read_bytes()
            except OSError:
                continue
            if b"TRAINING_ROLE=" in environment and any(str(folder).encode() in word for word in words):
                found.append(int(entry.name))
    return found


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


def test_a_script_by_fleetrun(cluster: RunningCluster, data: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sparsefleet.launch", "--on", "ray", "--server_num=2", "--worker_num=2"]
    command += [str(EXAMPLES / "ctr" / "train.py"), "--data", str(data / "train"), "--test-data", str(data / "test")]
    done = run([*command, "--batch-size", "100"], tmp_path, cluster.environment)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "log" / "workerlog.0").read_text().splitlines()[-1])
    assert found["rows"] == 20_000
    assert found["test_auc"] > 0.6


def test_by_ray_job_submit(cluster: RunningCluster, data: Path, tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "train.py").write_text((EXAMPLES / "ctr" / "train.py").read_text())
    inner = [sys.executable, "-m", "sparsefleet.launch", "--on", "ray", "--server_num=2", "--worker_num=2"]
    inner += ["--log_dir", str(tmp_path / "log"), "train.py", "--batch-size", "100"]
    inner += ["--data", str(data / "train"), "--test-data", str(data / "test")]
    submit = "from ray.scripts.scripts import main; main()"
    command = [sys.executable, "-c", submit, "job", "submit", "--address", f"http://{cluster.dashboard}"]
    done = run([*command, "--working-dir", "job", "--", *inner], tmp_path, cluster.environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all done: 2 workers ended well" in done.stdout + done.stderr
    found = json.loads((tmp_path / "log" / "workerlog.0").read_text().splitlines()[-1])
    assert found["rows"] == 20_000


def test_ctrl_c_lets_trainers_save_and_leaves_nothing(cluster: RunningCluster, data: Path, tmp_path: Path) -> None:
    command = train(data, "--on", "ray", "--save", str(tmp_path / "model"), *LONG)
    with Job(command, tmp_path, cluster.environment) as job:
        job.wait_for("epoch ", "workerlog.0")
        job.process.send_signal(signal.SIGINT)
        assert job.ended() == 130, job.output
        assert f"go on with: --resume {tmp_path / 'model'} (checkpoint step-" in job.output
        assert roles_of(tmp_path) == []


def test_a_killed_driver_leaves_no_role(cluster: RunningCluster, data: Path, tmp_path: Path) -> None:
    command = train(data, "--on", "ray", "--save", str(tmp_path / "model"), *LONG)
    with Job(command, tmp_path, cluster.environment) as job:
        job.wait_for("epoch ", "workerlog.1")
        assert len(roles_of(tmp_path)) == 4
        job.process.kill()
        wait_until(lambda: not roles_of(tmp_path), 60, lambda: f"the end of {roles_of(tmp_path)}")


def test_a_cluster_without_room_is_waited_for_with_words(cluster: RunningCluster, data: Path, tmp_path: Path) -> None:
    command = train(data, "--on", "ray", "--worker-cpus", "50")
    with Job(command, tmp_path, cluster.environment) as job:
        job.wait_for("s for room on the cluster: still without are 2 workers of 50 CPU and 1.0 GiB each; of its 6 CPU")
        assert "it is too small for the job unless nodes join (Ctrl-C gives up)" in job.output
        job.process.send_signal(signal.SIGINT)
        assert job.ended() == 130, job.output
        assert "gave up waiting for room; nothing was started" in job.output


def test_two_jobs_on_one_cluster_do_not_meet(cluster: RunningCluster, data: Path, tmp_path: Path) -> None:
    jobs = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        words = ["--servers", "1", "--workers", "1", "--batch-size", "100", "--data", str(data / "train"), "--json"]
        command = [sys.executable, "-m", "sparsefleet", "train", *words, "--on", "ray", "--save", "model"]
        jobs.append(Job(command, tmp_path / name, cluster.environment))
    for job in jobs:
        with job:
            assert job.ended(JOB_SECONDS) == 0, job.output
            assert json.loads(job.output.splitlines()[-1])["rows"] == 20_000
            assert (job.folder / "model").is_dir()


def test_a_lost_node_ends_the_job_and_says_what_to_resume_from(data: Path, tmp_path: Path) -> None:
    with ray_cluster([1, 2, 2]) as own:
        command = train(data, "--on", "ray", "--save", str(tmp_path / "model"), "--timeout", "5", *LONG)
        with Job(command, tmp_path, own.environment) as job:
            job.wait_for("epoch 3/", "workerlog.0")  # checkpoints of the first epochs are there
            own.kill_node(2)
            assert job.ended(180) != 0
            assert "lost with its actor: node 127.0.0.4 is gone" in job.output
            assert f"go on with: --resume {tmp_path / 'model'} (checkpoint " in job.output
            wait_until(lambda: not roles_of(tmp_path), 60, lambda: f"the end of {roles_of(tmp_path)}")
