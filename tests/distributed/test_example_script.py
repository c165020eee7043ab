"""examples/ctr/train.py: by the launcher and by hand, the same result; no process left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sparsefleet.datasets.synth import SynthSpec, synth
from sparsefleet.fleet.roles import ROLE_VARIABLES
from sparsefleet.launch.addresses import HeldEndpoints
from sparsefleet.launch.reaper import members
from sparsefleet.verify import verify

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "ctr" / "train.py"
LIMIT = 90


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("example") / "d"
    synth(folder, SynthSpec(4000, 1000, parts=3, seed=5))
    return folder


def environment(mark, **variables):
    kept = {name: value for name, value in os.environ.items() if name not in ROLE_VARIABLES}
    return {**kept, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "LAUNCH_TEST_MARK": mark, **variables}


def options(data, mode, saved):
    given = ("--data", data / "train", "--test-data", data / "test", "--mode", mode, "--save", saved)
    given += ("--bundle", saved.with_name("bundle"))
    return [str(each) for each in (*given, "--batch-size", 200, "--timeout", 20)]


def by_launcher(data, folder, mode):
    folder.mkdir()
    mark = f"launcher-{folder}"
    command = [sys.executable, "-m", "sparsefleet.launch", "--server_num=2", "--worker_num=2", str(SCRIPT)]
    ended = subprocess.run(
        [*command, *options(data, mode, folder / "saved")],
        cwd=folder,
        env=environment(mark),
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    logs = {path.name: path.read_text() for path in (folder / "log").iterdir()}
    assert ended.returncode == 0, (ended.stderr, logs)
    assert not members(mark, ())
    report = verify(folder / "saved", folder / "bundle", str(data / "test"))
    assert report.ok, report.to_dict()
    return json.loads(logs["workerlog.0"].splitlines()[-1])


def by_hand(data, folder, mode):
    """Four shells with the seeds' variables, and no launcher."""
    folder.mkdir()
    with HeldEndpoints.free(2) as held:
        return in_four_shells(data, folder, mode, held.endpoints)


def in_four_shells(data, folder, mode, endpoints):
    ports = [endpoint.rpartition(":")[2] for endpoint in endpoints]
    common = {"PADDLE_TRAINERS_NUM": "2", "PADDLE_PSERVERS_IP_PORT_LIST": ",".join(endpoints)}
    server = {**common, "TRAINING_ROLE": "PSERVER", "POD_IP": "127.0.0.1"}
    trainer = {**common, "TRAINING_ROLE": "TRAINER"}
    roles = [{**server, "PADDLE_PORT": port} for port in ports]
    roles += [{**trainer, "PADDLE_TRAINER_ID": str(index)} for index in range(2)]
    mark = f"hand-{folder}"
    command = [sys.executable, str(SCRIPT), *options(data, mode, folder / "saved")]
    shells = [
        subprocess.Popen(
            command, env=environment(mark, **role), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for role in roles
    ]
    try:
        said = [shell.communicate(timeout=LIMIT)[0] for shell in shells]
        assert [shell.returncode for shell in shells] == [0] * 4, said
    finally:
        for shell in shells:
            shell.kill()
            shell.wait(10)
    assert not members(mark, ())
    return json.loads(said[2].splitlines()[-1])


@pytest.mark.slow
def test_by_hand_and_by_the_launcher_sync_gives_the_same(data, tmp_path):
    launched, hand = by_launcher(data, tmp_path / "launched", "sync"), by_hand(data, tmp_path / "hand", "sync")
    assert {"test_auc", "samples_per_s"} <= launched.keys()
    for name in ("train_auc", "test_auc", "test_logloss", "rows"):
        assert hand[name] == pytest.approx(launched[name], abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["half_async", "async", "geo"])
def test_every_mode_by_the_launcher(data, tmp_path, mode):
    said = by_launcher(data, tmp_path / "launched", mode)
    assert 0.4 < said["test_auc"] < 0.8
    assert said["rows"] > 1000
