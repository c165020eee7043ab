"""`sparsefleet infer --workers N`: the same numbers and the same predictions as one process, however it is cut."""

from __future__ import annotations

import contextlib
import functools
import gzip
import importlib
import io
import json
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from command_line import CommandLine
from rich.console import Console
from typer.testing import CliRunner
from waiting import wait_until

from sparsefleet.cli.app import app
from sparsefleet.cli.console import progress, say
from sparsefleet.core.errors import SparseFleetError
from sparsefleet.core.schema import CRITEO
from sparsefleet.data.open import open_reader
from sparsefleet.data.split import ordered_shares
from sparsefleet.models import CTRDNN, CTRDNNConfig
from sparsefleet.optim import Adagrad
from sparsefleet.scoring import workers as infer_workers
from sparsefleet.train import SavePolicy, Trainer

infer_command = importlib.import_module("sparsefleet.cli.infer")


@pytest.fixture(scope="module")
def model(small_clicks: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    network = CTRDNN(config=CTRDNNConfig(embedding_size=4, hidden=(64, 64)))
    rows = open_reader(str(small_clicks / "train"), CRITEO, batch_size=100)
    Trainer(Adagrad(0.05)).fit(network, rows, 1, save=SavePolicy(str(folder)))
    return folder


def infer(*words: object) -> Any:
    return CliRunner().invoke(app, ["infer", *map(str, words)])


def measured(*words: object) -> dict[str, Any]:
    done = infer(*words, "--json")
    assert done.exit_code == 0, done.output
    assert re.search(r"scoring: [\d,]+ rows, [\d,]+ rows/s, done", done.stderr), done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize(("workers", "kind"), [(2, "parquet"), pytest.param(3, "csv", marks=pytest.mark.slow)])
def test_metrics_and_predictions_are_those_of_one_process(
    model: Path, small_clicks: Path, tmp_path: Path, workers: int, kind: str
) -> None:
    one, many = tmp_path / f"one.{kind}", tmp_path / f"many.{kind}"
    alone = measured(model, "--data", small_clicks / "train", "--output", one)
    # Another length of batches too: no row's score may depend on its neighbours.
    several = measured(
        model, "--data", small_clicks / "train", "--output", many, "--workers", workers, "--batch-size", 333
    )
    assert several["auc"] == alone["auc"]
    assert several["logloss"] == alone["logloss"]
    assert several["rows"] == alone["rows"] == 2000
    assert several["accuracy"] == alone["accuracy"]
    if kind == "csv":
        assert many.read_bytes() == one.read_bytes()
    else:
        assert pq.read_table(many).equals(pq.read_table(one))
        assert len(np.unique(pq.read_table(one)["probability"])) > 1000, "the order shows"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([one.name, many.name]), "nothing is left behind"


@pytest.mark.slow
def test_one_file_is_cut_and_skipped_rows_are_counted(model: Path, small_clicks: Path, tmp_path: Path) -> None:
    lines = (small_clicks / "test" / "part-0").read_bytes().splitlines(keepends=True)
    rows = tmp_path / "rows"
    rows.write_bytes(b"".join([*lines[:100], b"nonsense\n", *lines[100:600], b"more\tnonsense\n", *lines[600:]]))
    alone = measured(model, "--data", rows, "--on-bad-row", "skip")
    several = measured(model, "--data", rows, "--on-bad-row", "skip", "--workers", 2)
    assert several["auc"] == alone["auc"]
    assert (several["rows"], several["skipped"]) == (alone["rows"], alone["skipped"])
    assert (several["rows"], sum(several["skipped"].values())) == (700, 2)


def test_an_error_of_a_worker_is_the_commands_error(model: Path, small_clicks: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    bad.write_bytes((small_clicks / "test" / "part-0").read_bytes() + b"nonsense\n")
    done = infer(model, "--data", bad, "--workers", 2, "--output", tmp_path / "out.csv")
    assert done.exit_code == 1
    message = " ".join(done.stderr.split())
    assert "error: worker 1 of 2 failed:" in message
    assert f"{bad}" in message
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--workers", "0"], "--workers 0 must be 1 or above"),
        (["--workers", "2", "--output", "p.txt"], "the name must end in .csv or .parquet"),
        (["--workers", "2", "--output", "/nowhere/p.csv"], "there is no folder /nowhere"),
        (["--workers", "9999"], "use fewer workers"),
        (["--workers", "2", "--timeout", "0"], "--timeout 0 must be above 0 seconds"),
    ],
)
def test_what_cannot_work_is_refused(model: Path, small_clicks: Path, words: list[str], message: str) -> None:
    done = infer(model, "--data", small_clicks / "test", *words)
    assert done.exit_code == 1
    assert message in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    "how", [signal.SIGTERM, *(pytest.param(how, marks=pytest.mark.slow) for how in (signal.SIGINT, signal.SIGKILL))]
)
def test_no_worker_and_no_folder_outlives_the_command(
    shell: CommandLine, model: Path, small_clicks: Path, how: signal.Signals
) -> None:
    # A command that never ends: workers are surely at work when the signal comes.
    words = ("--workers", 2, "--pipe-command", "touch started; sleep 300", "--same-inputs")
    words = (*words, "--output", shell.folder / "p.csv")
    process = shell.start("infer", model, "--data", small_clicks / "train", *words)
    wait_until(lambda: (shell.folder / "started").exists(), 60, "a worker")
    assert list(shell.folder.glob(".sparsefleet-infer-*"))
    process.send_signal(how)
    done = shell.finish(process, 60)
    assert done.returncode == (-9 if how == signal.SIGKILL else 130)
    wait_until(lambda: not shell.left(), 30, "the end of all processes")
    assert not list(shell.folder.glob(".sparsefleet-infer-*"))


