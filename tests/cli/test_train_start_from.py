"""`sparsefleet train --start-from` and `--fresh-optimizer`: what reaches the run, and what is refused before it."""

from __future__ import annotations

import json

import pytest

from sparsefleet.checkpoint import Checkpoint, latest

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
