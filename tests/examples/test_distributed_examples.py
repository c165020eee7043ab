"""The examples for many processes, run as their first lines say."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import sparsefleet
from sparsefleet.datasets.synth import SynthSpec, synth
from sparsefleet.fleet.roles import ROLE_VARIABLES
from sparsefleet.launch.addresses import HeldEndpoints

EXAMPLES = Path(__file__).parents[2] / "examples" / "ctr"


def run(folder: Path, *command: object, **variables: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if name not in ROLE_VARIABLES}
    sources = str(Path(sparsefleet.__file__).parents[1])
    return subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env={**clean, "PYTHONPATH": sources, "PYTHON": sys.executable, **variables},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.mark.slow
def test_a_cluster_by_hand_then_its_model_scored(tmp_path: Path) -> None:
    synth(tmp_path / "data", SynthSpec(rows=1000, test_rows=300, parts=2, seed=3))
    with HeldEndpoints.free(1) as held:
        port = held.endpoints[0].rpartition(":")[2]
        options = ("data", "--mode", "sync", "--batch-size", 100)
        done = run(tmp_path, "sh", EXAMPLES / "loc_cluster.sh", *options, SERVERS="1", FIRST_PORT=port)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"started 1 servers (127.0.0.1:{port}) and 2 trainers" in done.stdout
    result = json.loads((tmp_path / "log" / "trainer.0.log").read_text().splitlines()[-1])
    assert f"trainer 0: {json.dumps(result)}" in done.stdout
    assert (result["rows"], result["trainers"]) == (1000, 2), "of all trainers, as the metrics are"
    assert (tmp_path / "model" / "manifest.json").exists()
    scored = run(tmp_path, sys.executable, EXAMPLES / "infer.py", "--model", "model", "--data", "data/test")
    assert scored.returncode == 0, scored.stderr
    values = json.loads(scored.stdout)
    assert values["rows"] == 300
    assert values["auc"] == result["test_auc"]
    assert values["logloss"] == pytest.approx(result["test_logloss"], rel=1e-12)


@pytest.mark.slow
def test_the_script_alone_tells_how_it_goes_and_what_is_wrong(tmp_path: Path) -> None:
    synth(tmp_path / "data", SynthSpec(rows=1000, test_rows=300, parts=2, seed=3))
    train = (sys.executable, EXAMPLES / "train.py", "--batch-size", 100, "--data")
    done = run(tmp_path, *train, "data/train", "--test-data", "data/test")
    assert done.returncode == 0, done.stderr
    assert "epoch 1/1 done  1,000 rows" in done.stderr
    assert json.loads(done.stdout)["rows"] == 1000, "for programs, there is nothing but the result"
    with (tmp_path / "data" / "train" / "part-1").open("a") as file:
        file.write("no row\n")
    infer = (sys.executable, EXAMPLES / "infer.py", "--data", "data/test", "--model")
    for command, message in (
        ((*train, "nowhere"), "error: nowhere: no such file or folder"),
        ((*train, "data/train"), "error: data/train/part-1, line 501, column 2: wrong field count"),
        ((*train, "data/train", "--mode", "geoo"), "error: mode='geoo' is not a mode"),
        ((*infer, "nowhere"), "error: no checkpoint at"),
    ):
        failed = run(tmp_path, *command)
        assert failed.returncode == 1
        assert failed.stderr.startswith(message)
        assert "Traceback" not in failed.stderr


@pytest.mark.slow
def test_a_server_that_cannot_listen_ends_the_cluster_with_its_message(tmp_path: Path) -> None:
    synth(tmp_path / "data", SynthSpec(rows=100, test_rows=50, parts=2, seed=3))
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = str(busy.getsockname()[1])
        began = time.monotonic()
        done = run(tmp_path, "sh", EXAMPLES / "loc_cluster.sh", "data", SERVERS="1", FIRST_PORT=port)
    assert done.returncode == 1
    assert time.monotonic() - began < 40
    assert "server 0 failed; the end of log/pserver.0.log:" in done.stderr
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in done.stderr


@pytest.mark.slow
def test_a_trainer_that_fails_ends_the_cluster_with_its_message(tmp_path: Path) -> None:
    with HeldEndpoints.free(1) as held:
        port = held.endpoints[0].rpartition(":")[2]
        done = run(tmp_path, "sh", EXAMPLES / "loc_cluster.sh", "nowhere", SERVERS="1", FIRST_PORT=port)
    assert done.returncode == 1
    assert "trainer 0 failed; the end of log/trainer.0.log:" in done.stderr
    assert "nowhere/train: no such file or folder" in done.stderr
    assert run(tmp_path, "sh", EXAMPLES / "loc_cluster.sh").returncode == 2
