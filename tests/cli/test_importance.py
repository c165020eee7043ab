"""`sparsefleet importance`: what a model goes by is what it loses most without."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest
from small_jobs import SLOTS, batches, joined

from sparsefleet.checkpoint import latest
from sparsefleet.core.schema import DenseFeature, Schema, Slot
from sparsefleet.scoring.importance import _dense_shuffled, _of_columns, _of_features, _slots_shuffled


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
    assert said["auc"] == scored["auc"]
    assert said["logloss"] == pytest.approx(scored["logloss"], rel=1e-6)  # threads add up in any order
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


def test_shuffling_moves_what_it_is_told_and_loses_nothing():
    batch = joined(batches(3))
    order = np.random.default_rng(0).permutation(len(batch))
    slots = _slots_shuffled(batch, [4, 9], order)
    dense = _dense_shuffled(batch, [2], order)
    for name in SLOTS:
        keys, offsets = batch.slot(name)
        found, ends = slots.slot(name)
        bags = [keys[a:b].tolist() for a, b in pairwise(offsets)]
        wanted = [bags[at] for at in order] if name in (SLOTS[4], SLOTS[9]) else bags
        assert [found[a:b].tolist() for a, b in pairwise(ends)] == wanted
        np.testing.assert_array_equal(dense.slot(name)[0], keys)
    np.testing.assert_array_equal(dense.dense[:, 2], batch.dense[order, 2])
    np.testing.assert_array_equal(np.delete(dense.dense, 2, 1), np.delete(batch.dense, 2, 1))
    np.testing.assert_array_equal(slots.labels, batch.labels)


TABLE = Schema(
    dense=(DenseFeature("price", minimum=0.0, diff=20.0), DenseFeature("cost", column="price", function="log1p")),
    slots=(
        Slot("user"),
        Slot("item"),
        Slot("price_range", column="price", buckets=(5.0, 10.0, 15.0)),
        Slot("user_item", cross=("user", "item")),
    ),
    label="click",
)


def test_features_of_one_column_are_known():
    same = {shuffle.name: shuffle.features for shuffle in _of_features(TABLE)}
    assert same == {
        "user": ("user_item",),
        "item": ("user_item",),
        "price_range": ("price", "cost"),
        "user_item": ("user", "item"),
        "price": ("price_range", "cost"),
        "cost": ("price_range", "price"),
    }
    together = {shuffle.name: shuffle.shuffled for shuffle in _of_columns(TABLE)}
    assert together == {
        "price": ("price_range", "price", "cost"),
        "user": ("user", "user_item"),
        "item": ("item", "user_item"),
    }


@pytest.fixture(scope="module")
def priced(tmp_path_factory):
    """A model of rows whose label is the price's alone, which it knows by three features; and a cross."""
    from typer.testing import CliRunner

    from sparsefleet.cli.app import app

    folder = tmp_path_factory.mktemp("priced")
    random = np.random.default_rng(2)
    for part, rows in (("train", 4000), ("test", 1500)):
        lines = ["click,user,item,price"]
        for _ in range(rows):
            price = random.integers(0, 20)
            clicked = random.random() < 1 / (1 + np.exp(-0.6 * (price - 9.5)))
            lines.append(f"{int(clicked)},u{random.integers(5)},i{random.integers(5)},{price}")
        (folder / part).mkdir()
        (folder / part / "part-0.csv").write_text("\n".join(lines) + "\n")
    TABLE.save(folder / "schema.toml")
    words = ("train", "--data", folder / "train", "--model", "lr", "--batch-size", 100, "--epochs", 4)
    words += ("--learning-rate", 0.05, "--threads", 1, "--save", folder / "model")
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return folder


def test_all_features_of_a_column_together(cli, priced):
    words = ("importance", priced / "model", "--data", priced / "test")
    one = {loss["name"]: loss for loss in json.loads(cli(*words, "--json").stdout)["losses"]}
    assert one["price_range"]["features"] == ["price", "cost"]
    done = cli(*words, "--columns", "--json")
    assert done.exit_code == 0, done.output
    first, *others = json.loads(done.stdout)["losses"]
    assert (first["name"], first["kind"]) == ("price", "column")
    assert first["features"] == ["price_range", "price", "cost"]
    assert {loss["name"] for loss in others} == {"user", "item"}
    assert first["auc"] > 0.3 > max(loss["auc"] for loss in one.values()), "each alone leaves what the others know"
    told = cli(*words, "--column", "price")
    assert "not shuffled, of the same column" in told.stdout.splitlines()[0]
    assert "price_range, cost" in " ".join(told.stdout.split())
    assert "--columns shuffles all" in " ".join(told.stderr.split())
    told = cli(*words, "--columns", "--column", "price")
    assert "shuffled together" in told.stdout.splitlines()[0]
    wrong = cli(*words, "--columns", "--column", "price_range")
    assert "--column price_range: the model has none of that name; it has price, user, item" in (
        " ".join(wrong.stderr.split())
    )


def test_each_of_several_labels(cli, tmp_path):
    from sparsefleet.datasets.events import synth_events
    from sparsefleet.datasets.synth import SynthSpec

    synth_events(tmp_path / "data", SynthSpec(rows=2000, test_rows=800, parts=1, seed=3))
    words = ("train", "--data", tmp_path / "data" / "train", "--model", "esmm", "--set", "hidden=8")
    done = cli(*words, "--embedding-size", 4, "--batch-size", 100, "--threads", 1, "--save", tmp_path / "model")
    assert done.exit_code == 0, done.output
    words = ("importance", tmp_path / "model", "--data", tmp_path / "data" / "test", "--column", "item")
    said = json.loads(cli(*words, "--json").stdout)
    (loss,) = said["losses"]
    assert said["label"] == "click"
    assert loss["labels"].keys() == {"click", "buy"}
    assert loss["labels"]["click"] == {"auc": loss["auc"], "logloss": loss["logloss"]}
    scored = json.loads(cli("infer", tmp_path / "model", "--data", tmp_path / "data" / "test", "--json").stdout)
    buys = json.loads(cli(*words, "--label", "buy", "--json").stdout)
    assert (buys["label"], buys["auc"]) == ("buy", scored["buy_auc"])
    assert buys["logloss"] == pytest.approx(scored["buy_logloss"], rel=1e-6)  # threads add up in any order
    assert buys["losses"][0]["auc"] == loss["labels"]["buy"]["auc"]
    assert "of label buy" in " ".join(cli(*words, "--label", "buy").stderr.split())
    wrong = cli(*words, "--label", "sold")
    assert "--label sold: the model has none of that name; it has click, buy" in " ".join(wrong.stderr.split())
