"""The scripts of `make train-chaos`, `make train-elastic` and `make test-chaos`, for a moment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # two runs of `run`, whose own limit tells more
SCRIPTS = Path(__file__).parents[2] / "scripts"


def run(*words: object) -> str:
    done = subprocess.run([sys.executable, *map(str, words)], capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_training_under_a_killer_trains_every_sample_once(tmp_path: Path) -> None:
    data = tmp_path / "data"
    run("-m", "sparsefleet", "data", "synth", "--rows", 60000, "--test-rows", 4000, "--parts", 4, "--out", data)
    chaos = ("--data", data, "--out", tmp_path / "chaos", "--kills", 2, "--every", 2, "--cut-every", 1, "--epochs", 5)
    out = run(SCRIPTS / "train_chaos.py", *chaos, "--calm", 2)
    assert out.count("60,000") == 3, out
    assert "attempt 2 begins from" in out
    assert (tmp_path / "chaos" / "chaos.svg").read_text().count("<line") == 2


def test_trainers_that_come_and_go_train_every_sample_once(tmp_path: Path) -> None:
    data = tmp_path / "data"
    run("-m", "sparsefleet", "data", "synth", "--rows", 300000, "--test-rows", 4000, "--parts", 4, "--out", data)
    elastic = ("--data", data, "--out", tmp_path / "elastic", "--trainers", "1,2,1", "--every", 1, "--share", 0.1)
    out = run(SCRIPTS / "train_elastic.py", *elastic)
    assert "samples 300,000, test AUC" in out
    assert (tmp_path / "elastic" / "elastic.svg").read_text().count("<line") == 4


@pytest.mark.timeout(420)
def test_rounds_of_kills_say_what_they_found() -> None:
    out = run(SCRIPTS / "test_chaos.py", "--rounds", 1, "--modes", "async,sync-model", "--jobs", 2)
    assert out.count("every sample once") == 2
    assert "sync-model       1" in out
    assert "2 rounds in " in out
