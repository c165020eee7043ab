"""The scripts of the Fluid and Fleet documents, ported (examples/fleet), run as there, on small data."""

from __future__ import annotations

import contextlib
import functools
import http.server
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
from pathlib import Path

import pytest

import sparsefleet
from sparsefleet.checkpoint import Checkpoint
from sparsefleet.datasets.synth import SynthSpec, synth
from sparsefleet.fleet.roles import ROLE_VARIABLES
from sparsefleet.launch.addresses import HeldEndpoints

EXAMPLES = Path(__file__).parents[2] / "examples" / "fleet"
SOURCES = Path(sparsefleet.__file__).parents[1]
LIMIT = 110


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with the scripts, and with train_data (1,200 samples in 4 files) and test_data."""
    folder = tmp_path / "fleet"
    shutil.copytree(EXAMPLES, folder, ignore=shutil.ignore_patterns("__pycache__"))
    synth(tmp_path / "made", SynthSpec(rows=1200, test_rows=300, parts=4, seed=3))
    (tmp_path / "made" / "train").rename(folder / "train_data")
    (tmp_path / "made" / "test").rename(folder / "test_data")
    return folder


def run(folder: Path, *command: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """As a person would, with `python`, `fleetrun` and `sparsefleet` those of this environment."""
    tools = folder / "bin"
    tools.mkdir(exist_ok=True)
    for name, module in (("python", None), ("fleetrun", "sparsefleet.launch"), ("sparsefleet", "sparsefleet")):
        called = f'exec {sys.executable} {f"-m {module}" if module else ""} "$@"'
        (tools / name).write_text(f"#!/bin/sh\n{called}\n")
        (tools / name).chmod(0o755)
    clean = {name: value for name, value in os.environ.items() if name not in ROLE_VARIABLES}
    paths = {"PYTHONPATH": str(SOURCES), "PATH": f"{tools}:{os.environ['PATH']}"}
    process = subprocess.Popen(
        [str(word) for word in command],
        cwd=folder,
        env={**clean, **paths, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=LIMIT)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=10)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def logs(folder: Path) -> str:
    return "\n".join(f"--- {path.name}\n{path.read_text()}" for path in sorted((folder / "log").glob("*")))


def job(folder: Path, *options: object) -> subprocess.CompletedProcess[str]:
    done = run(folder, "fleetrun", "--server_num=2", "--worker_num=2", *options)
    assert done.returncode == 0, done.stderr + logs(folder)
    return done


@pytest.mark.slow
def test_local_training_then_inference(place: Path) -> None:
    done = run(place, "python", "-u", "local_train.py", "--test=True", "--batch_size=100", "--epochs=2")
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^Epoch (\d) auc  0\.\d+", done.stdout, re.MULTILINE) == ["0", "1"]
    assert "Train Success!" in done.stderr
    assert Checkpoint.open(place / "model" / "epoch_1").manifest.step == 24
    scored = run(place, "python", "-u", "infer.py", "model/epoch_1")
    assert scored.returncode == 0, scored.stderr
    said = re.search(r"infer finished, auc: (0\.\d+), logloss: (0\.\d+)", scored.stderr)
    assert said, scored.stderr
    # infer.py reads by PyReader, training by a pipe command: the samples must be the same ones.
    command = ("--data", "test_data", "--pipe-command", "python dataset_generator.py", "--json")
    piped = run(place, "sparsefleet", "infer", "model/epoch_1", *command)
    assert piped.returncode == 0, piped.stderr
    result = json.loads(piped.stdout)
    assert [float(number) for number in said.groups()] == pytest.approx([result["auc"], result["logloss"]], abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sync", "half_async", "async", "geo"])
def test_distributed_training(place: Path, mode: str) -> None:
    job(place, "distribute_train.py", "--mode", mode, "--test=True", "--batch_size=100")
    for worker in (0, 1):
        said = (place / "log" / f"workerlog.{worker}").read_text()
        assert "Distribute Train Success!" in said
        assert "epoch 1/1 done  600 rows" in said, "the trainer tells how it goes"
    rows = Checkpoint.open(place / "model" / "epoch_0").row_count("SparseFeatFactors")
    assert rows > 1000


@pytest.mark.slow
def test_incremental_training_and_inference(place: Path) -> None:
    job(place, "distribute_train.py", "--test=True", "--batch_size=100")
    first = Checkpoint.open(place / "model" / "epoch_0")
    options = ("--init_model", "model/epoch_0", "--model_path", "more", "--test=True", "--batch_size=100")
    job(place, "distribute_train.py", *options)
    more = Checkpoint.open(place / "more" / "epoch_0")
    table = "SparseFeatFactors"
    assert more.manifest.table(table).step > first.manifest.table(table).step, "the optimizer went on"
    scored = run(place, "python", "-u", "infer.py", "more/epoch_0")
    assert scored.returncode == 0, scored.stderr


@pytest.mark.slow
def test_each_process_by_hand(place: Path) -> None:
    with HeldEndpoints.free(1) as held:
        port = int(held.endpoints[0].rpartition(":")[2])
    done = run(place, "sh", "loc_cluster.sh", "--batch_size=100", FIRST_PORT=str(port))
    assert done.returncode == 0, done.stderr + logs(place)
    assert "Distribute Train Success!" in done.stdout


@pytest.mark.slow
def test_the_quick_start(place: Path) -> None:
    done = run(place, "python", "train.py", "--is_local", "1", "--epochs", "1")
    assert done.returncode == 0, done.stderr
    # No stop_worker() in it: a script that ends after its last pass has stopped its worker.
    job(place, "train.py", "--epochs", "1")


@pytest.mark.slow
def test_the_fleetx_script(place: Path) -> None:
    done = run(place, "fleetrun", "--server_num=1", "--worker_num=2", "ctr_app.py")
    assert done.returncode == 0, done.stderr + logs(place)
    assert "all done: 2 workers ended well" in done.stderr
    said = (place / "log" / "workerlog.1").read_text()
    assert [int(step) for step in re.findall(r"^worker 1, step (\d+), loss \d+\.\d+$", said, re.MULTILINE)] == [
        *range(1, 11)
    ]


def test_get_data(tmp_path: Path) -> None:
    (tmp_path / "get_data.sh").write_text((EXAMPLES / "get_data.sh").read_text())
    done = run(tmp_path, "sh", "get_data.sh", "200")
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "train_data").iterdir())) == 4
    assert run(tmp_path, "sh", "get_data.sh", "200").returncode == 1
    web = tmp_path / "web"
    web.mkdir()
    with tarfile.open(web / "ctr_data.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "train_data", "raw_data")
        archive.add(tmp_path / "test_data", "test_data")
    shutil.rmtree(tmp_path / "train_data")
    shutil.rmtree(tmp_path / "test_data")
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(web))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/ctr_data.tar.gz"
        done = run(tmp_path, "sh", "get_data.sh", URL=url)
        server.shutdown()
        thread.join(timeout=10)
    assert done.returncode == 0, done.stderr
    assert "Test data stored in ./test_data folder." in done.stdout
    assert len(list((tmp_path / "train_data").iterdir())) == 4
