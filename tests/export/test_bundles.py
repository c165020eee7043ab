"""Export: what is in a bundle, that it computes what the checkpoint does, and what is refused."""

import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from bundle_fixtures import SCHEMA, probabilities_in
from torch import nn
from typer.testing import CliRunner

from sparsefleet.checkpoint import Checkpoint
from sparsefleet.cli.app import app
from sparsefleet.core.batch import Batch
from sparsefleet.core.errors import BundleError, CheckpointError, ConfigError
from sparsefleet.core.schema import DenseFeature, Schema, Slot
from sparsefleet.data import PyReader
from sparsefleet.export import Bundle, export_checkpoint, export_model
from sparsefleet.nn import SparseEmbedding, dense_input
from sparsefleet.optim import SGD, Adam
from sparsefleet.serving import Predictor
from sparsefleet.store import LocalStore
from sparsefleet.train import Trainer, attach
from sparsefleet.train.binding import BoundModel


def test_a_bundle_scores_as_infer_does(trained, tmp_path):
    out = tmp_path / "scores.csv"
    arguments = ["infer", str(trained.checkpoint(3)), "--data", str(trained.data / "test"), "--output", str(out)]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    scores = Predictor(trained.bundles[2]).predict(trained.rows)
    np.testing.assert_allclose(scores, probabilities_in(out), atol=1e-6, rtol=0)
    assert scores.std() > 0.01  # a model that says the same of every row would prove nothing


def test_every_row_is_in_the_file_and_no_other(trained):
    table = Bundle.open(trained.bundles[0], full=True).tables["SparseFeatFactors"]
    count = 0
    for rows in Checkpoint.open(trained.checkpoint(1)).sparse_rows("SparseFeatFactors", read_state=False):
        found, there = table.lookup(rows.keys)
        assert there.all()
        np.testing.assert_array_equal(found, rows.values)
        count += len(rows)
    assert count == len(table) == len(table.keys())
    assert not table.lookup(np.array([1, 2, 3], np.uint64))[1].any()


def test_what_the_bundle_tells_of_itself(trained):
    manifest = Bundle.open(trained.bundles[1]).manifest
    assert manifest.name == "v2"
    assert manifest.checkpoint.name == trained.checkpoint(2).name
    assert manifest.checkpoint.step == int(trained.checkpoint(2).name.removeprefix("step-"))
    network = json.loads((trained.bundles[1] / "network.json").read_text())
    assert network["embeddings"][0]["missing"] == network["embeddings"][0]["unknown"] == "zeros"
    assert "tower.layers.0.weight" in [name for name, _ in network["parameters"]]
    assert b".py" not in (trained.bundles[1] / "model.onnx").read_bytes()  # no notes on the script it came from
    assert Bundle.open(trained.bundles[0]).schema == SCHEMA


def test_the_same_export_gives_the_same_bytes(trained, tmp_path):
    twin = export_checkpoint(trained.checkpoint(1), tmp_path / "twin", name="v1")
    first = Bundle.open(trained.bundles[0]).manifest
    assert (twin.manifest.id, twin.manifest.files) == (first.id, first.files)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float16", 1e-3), ("int8", 2e-2)])
def test_smaller_rows_cost_little(trained, tmp_path, dtype, tolerance):
    done = export_checkpoint(trained.checkpoint(3), tmp_path / "small", rows=dtype)
    whole, small = Predictor(trained.bundles[2]), Predictor(tmp_path / "small")
    difference = np.abs(whole.predict(trained.rows) - small.predict(trained.rows)).max()
    assert 0 < difference < tolerance
    path = done.manifest.tables[0].path
    assert done.manifest.file(path).bytes < whole.bundle.manifest.file(path).bytes


def test_rare_rows_are_left_out(trained, tmp_path):
    done = export_checkpoint(trained.checkpoint(3), tmp_path / "few", min_seen=4)
    table, kept, dropped = Bundle.open(tmp_path / "few", full=True).tables["SparseFeatFactors"], 0, 0
    for rows in Checkpoint.open(trained.checkpoint(3)).sparse_rows("SparseFeatFactors"):
        there = table.lookup(rows.keys)[1]
        np.testing.assert_array_equal(there, rows.seen >= 4)
        kept, dropped = kept + there.sum(), dropped + (~there).sum()
    assert (done.manifest.tables[0].rows, done.manifest.tables[0].dropped) == (kept, dropped)
    assert kept
    assert dropped


def test_a_bundle_without_any_row_is_refused(trained, tmp_path):
    message = r"min_seen=1000000 leaves no row of table 'SparseFeatFactors'.* at most \d+ times"
    with pytest.raises(BundleError, match=message):
        export_checkpoint(trained.checkpoint(3), tmp_path / "none", min_seen=1_000_000)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("out", ["ftp://host/v1", "http://host/v1", "s3://bucket", "s3:/bucket/v1", "redis://host/v1"])
