"""`sparsefleet importance`: what a model goes by is what it loses most without."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest
from small_jobs import SLOTS, batches, joined

from sparsefleet.checkpoint import latest
from sparsefleet.scoring.importance import _dense_shuffled, _slot_shuffled


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """MultiSlot-like Criteo rows whose label is C3's and whose first number says something; all else is noise."""
    folder = tmp_path_factory.mktemp("planted")
    random = np.random.default_rng(1)
    for part, rows in (("train", 4000), ("test", 1500)):
        lines = []
        for _ in range(rows):
            good, number = random.integers(0, 20), random.integers(0, 20)
            clicked = random.random() < 1 / (1 + np.exp(-(0.6 * (good - 9.5) + 0.1 * (number - 9.5))))
            numbers = [number, *random.integers(0, 20, 12)]
            categories = [random.integers(0, 20), random.integers(0, 20), good, *random.integers(0, 20, 23)]
            lines.append("\t".join([str(int(clicked)), *map(str, numbers), *(f"{c:x}" for c in categories)]))
        (folder / part).mkdir()
        (folder / part / "part-0").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="module")
def model(planted, tmp_path_factory):
    from typer.testing import CliRunner

    from sparsefleet.cli.app import app

    folder = tmp_path_factory.mktemp("model")
    words = ("train", "--data", planted / "train", "--hidden", "16", "--embedding-size", 4, "--batch-size", 100)
    done = CliRunner().invoke(
        app, [str(w) for w in (*words, "--learning-rate", 0.01, "--threads", 1, "--epochs", 2, "--save", folder)]
    )
    assert done.exit_code == 0, done.output
    return folder


def test_what_was_planted_comes_first(cli, planted, model):
    done = cli("importance", model, "--data", planted / "test", "--repeats", 2, "--json")
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert said["rows"] == 1500
    assert len(said["losses"]) == 13 + 26
    first, second, *_ = said["losses"]
    assert (first["name"], first["kind"]) == ("C3", "slot")
    assert first["auc"] > 0.2 > 10 * second["auc"]
    assert first["logloss"] > 0.1
    falls = [loss["auc"] for loss in said["losses"]]
    assert falls == sorted(falls, reverse=True)
    scored = json.loads(cli("infer", model, "--data", planted / "test", "--json").stdout)
    assert (said["auc"], said["logloss"]) == (scored["auc"], scored["logloss"])
    again = json.loads(cli("importance", model, "--data", planted / "test", "--repeats", 2, "--json").stdout)
    assert again["losses"] == said["losses"], "the same seed shuffles the same"


def test_some_columns_of_some_rows_as_a_table(cli, planted, model):
    words = ("importance", latest(model), "--data", planted / "test", "--rows", 700, "--threads", 1)
    done = cli(*words, "--column", "C3", "--column", "C7")
    assert done.exit_code == 0, done.output
    assert "on 700 rows" in " ".join(done.stderr.split())
    head, first, second = (line.split() for line in done.stdout.splitlines())
    assert head == ["column", "kind", "AUC", "lost", "log", "loss", "gained"]
    assert (first[:2], second[:2]) == (["C3", "slot"], ["C7", "slot"])
    wrong = cli(*words, "--column", "C99")
    assert wrong.exit_code == 1
    assert "--column C99: the model has none of that name" in " ".join(wrong.stderr.split())
    for option, value in (("--rows", 1), ("--repeats", 0)):
        assert cli(*words[:4], option, value).exit_code == 1


def test_shuffling_moves_one_column_and_loses_nothing():
    batch = joined(batches(3))
    order = np.random.default_rng(0).permutation(len(batch))
    slots = _slot_shuffled(batch, 4, order)
    dense = _dense_shuffled(batch, 2, order)
    for name in SLOTS:
        keys, offsets = batch.slot(name)
        found, ends = slots.slot(name)
        bags = [keys[a:b].tolist() for a, b in pairwise(offsets)]
        wanted = [bags[at] for at in order] if name == SLOTS[4] else bags
        assert [found[a:b].tolist() for a, b in pairwise(ends)] == wanted
        np.testing.assert_array_equal(dense.slot(name)[0], keys)
    np.testing.assert_array_equal(dense.dense[:, 2], batch.dense[order, 2])
    np.testing.assert_array_equal(np.delete(dense.dense, 2, 1), np.delete(batch.dense, 2, 1))
    np.testing.assert_array_equal(slots.labels, batch.labels)
