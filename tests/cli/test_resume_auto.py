"""`sparsefleet train --resume auto`: the same command, started again after whatever happened, comes to the same end."""

from __future__ import annotations

import json
import os
import random
import signal
import time

import pytest
from command_line import SMALL, CommandLine
from waiting import wait_until

from sparsefleet.checkpoint import Checkpoint, diff, latest
from sparsefleet.core.errors import CheckpointError

BASE = ("--hidden", "16,16", "--embedding-size", 4, "--learning-rate", 0.01, "--threads", 1)
SECONDS = 240.0
"""For a command to get on: on a machine that does much else, starting alone may take a minute."""


def newest(folder) -> int:
    try:
        return Checkpoint.open(latest(folder)).manifest.step
    except (CheckpointError, OSError):
        return -1


def same_end(one, other) -> None:
    """Tables, optimizer state, dense parameters; and metrics, random state and place of the run."""
    first, second = Checkpoint.open(latest(one)), Checkpoint.open(latest(other))
    found = diff(str(first.location), str(second.location))
    assert found["same"], found
    assert first.manifest.extra == second.manifest.extra
    assert first.manifest.step == second.manifest.step


def wait_for_another(folder, before: int, child) -> None:
    wait_until(lambda: newest(folder) > before or child.poll() is not None, SECONDS, "another checkpoint")


def killed_and_started_again(children, command, folder, kills: int, seed: int) -> int:
    """Start a command again and again, each time killed at some moment; at last let it end. Says how often it died."""
    moments, died = random.Random(seed), 0
    for _ in range(kills):
        child = children.start(*command)
        before = newest(folder)
        if moments.random() < 0.8:  # mostly once it has got on; else at any moment of its start
            wait_for_another(folder, before, child)
            time.sleep(moments.random() * 0.3)  # at any moment from there on, within a save or between two
        else:
            time.sleep(moments.random() * 2)
        child.send_signal(signal.SIGKILL)
        child.communicate(timeout=SECONDS)
        died += child.returncode == -signal.SIGKILL
    last = children.start(*command)
    _, errors = last.communicate(timeout=SECONDS)
    assert last.returncode == 0, errors
    return died


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kills", [1, pytest.param(10, marks=pytest.mark.slow)])
def test_killed_at_any_moment_it_comes_to_the_same_bits(cli, children, clicks, tmp_path, kills):
    epochs, batch, often = (2, 20, 100) if kills == 1 else (12, 10, 17)
    command = (
        *("train", "--data", clicks / "train", "--test-data", clicks / "test", *BASE, "--batch-size", batch),
        *("--epochs", epochs, "--save-every", often, "--keep", 2, "--resume", "auto", "--save"),
    )
    whole = cli(*command, tmp_path / "whole")
    assert whole.exit_code == 0, whole.output
    died = killed_and_started_again(children, (*command, tmp_path / "killed"), tmp_path / "killed", kills, seed=kills)
    assert died >= kills // 2, "the run is too short to be killed in"
    same_end(tmp_path / "whole", tmp_path / "killed")
    assert not [path.name for path in (tmp_path / "killed").iterdir() if path.name.startswith(".")]  # no litter


def test_it_begins_goes_on_and_says_when_nothing_is_left(cli, clicks, tmp_path):
    command = ("train", "--data", clicks / "train", *BASE, "--batch-size", 100, "--save", tmp_path / "M", "--json")
    first = cli(*command, "--resume", "auto")
    assert first.exit_code == 0, first.output
    assert json.loads(first.stdout)["rows"] == 6000
    assert "goes on" not in first.stderr
    again = cli(*command, "--resume", "auto")
    assert again.exit_code == 0, again.output
    assert json.loads(again.stdout)["rows"] == 0
    said = " ".join(again.stderr.split())
    assert f"goes on from {tmp_path}/M/step-00000060" in said
    assert "nothing left to train" in said
    assert "earlier run" not in said
    more = cli(*command, "--resume", "auto", "--epochs", 2)
    assert json.loads(more.stdout)["rows"] == 6000


def test_it_never_begins_anew_over_checkpoints_that_it_cannot_load(cli, clicks, tmp_path):
    command = ("train", "--data", clicks / "train", *BASE, "--batch-size", 100, "--save", tmp_path / "M")
    assert cli(*command).exit_code == 0
    (tmp_path / "M/step-00000060/manifest.json").write_text("{")
    done = cli(*command, "--resume", "auto")
    assert done.exit_code == 1
    assert "can be loaded: " in " ".join(done.stderr.split())
    assert (tmp_path / "M/step-00000060").exists()


def test_what_it_needs(cli, clicks, tmp_path):
    done = cli("train", "--data", clicks / "train", "--resume", "auto")
    assert done.exit_code == 1
    assert "--resume auto goes on from the checkpoints in the --save folder: give --save" in " ".join(
        done.stderr.split()
    )


def test_files_are_known_by_their_place_not_by_their_name(cli, clicks, tmp_path, monkeypatch):
    """Stopped within an epoch, resumed from another folder, under other names of the same files."""
    monkeypatch.chdir(clicks)
    base = ("train", *BASE, "--batch-size", 100, "--save-every", 25, "--keep", 9)
    assert cli(*base, "--data", "train", "--save", tmp_path / "M").exit_code == 0
    monkeypatch.chdir(clicks / "train")
    os.symlink(clicks, tmp_path / "link")
    for number, name in enumerate((".", f"file://{clicks}/train", tmp_path / "link/train")):
        resumed = (*base, "--data", name, "--resume", tmp_path / "M/step-00000025", "--save", tmp_path / f"{number}")
        done = cli(*resumed)
        assert done.exit_code == 0, done.output
        same_end(tmp_path / "M", tmp_path / f"{number}")
    other = cli(*base, "--data", "../test", "--resume", tmp_path / "M/step-00000025", "--save", tmp_path / "other")
    assert other.exit_code == 1
    assert f"missing now: {clicks}/train/" in " ".join(other.stderr.split())


def test_an_earlier_runs_folder_is_told_of_whatever_is_resumed(cli, clicks, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    base = ("train", "--data", clicks / "train", *BASE, "--batch-size", 100)
    for name in ("a", "b"):
        assert cli(*base, "--save", name).exit_code == 0
    told = cli(*base, "--save", "./b", "--resume", "a")
    assert "./b has checkpoints of an earlier run" in " ".join(told.stderr.split())
    for resumed in ("b", "./b/", tmp_path / "b", "b/step-00000060"):
        assert "earlier run" not in cli(*base, "--save", "b", "--resume", resumed).stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_job_of_many_processes(shell: CommandLine, small_clicks, mode) -> None:
    """Killed as a whole and started again: every sample of every epoch is trained once."""
    command = (
        *("train", "--data", small_clicks / "train", *SMALL, "--servers", 2, "--workers", 2, "--mode", mode),
        *("--epochs", 3, "--save", "model", "--save-every", 3, "--resume", "auto"),
    )
    for _ in range(2):
        job = shell.start(*command)
        before = newest(shell.folder / "model")
        wait_for_another(shell.folder / "model", before, job)
        for pid in shell.left():
            os.kill(pid, signal.SIGKILL)
        job.communicate(timeout=SECONDS)
    done = shell.finish(shell.start(*command, "--json"), SECONDS)
    assert done.returncode == 0, done.stderr
    found = Checkpoint.open(latest(shell.folder / "model")).manifest
    assert found.extra["training"]["epoch"] == 3
    from sparsefleet.metrics import ClickMetrics

    assert ClickMetrics.from_dict(found.extra["training"]["metrics"]).rows == 3 * 2000
