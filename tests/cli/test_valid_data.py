"""`sparsefleet train --valid-data`: the best epoch rather than the last, from training to the bundle."""

from __future__ import annotations

import json

import pytest
from command_line import SMALL, CommandLine

from sparsefleet.checkpoint import Checkpoint, best, latest

FAST = ("--hidden", "16,16", "--embedding-size", 4, "--batch-size", 100, "--learning-rate", 0.01, "--threads", 1)


def last_json(text: str) -> dict:
    return json.loads(text.strip().splitlines()[-1])


def test_the_best_epoch_is_found_told_and_taken(cli, clicks, tmp_path):
    """6,000 samples are learnt by heart from the second epoch on: the first one is the best."""
    run = tmp_path / "M"
    done = cli(
        *("train", "--data", clicks / "train", "--valid-data", clicks / "test", "--test-data", clicks / "test", *FAST),
        *("--epochs", 9, "--patience", 2, "--plateau-factor", 0.1, "--save", run, "--keep", 1, "--json"),
    )
    assert done.exit_code == 0, done.output
    said, told = last_json(done.stdout), " ".join(done.stderr.split())
    assert said["best"]["epoch"] == 1
    assert said["steps"] == 180
    assert said["valid_auc"] < said["best"]["value"] == said["best"]["test"]["auc"]
    assert "stopped early: auc has not got better for 2 epoch(s)" in told
    assert f"best validation auc {said['best']['value']:.5f}, after epoch 1" in told
    (table,) = Checkpoint.open(latest(run)).manifest.tables
    assert table.rule["schedule"]["drops"] == [[120, 0.1], [180, 0.010000000000000002]]

    inferred = cli("infer", run, "--data", clicks / "test", "--json")
    assert last_json(inferred.stdout)["auc"] == said["best"]["value"]
    assert "checkpoint step-00000060: the best one on validation data" in " ".join(inferred.stderr.split())
    newest = cli("infer", run, "--data", clicks / "test", "--checkpoint", "latest", "--json")
    assert last_json(newest.stdout)["auc"] == said["valid_auc"]
    exported = cli("export", run, "--out", tmp_path / "bundle", "--json")
    assert exported.exit_code == 0, exported.output
    assert "checkpoint step-00000060: the best one" in " ".join(exported.stderr.split())
    assert last_json(exported.stdout)["version"].startswith("step-00000060")


@pytest.mark.parametrize("option", [("--patience", 1), ("--plateau-factor", 0.5), ("--watch", "logloss")])
def test_what_goes_by_validation_data_needs_some(cli, clicks, option):
    done = cli("train", "--data", clicks / "train", *option)
    assert done.exit_code == 1
    assert f"{option[0]} goes by validation data: give --valid-data too" in " ".join(done.stderr.split())


def test_a_metric_that_nobody_has_is_refused_before_processes_are_started(cli, clicks, tmp_path):
    done = cli(
        *("train", "--data", clicks / "train", "--valid-data", clicks / "test", "--watch", "acu"),
        *("--servers", 1, "--workers", 1, "--log-dir", tmp_path / "log"),
    )
    assert done.exit_code == 1
    assert "no metric 'acu' to go by; it has auc, logloss" in " ".join(done.stderr.split())
    assert not (tmp_path / "log").exists()


@pytest.mark.parametrize("name", ["rows", "click_ratio"])
def test_a_metric_that_does_not_say_which_epoch_is_better_is_refused(cli, clicks, tmp_path, name):
    done = cli(
        *("train", "--data", clicks / "train", "--valid-data", clicks / "test", "--watch", name),
        *("--servers", 1, "--workers", 1, "--log-dir", tmp_path / "log"),
    )
    assert done.exit_code == 1
    told = " ".join(done.stderr.split())
    assert f"validation cannot go by '{name}'" in told
    assert "Choose auc, accuracy, logloss, normalized_entropy (--watch" in told
    assert not (tmp_path / "log").exists()


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sync", "geo"])
def test_with_many_processes(shell: CommandLine, small_clicks, mode) -> None:
    result = shell.result(
        *("train", "--data", small_clicks / "train", "--valid-data", small_clicks / "test", *SMALL),
        *("--servers", 2, "--workers", 2, "--mode", mode, "--learning-rate", 0.03, "--epochs", 12),
        *("--patience", 2, "--plateau-factor", 0.5, "--save", "model", "--keep", 1),
    )
    assert result["stopped"]
    assert result["best"]["epoch"] < 12
    again = shell.result("infer", "model", "--data", small_clicks / "test")
    assert again["auc"] == result["best"]["value"]
    assert again["step"] == result["best"]["step"]
    assert best(shell.folder / "model").name == f"step-{result['best']['step']:08d}"