def test_places_that_are_none_are_refused(trained, tmp_path, monkeypatch, out):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["export", str(trained.run), "--out", out])
    assert result.exit_code == 1
    assert re.search("local path,? or a URI|two slashes|a whole bucket", " ".join(result.output.split()))
    assert not list(tmp_path.iterdir())


def test_the_command(trained, tmp_path):
    options = ["--rows", "float16", "--name", "night", "--json"]
    result = CliRunner().invoke(app, ["export", str(trained.run), "--out", str(tmp_path / "b"), *options])
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout.strip().splitlines()[-1])
    bundle = Bundle.open(tmp_path / "b", full=True)
    assert told["version"] == bundle.name == "night"
    assert told["tables"]["SparseFeatFactors"]["rows"] == len(bundle.tables["SparseFeatFactors"])
    refused = CliRunner().invoke(app, ["export", str(tmp_path / "nowhere"), "--out", str(tmp_path / "c")])
    assert refused.exit_code == 1
    assert "no checkpoint" in refused.output


def test_the_command_says_what_the_bundle_comes_from(trained, tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))

    def exported(name, *options):
        result = CliRunner().invoke(app, ["export", str(trained.run), "--out", name, *options])
        assert result.exit_code == 0, result.output
        lineage = json.loads((tmp_path / name / "manifest.json").read_text())["lineage"]
        assert Bundle.open(tmp_path / name).manifest.lineage.to_dict() == lineage
        return lineage["data"], lineage["commit"]

    assert exported("without") == (None, None)
    me = ["-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false"]
    git = functools.partial(subprocess.run, check=True, capture_output=True, text=True, timeout=60)
    git(["git", "init", "--quiet", "."])
    git(["git", *me, "commit", "--quiet", "--allow-empty", "--message", "first"])
    commit = git(["git", "rev-parse", "HEAD"]).stdout.strip()
    data = str(trained.data / "test")
    assert exported("with", "--test-data", data) == (data, commit)


# -- a user's own model with several tables ----------------------------------------------------------------------------

OWN = Schema(
    dense=(DenseFeature("age", 10.0, 50.0), DenseFeature("price")),
    slots=(Slot("user"), Slot("item"), Slot("words")),
    sparse_feature_dim=0,
)


class Own(nn.Module):
    """Three embeddings on two tables, batch norm, dropout, a logit."""

    def __init__(self):
        super().__init__()
        self.users = SparseEmbedding("users", 3, ["user"])
        self.items = SparseEmbedding("things", 5, ["item"])
        self.words = SparseEmbedding("things", 5, ["words", "item"], pooling="mean")
        self.norm = nn.BatchNorm1d(18)
        self.drop = nn.Dropout(0.5)
        self.out = nn.Sequential(nn.Linear(20, 8), nn.GELU(), nn.Linear(8, 1))

    def forward(self, batch):
        pooled = self.norm(torch.cat([self.users(batch), self.items(batch), self.words(batch)], 1))
        return self.out(torch.cat([self.drop(pooled), dense_input(batch)], 1))


def own_batch(rows, seed):
    random = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(random.integers(0, 3, rows * 3))]).astype(np.int64)
    return Batch(
        labels=(random.random(rows) < 0.4).astype(np.float32),
        dense=random.random((rows, 2), np.float32),
        keys=random.integers(0, 40, offsets[-1]).astype(np.uint64),
        offsets=offsets,
        slots=OWN.slot_names,
    )


def test_an_own_model_is_exported_from_its_store_and_from_its_checkpoint(tmp_path):
    torch.manual_seed(1)
    model, trainer = Own(), Trainer(Adam(0.05), threads=1)
    trainer.fit(model, PyReader(OWN, lambda: (own_batch(32, seed) for seed in range(5))))
    batch = own_batch(50, 99)
    batch = Batch(batch.labels, batch.dense, batch.keys * np.uint64(2), batch.offsets, batch.slots)  # some are unknown
    attach(model.eval(), trainer.store)
    with torch.no_grad():
        want = torch.sigmoid(model(batch)).reshape(-1).numpy()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    export_model(model, trainer.store, tmp_path / "from-store", schema=OWN, step=5)
    trainer.save(str(tmp_path / "saved"))
    export_model(Own(), tmp_path / "saved", tmp_path / "from-checkpoint")
    for name in ("from-store", "from-checkpoint"):
        bundle = Bundle.open(tmp_path / name, full=True)
        assert set(bundle.tables) == {"users", "things"}
        np.testing.assert_allclose(Predictor(bundle).predict_batch(batch), want, atol=1e-6)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]
    with pytest.raises(CheckpointError, match="export_model"):
        export_checkpoint(tmp_path / "saved", tmp_path / "x")


