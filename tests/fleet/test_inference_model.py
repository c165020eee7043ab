"""save_inference_model: the same scores from a fraction of the bytes; and the ready application beside it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from server_processes import servers
from typer.testing import CliRunner

from sparsefleet import fleet, optim
from sparsefleet.applications import MultiSlotCTR
from sparsefleet.checkpoint import Checkpoint
from sparsefleet.cli.app import app
from sparsefleet.core.errors import CheckpointError
from sparsefleet.core.initializer import Uniform
from sparsefleet.data.tools.synth import SynthSpec, synth
from sparsefleet.models import CTRDNNConfig
from sparsefleet.store import LocalStore
from sparsefleet.store.base import RunFacts
from sparsefleet.table.spec import TableSpec
from sparsefleet.train import Trainer


def test_a_model_for_scoring_has_no_optimizer_state(tmp_path: Path) -> None:
    data = tmp_path / "data"
    synth(data, SynthSpec(rows=1000, test_rows=300, parts=2, seed=3))
    fleet.init(fleet.Role())
    torch.manual_seed(0)
    model = MultiSlotCTR(CTRDNNConfig(embedding_size=4, hidden=(16,)))
    trainer = Trainer(fleet.distributed_optimizer(optim.Adam(0.01)))
    trainer.fit(model, model.load_criteo_from_file(data / "train", batch_size=100), 1)
    fleet.save_persistables(str(tmp_path / "whole"))
    fleet.save_inference_model(str(tmp_path / "scoring"))
    scored = trainer.evaluate(model, model.load_criteo_from_file(data / "test"))

    saved = Checkpoint.open(tmp_path / "scoring").manifest
    assert [info.state_width for info in (*saved.tables, *saved.blocks)] == [0, 0]
    assert _bytes(tmp_path / "scoring") < 0.6 * _bytes(tmp_path / "whole")
    done = CliRunner().invoke(app, ["infer", str(tmp_path / "scoring"), "--data", str(data / "test"), "--json"])
    assert done.exit_code == 0, done.output
    again = json.loads(done.stdout)
    assert (again["auc"], again["rows"]) == (scored["auc"], 300)
    with pytest.raises(CheckpointError, match="was saved without its optimizer's state"):
        Trainer(optim.Adam(0.01)).load(MultiSlotCTR(model.config), str(tmp_path / "scoring"))


def test_servers_leave_it_out_too(tmp_path: Path) -> None:
    spec = TableSpec("ads", 4, optim.Adagrad(0.1), Uniform(-1.0, 1.0), 7)
    layout, keys = [("w", (11,))], np.arange(1, 200, dtype=np.uint64)
    path = str(tmp_path / "scoring")
    with servers() as made:
        made.start(2)
        store = made.store()
        store.create_table(spec)
        store.create_dense("net", np.zeros(11, np.float32), optim.Adagrad(0.1), layout)
        store.push("ads", keys, np.ones((len(keys), 4), np.float32)).wait()
        store.push_dense("net", np.ones(11, np.float32)).wait()
        rows, dense = store.pull("ads", keys).wait(), np.zeros(11, np.float32)
        store.pull_dense("net", dense).wait()
        store.save(path, RunFacts(step=1), drop_state=True)
        assert store.stats()["servers"][0]["last_checkpoint"] is None, "nothing that a run could be resumed from"
    here = LocalStore()
    here.create_table(spec)
    here.create_dense("net", np.zeros(11, np.float32), optim.Adagrad(0.1), layout)
    with pytest.raises(CheckpointError, match="was saved without its optimizer's state"):
        here.load(path)
    here.load(path, values_only=True)
    assert np.array_equal(here.pull("ads", keys, create=False).wait(), rows)
    assert np.array_equal(here.dense_tables()["net"].values, dense)


def test_the_application_reads_this_trainers_share(tmp_path: Path) -> None:
    synth(tmp_path / "data", SynthSpec(rows=1000, test_rows=0, parts=4, seed=3))
    model = MultiSlotCTR(CTRDNNConfig(hidden=(4,)))
    counts = []
    for index in range(3):
        fleet.init(fleet.Role.worker(index, 3, ["127.0.0.1:1"]))
        with model.load_criteo_from_file(tmp_path / "data" / "train").epoch(1) as epoch:
            counts.append(sum(len(batch) for batch in epoch.streams[0]))
    fleet.init(fleet.Role())
    assert sum(counts) == 1000
    assert min(counts) > 0


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