def test_workers_that_are_asked_to_end_again_and_again_leave_no_command(
    shell: CommandLine, model: Path, small_clicks: Path
) -> None:
    words = ("--workers", 2, "--pipe-command", "trap '' TERM; touch started; sleep 300", "--same-inputs")
    process = shell.start("infer", model, "--data", small_clicks / "train", *words)
    wait_until(lambda: (shell.folder / "started").exists(), 60, "a worker")
    workers = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    assert len(workers) == 2

    def asked_again() -> bool:
        for pid in workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        return process.poll() is not None

    wait_until(asked_again, 60, "the end of the command")
    assert shell.finish(process, 60).returncode == 1
    wait_until(lambda: not shell.left(), 30, "the end of all processes")


def test_folders_of_the_dead_are_removed_and_those_of_the_living_are_not(tmp_path: Path) -> None:
    dead, young = tmp_path / ".sparsefleet-infer-dead", tmp_path / ".sparsefleet-infer-young"
    for folder in (dead, young):
        folder.mkdir()
    (dead / "lock").touch()
    with infer_workers._folder(tmp_path) as first, infer_workers._folder(tmp_path) as second:
        assert sorted(tmp_path.iterdir()) == sorted([first, second, young]), "the young one has no lock yet"
    assert list(tmp_path.iterdir()) == [young]


def waited(folder: Path, script: str, timeout: float) -> list[tuple[int, float | None]]:
    """What is told of a worker that is this script."""
    (folder / "log-0").write_text("a remark\n")
    told: list[tuple[int, float | None]] = []
    process = subprocess.Popen(["sh", "-c", script], cwd=folder)
    try:
        infer_workers._wait_for_all([process], folder, timeout, lambda rows, share: told.append((rows, share)))
    finally:
        process.kill()
        process.wait()
    return told


def test_a_worker_that_does_not_get_on_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(SparseFleetError, match=r"worker 0 of 1 \(process \d+\) has scored no row for 0.5 s") as caught:
        waited(tmp_path, "kill -STOP $$", 0.5)
    assert str(caught.value).endswith("if it is only slow, raise --timeout. It said: a remark")


