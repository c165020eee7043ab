"""Every example runs as its own process, from a folder of its own, in bounded time."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sparsefleet.core.schema import CRITEO
from sparsefleet.datasets.show import show
from sparsefleet.datasets.synth import SynthSpec, synth

EXAMPLES = Path(__file__).parents[2] / "examples"
SOURCES = EXAMPLES.parent / "src"
LIMIT = 60.0
"""Seconds that an example may take here, on a busy machine."""


def run(name: str, *arguments: str, cwd: Path, stdin: bytes | None = None) -> str:
    done = started(name, *arguments, cwd=cwd, stdin=stdin)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def started(name: str, *arguments: str, cwd: Path, stdin: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SOURCES), os.environ.get("PYTHONPATH", "")])}
    return subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        cwd=cwd, env=environment, input=stdin, capture_output=True, timeout=LIMIT, check=False,
    )  # fmt: skip


def auc(output: str) -> float:
    found = re.search(r"test AUC (0\.\d+)", output)
    assert found, output
    return float(found[1])


def test_two_tables_learn(tmp_path):
    output = run("two_tables.py", "--rows", "30000", cwd=tmp_path)
    assert auc(output) > 0.65  # 0.5 is no knowledge; ads and histories alone give this
    assert re.search(r"table ids: [34],\d\d\d rows", output)
    assert "table history: 500 rows" in output


@pytest.mark.slow
def test_two_tables_read_data_that_is_given_and_save(tmp_path):
    sys.path.insert(0, str(EXAMPLES))
    try:
        from two_tables import write_data
    finally:
        sys.path.remove(str(EXAMPLES))
    write_data(tmp_path / "data", rows=4000, test_rows=1000)
    output = run("two_tables.py", "--data", "data", "--epochs", "1", "--threads", "1", "--save", "model", cwd=tmp_path)
    assert "4,000 rows" in output
    assert (tmp_path / "model" / "latest").read_text().strip() == "step-00000008"


@pytest.mark.slow
def test_fetch_handler_is_called_by_batches_and_by_seconds(tmp_path):
    output = run("fetch_handler.py", "--rows", "5000", "--every-batches", "5", "--every-seconds", "0.01", cwd=tmp_path)
    by_batches, rest = output.split("by seconds")
    by_seconds, printed = rest.split("without a class")
    assert re.findall(r"step (\d+): auc 0\.\d+, bias of the click [+-]", by_batches) == ["5", "10", "15", "20"]
    assert re.search(r"step \d+: auc", by_seconds)
    assert re.search(r"auc of the rows trained on 0\.\d+", printed)


def test_plain_python_learns_and_predicts(tmp_path):
    output = run("plain_python.py", "--rows", "8000", cwd=tmp_path)
    assert auc(output) > 0.65
    chance = re.search(r"click probability (0\.\d+)", output)
    assert chance
    assert float(chance[1]) > 0.5  # music, Oslo and young: 0.8 by the rule that drew the rows


@pytest.mark.parametrize("name", [pytest.param("two_tables.py", marks=pytest.mark.slow), "fetch_handler.py"])
def test_data_that_is_not_there_is_no_traceback(tmp_path, name):
    done = started(name, "--data", "nowhere", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith(b"error: ")
    assert b"nowhere" in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.fixture(scope="module")
def criteo(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("criteo")
    synth(folder, SynthSpec(300, 0, 1, 1))
    return folder / "train" / "part-0"


def test_criteo_generator_gives_the_rows_of_the_native_reader(criteo):
    command = f"PYTHONPATH={SOURCES} {sys.executable} {EXAMPLES / 'criteo_generator.py'}"
    by_generator = list(show(criteo, pipe_command=command, schema=CRITEO))
    assert by_generator == list(show(criteo, format="criteo", schema=CRITEO))
    assert len(by_generator) == 300


def test_criteo_generator_prints_what_the_documents_promise(tmp_path):
    values = "0 1 1 5 0 1382 4 15 2 181 1 2 _ 2".replace("_", "").split(" ")
    line = "\t".join([*values, *["68fd1e64"] * 26]) + "\n"
    words = run("criteo_generator.py", cwd=tmp_path, stdin=line.encode()).split()
    expected = [0.05, 0.00663349917081, 0.05, 0.0, 0.02159375, 0.008, 0.15, 0.04, 0.362, 0.1, 0.2, 0.0, 0.04]
    assert words[0] == "13"
    assert [float(word) for word in words[1:14]] == pytest.approx(expected, abs=1e-12)
    assert words[-2:] == ["1", "0"]