class UsesLabels(Own):
    def forward(self, batch):
        return super().forward(batch) + torch.from_numpy(batch.labels)[:, None]


class UsesBags(Own):
    def forward(self, batch):
        return super().forward(batch) * len(batch.slot("user")[0])


class Unused(Own):
    def forward(self, batch):
        dense = dense_input(batch)
        return self.out(torch.cat([self.users(batch), dense, dense.new_zeros(dense.shape[0], 15)], 1))


class Centred(Own):
    """Batch norm made by hand: in training it may help, and a request has no batch."""

    def forward(self, batch):
        score = super().forward(batch)
        return score - score.mean()


class ByPlace(Own):
    def forward(self, batch):
        score = super().forward(batch)
        return score * torch.cumsum(torch.ones_like(score), 0)


DEPENDS = "the score of a row depends on the rows scored with it: of 8 random rows, number "


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (UsesLabels, "batch.labels"),
        (UsesBags, "batch.slot"),
        (Unused, "no influence"),
        (Centred, DEPENDS + r"1 gets 0\.\d+ with the others, and 0\.5 alone\. A request holds one row, or any others"),
        (ByPlace, DEPENDS + r"\d gets 0\.\d+ with the others, and 0\.\d+ alone"),
    ],
)
def test_models_that_cannot_be_served_are_refused(tmp_path, kind, message):
    model, store = kind(), LocalStore()
    BoundModel(model, store, SGD(0.1), 0)
    with pytest.raises(BundleError, match=message):
        export_model(model, store, tmp_path / "b", schema=OWN)
    assert not (tmp_path / "b").exists()


class Bare(nn.Module):
    def __init__(self):
        super().__init__()
        self.users = SparseEmbedding("users", 3, ["user"])
        self.out = nn.Linear(3, 2)

    def forward(self, batch):
        return self.out(self.users(batch))


def test_a_model_without_dense_input(tmp_path):
    model, store = Bare(), LocalStore()
    BoundModel(model, store, SGD(0.1), 0)
    export_model(model, store, tmp_path / "b", schema=OWN)
    predictor = Predictor(tmp_path / "b")
    assert predictor.bundle.network.dense is None
    assert len(predictor.predict([{"age": 1, "price": 2, "user": "u", "item": None, "words": []}])) == 1
    with pytest.raises(ConfigError, match="schema=None"):
        export_model(model, store, tmp_path / "c")


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_an_export_never_replaces_what_is_no_bundle(trained, tmp_path):
    with pytest.raises(BundleError, match="holds other things"):
        export_checkpoint(trained.checkpoint(1), trained.checkpoint(1))
    (tmp_path / "file").write_text("x")
    with pytest.raises(BundleError, match="a file of that name"):
        export_checkpoint(trained.checkpoint(1), tmp_path / "file")
    with pytest.raises(BundleError, match="two slashes"):  # `Path` has taken one of them
        export_checkpoint(trained.checkpoint(1), Path("s3://bucket/v1"))
    with pytest.raises(BundleError, match="two slashes"):
        Bundle.open(Path("s3://bucket/v1"))
    assert Checkpoint.open(trained.checkpoint(1))


@pytest.mark.parametrize(
    ("options", "message"),
    [({"rows": "int4"}, "float32, float16, int8"), ({"min_seen": -1}, "0 or above"), ({"name": "a\nb"}, "control")],
)
def test_options_that_make_no_sense(trained, tmp_path, options, message):
    with pytest.raises(ConfigError, match=message):
        export_checkpoint(trained.checkpoint(1), tmp_path / "b", **options)


def test_a_bundle_is_replaced_whole(trained, tmp_path):
    export_checkpoint(trained.checkpoint(1), tmp_path / "b", name="one")
    kept = Predictor(tmp_path / "b")
    before = kept.predict(trained.rows)
    export_checkpoint(trained.checkpoint(2), tmp_path / "b", name="two")
    assert Bundle.open(tmp_path / "b", full=True).name == "two"
    np.testing.assert_array_equal(kept.predict(trained.rows), before)  # who had it open keeps the old files
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_reading_and_serving_import_no_torch(trained):
    script = (
        "import sys; from sparsefleet.serving import Predictor\n"
        "import sparsefleet.serving.server, sparsefleet.cli.serve\n"
        f"Predictor({str(trained.bundles[0])!r}).predict([])\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('torch', 'onnx')])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr
