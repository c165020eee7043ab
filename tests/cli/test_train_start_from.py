"""`sparsefleet train --start-from` and `--fresh-optimizer`: what reaches the run, and what is refused before it."""

from __future__ import annotations

import json

import numpy as np
import pytest

from sparsefleet.checkpoint import Checkpoint, latest
from sparsefleet.core.schema import Schema, Slot
from sparsefleet.data.open import open_reader

BASE = ("--hidden", "8", "--embedding-size", 4, "--learning-rate", 0.01, "--threads", 1, "--batch-size", 100)
TABLE = "SparseFeatFactors"


@pytest.fixture(scope="module")
def old(clicks, tmp_path_factory):
    """A run of 60 steps."""
    from typer.testing import CliRunner

    from sparsefleet.cli.app import app

    folder = tmp_path_factory.mktemp("old") / "M"
    words = ("train", "--data", clicks / "train", *BASE, "--save", folder)
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return folder


def rows_in(folder):
    """Values and optimizer state by key."""
    return {
        key: (values, state)
        for rows in Checkpoint.open(latest(folder)).sparse_rows(TABLE)
        for key, values, state in zip(rows.keys.tolist(), rows.values.tolist(), rows.state.tolist(), strict=True)
    }


@pytest.mark.parametrize("fresh", [False, True])
def test_a_new_run_begins_with_what_the_old_one_has_learnt(cli, clicks, old, tmp_path, fresh):
    words = ("--start-from", old, *(("--fresh-optimizer",) if fresh else ()), "--save", tmp_path / "new", "--json")
    done = cli("train", "--data", clicks / "test", *BASE, *words)
    assert done.exit_code == 0, done.output
    assert f"start from {latest(old).name}" in " ".join(done.stderr.split())
    assert json.loads(done.stdout)["rows"] == 1500
    before, after = rows_in(old), rows_in(tmp_path / "new")
    assert before.keys() < after.keys()
    untouched = [key for key, (values, _) in before.items() if after[key][0] == values]
    assert len(untouched) > len(before) / 10, "rows of values that the new data do not have"
    states = [before[key][1] for key in untouched]
    assert sum(map(any, states)) > len(states) / 2
    wanted = [[0.0] * len(state) for state in states] if fresh else states
    assert [after[key][1] for key in untouched] == wanted


def test_what_does_not_go_together(cli, clicks, old, tmp_path):
    def refused(*words):
        done = cli("train", "--data", clicks / "test", *BASE, *words)
        assert done.exit_code == 1
        assert done.stdout == ""
        return " ".join(done.stderr.split())

    assert "--fresh-optimizer is for --start-from" in refused("--fresh-optimizer")
    fresh = ("--fresh-optimizer", "--resume", "auto", "--save", tmp_path / "new")
    assert "--fresh-optimizer is for --start-from" in refused(*fresh)
    assert "give one of them (or --resume auto)" in refused("--start-from", old, "--resume", old)
    for place in (old, latest(old)):
        assert "save to another folder" in refused("--start-from", place, "--save", f"{old}/.")
    assert "no checkpoint" in refused("--start-from", tmp_path / "none", "--save", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_slot_more_is_trained(cli, tmp_path):
    """Labels go by a column that the old schema does not know."""
    random = np.random.default_rng(0)
    lines = [f"{c % 2},{a},{b},{c}" for a, b, c in random.integers(0, (50, 50, 10), (2000, 3)).tolist()]
    (tmp_path / "rows.csv").write_text("\n".join(["label,a,b,c", *lines, ""]))

    def run(columns, *words):
        schema = Schema((), tuple(map(Slot, columns)), sparse_feature_dim=0)
        schema.save(tmp_path / f"{columns}.json")
        files = ("--data", tmp_path / "rows.csv", "--test-data", tmp_path / "rows.csv")
        settings = (*BASE, "--schema", tmp_path / f"{columns}.json", "--epochs", 3, "--save", tmp_path / columns)
        done = cli("train", *files, *settings, *words, "--json")
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    before, after = run("ab"), run("abc", "--start-from", tmp_path / "ab")
    assert before["test_auc"] < 0.8
    assert after["test_auc"] > 0.95
    assert after["test_logloss"] < before["test_logloss"] / 2
    new = rows_in(tmp_path / "abc")
    with open_reader(tmp_path / "rows.csv", Schema((), (Slot("c"),), sparse_feature_dim=0)).epoch() as epoch:
        keys = {key for batch in epoch.streams[0] for key in batch.keys.tolist()}
    assert len(keys) == 10
    assert new.keys() - rows_in(tmp_path / "ab").keys() == keys
    assert all(max(map(abs, new[key][0])) > 0.01 for key in keys), "further than rows start"
