"""Checkpoints of the version before: one that commit 24ee871 wrote loads, scores as it did there, and trains on.

`data/version-1` holds what its `sparsefleet train --optimizer adam --batch-size 20 …` saved of 60 samples after three
steps, ten samples, and what its `sparsefleet infer` made of them.
"""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from sparsefleet import optim
from sparsefleet.checkpoint import Checkpoint
from sparsefleet.cli.app import app
from sparsefleet.core.errors import CheckpointError
from sparsefleet.store import LocalStore
from sparsefleet.store.base import RunFacts
from sparsefleet.table import TableSpec

DATA = Path(__file__).parent / "data" / "version-1"
TABLE = "SparseFeatFactors"


def scores_in(path: Path) -> list[float]:
    with path.open() as file:
        return [float(line["probability"]) for line in csv.DictReader(file)]


def test_its_rows_come_with_everything_but_when_they_were_touched():
    checkpoint = Checkpoint.open(DATA / "checkpoint")
    checkpoint.verify()
    assert (checkpoint.manifest.version, checkpoint.manifest.step, checkpoint.manifest.partition) == (1, 3, None)
    (rows,) = checkpoint.sparse_rows(TABLE)
    assert (len(rows), rows.dim, rows.state_width) == (97, 2, 4)
    assert rows.seen.max() == 3, "it counted batches"
    assert (rows.touched == 0).all()


def test_it_scores_as_it_did(tmp_path):
    out = tmp_path / "scores.csv"
    words = ["infer", str(DATA / "checkpoint"), "--data", str(DATA / "samples.txt"), "--output", str(out)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    np.testing.assert_allclose(scores_in(out), scores_in(DATA / "scores.csv"), atol=1e-6, rtol=0)


def test_training_goes_on_from_it_and_saves_the_present_version(tmp_path):
    run = tmp_path / "run"
    words = ["train", "--data", str(DATA / "samples.txt"), "--resume", str(DATA / "checkpoint"), "--save", str(run)]
    words += ["--epochs", "2", "--batch-size", "5", "--threads", "1", "--json"]
    words += ["--embedding-size", "2", "--hidden", "4,2", "--sparse-feature-dim", "97", "--optimizer", "adam"]
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps(json.loads((DATA / "checkpoint" / "manifest.json").read_text())["schema"]))
    done = CliRunner().invoke(app, [*words, "--schema", str(schema)])
    assert done.exit_code == 0, done.output
    saved = Checkpoint.open(run / "step-00000005")
    assert saved.manifest.version == 3
    (before,), (after,) = (
        checkpoint.sparse_rows(TABLE) for checkpoint in (Checkpoint.open(DATA / "checkpoint"), saved)
    )
    assert saved.manifest.table(TABLE).step == 5
    assert set(after.touched.tolist()) <= {0, 4, 5}
    moved = after.select(np.argsort(after.keys)).seen > before.select(np.argsort(before.keys)).seen
    np.testing.assert_array_equal(moved, after.select(np.argsort(after.keys)).touched > 0)


def test_a_newer_version_is_refused_with_what_to_do(tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(DATA / "checkpoint", copy)
    manifest = json.loads((copy / "manifest.json").read_text())
    (copy / "manifest.json").write_text(json.dumps({**manifest, "version": 5}))
    with pytest.raises(
        CheckpointError, match=r"version 5; this release reads versions 1 to 4: load it with the release"
    ):
        Checkpoint.open(copy)


def test_the_columns_are_those_of_the_version_that_the_manifest_says(tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(DATA / "checkpoint", copy)
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest |= {"version": 2, "partition": None}
    for entry in manifest["files"]:
        if entry["kind"] == "sparse":
            entry["shard"] = 0
    (copy / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match=r"(?s)it has the columns .*the manifest says .*touched uint32"):
        list(Checkpoint.open(copy).sparse_rows(TABLE))


def test_touched_goes_through_a_checkpoint(tmp_path):
    store, other = LocalStore(), LocalStore()
    for each in (store, other):
        each.create_table(TableSpec("ads", 2, optim.Adam()))
    for keys in ([1, 2, 3], [2, 3], [3]):
        store.push("ads", np.array(keys, np.uint64), np.ones((len(keys), 2), np.float32))
    store.save(str(tmp_path / "saved"), RunFacts())
    other.load(str(tmp_path / "saved"))
    (rows,) = other.sparse_tables()["ads"].scan()
    assert dict(zip(rows.keys.tolist(), rows.touched.tolist(), strict=True)) == {1: 1, 2: 2, 3: 3}
    other.load(str(tmp_path / "saved"), values_only=True)
    (rows,) = other.sparse_tables()["ads"].scan()
    assert (rows.touched == 0).all(), "the clock begins anew"