def test_a_worker_that_gets_on_is_waited_for(tmp_path: Path) -> None:
    step = "echo [$rows, 0.$rows] > new; mv new progress-0; sleep 0.3"
    told = waited(tmp_path, f"for rows in 1 2 3 4 5; do {step}; done", 1.2)
    assert told[0][0] >= 1
    assert told[-1] == (5, 0.5)


def test_time_in_which_the_command_itself_stood_still_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([0.0, 0.1, 400.0, *(400.0 + look / 100 for look in range(1, 100))])
    monkeypatch.setattr(infer_workers.time, "monotonic", lambda: next(times))
    waited(tmp_path, "sleep 0.5", 300.0)


@pytest.mark.parametrize("workers", [1, 2])
def test_there_is_a_progress_bar_and_no_word_is_cut_in_80_columns(
    model: Path, small_clicks: Path, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Console(file=io.StringIO(), force_terminal=True, width=80, highlight=False, color_system=None)
    monkeypatch.setattr(infer_command, "say", functools.partial(say, to=terminal))
    monkeypatch.setattr(infer_command, "progress", functools.partial(progress, to=terminal))
    # Long enough for a line to end within a word, unless that is taken care of.
    data = f"{small_clicks}/./././././test"
    assert infer(model, "--data", data, "--workers", workers).exit_code == 0
    assert isinstance(terminal.file, io.StringIO)
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", terminal.file.getvalue())
    assert re.search(r"scoring .*100%.* rows/s", shown)
    lines = re.split(r"[\r\n]+", shown)
    assert all(len(line.rstrip()) <= 80 or " " not in line.strip() for line in lines)  # a long path stays whole
    assert {"auc", "logloss", "accuracy", "click", "ratio", "rows", "700"} <= set(" ".join(lines).split())


def test_the_rest_is_thought_to_be_like_what_was_scored() -> None:
    assert infer_command.all_rows(500, 0.25) == 2000
    assert infer_command.all_rows(500, 1.0) == 500
    assert infer_command.all_rows(500, None) is None


def test_shares_are_in_the_order_of_the_input(tmp_path: Path) -> None:
    sizes = {"a": 10, "b": 400, "c": 10, "d": 300, "e": 20}
    for name, size in sizes.items():
        (tmp_path / name).write_bytes(b"x\n" * (size // 2))
    files = [str(tmp_path / name) for name in sizes]
    whole = ordered_shares(files, 2, cuttable=False)
    assert whole == [files[:2], files[2:]]
    assert ordered_shares(files, 5, cuttable=False) == [[file] for file in files]
    cut = ordered_shares(files, 2)
    assert cut == [[files[0], f"{files[1]}#bytes=0:360"], [f"{files[1]}#bytes=360:400", *files[2:]]]
    zipped = tmp_path / "z.gz"
    zipped.write_bytes(gzip.compress(b"x\n" * 500))
    assert ordered_shares([*files, str(zipped)], 2)[1][-1] == str(zipped)
    with pytest.raises(Exception, match=r"1 file for 2 workers, and .*z\.gz cannot be cut"):
        ordered_shares([zipped], 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--format", "xml"], "error: format='xml' is not a format"),
        (["--on-bad-row", "ignore"], "error: on_bad_row='ignore' is not a policy"),
        (["--batch-size", "0"], "error: batch_size=0"),
        (["--precision", "fp8"], "error: precision='fp8' is not a precision"),
        (["--threads", "0"], "error: threads=0 must be 1 or above"),
    ],
)
@pytest.mark.parametrize("workers", [1, 2])
def test_settings_are_refused_before_a_worker_starts(
    model: Path, small_clicks: Path, workers: int, options: list[str], message: str
) -> None:
    done = infer(model, "--data", small_clicks / "test", "--workers", workers, *options)
    assert done.exit_code == 1
    assert message in done.stderr
