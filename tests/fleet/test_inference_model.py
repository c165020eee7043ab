"""save_inference_model: the same scores without optimizer state, as a bundle or as a checkpoint; and the ready
application beside it.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from server_processes import servers
from torch import nn
from typer.testing import CliRunner

from sparsefleet import fleet, optim
from sparsefleet.applications import MultiSlotCTR
from sparsefleet.checkpoint import Checkpoint
from sparsefleet.cli.app import app
from sparsefleet.core.batch import Batch
from sparsefleet.core.errors import CheckpointError, ConfigError, SparseFleetError
from sparsefleet.core.initializer import Uniform
from sparsefleet.core.schema import CRITEO
from sparsefleet.data.open import open_reader
from sparsefleet.datasets.synth import SynthSpec, synth
from sparsefleet.export import Bundle
from sparsefleet.models import CTRDNNConfig
from sparsefleet.nn import SparseEmbedding, dense_input
from sparsefleet.serving import Predictor
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
    fleet.save_inference_model(str(tmp_path / "scoring"), format="checkpoint")
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


class TwoTables(nn.Module):
    """A model of a user's own: tables with rules of their own, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.ads = SparseEmbedding("ads", 3, CRITEO.slot_names[:10], pooling="mean", optimizer=optim.Adagrad(0.1))
        self.users = SparseEmbedding("users", 2, CRITEO.slot_names[10:])
        self.last = nn.Linear(30 + 32 + 13, 2)
        self.register_buffer("shift", torch.tensor([0.25, -0.25]))

    def forward(self, batch: Batch) -> torch.Tensor:
        inputs = torch.cat([self.ads(batch), self.users(batch), dense_input(batch)], 1)
        return self.last(inputs) + self.shift


def test_a_bundle_of_a_running_job(tmp_path: Path) -> None:
    """What it serves is what the trainer scores at that moment; training goes on as if nothing had happened."""
    data = tmp_path / "data"
    synth(data, SynthSpec(rows=1000, test_rows=100, parts=1, seed=3))
    fleet.init(fleet.Role())
    torch.manual_seed(0)
    model = TwoTables()
    trainer = Trainer(fleet.distributed_optimizer(optim.Adam(0.01)))
    with pytest.raises(ConfigError, match="call fit first"):
        fleet.save_inference_model(str(tmp_path / "out" / "v1"))
    for number in (1, 2):
        trainer.fit(model, open_reader(str(data / "train"), CRITEO, batch_size=100), 1)
        fleet.save_inference_model(str(tmp_path / "out" / f"v{number}"), name=f"v{number}")
        wanted = list(trainer.predict(model, open_reader(str(data / "test"), CRITEO)))
        predictor = Predictor(tmp_path / "out" / f"v{number}")
        assert predictor.version == f"v{number}"
        assert predictor.bundle.manifest.checkpoint.step == 10 * number
        assert predictor.bundle.manifest.checkpoint.name == f"step-{10 * number:08d}"
        for batch, scores in wanted:
            np.testing.assert_allclose(predictor.predict_batch(batch), scores, atol=1e-6)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["v1", "v2"], "nothing is left of the cut"
    fleet.save_inference_model(str(tmp_path / "out" / "v2"), rows="int8", min_seen=3)
    small = Bundle.open(tmp_path / "out" / "v2")
    assert {table.dtype for table in small.manifest.tables} == {"int8"}
    assert all(table.dropped for table in small.manifest.tables)


@pytest.mark.parametrize(
    ("path", "options", "message"),
    [
        ("v1", {"format": "onnx"}, "choose bundle or checkpoint"),
        ("v1", {"format": "checkpoint", "rows": "int8"}, "are options of a bundle"),
        ("v1", {"rows": "int4"}, "rows='int4'"),
        ("full", {}, "holds other things"),
        ("s3://bucket/v1", {}, "a local or shared folder"),
    ],
)
def test_what_is_refused_before_anything_is_saved(
    tmp_path: Path, path: str, options: dict[str, str], message: str
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("precious")
    fleet.init(fleet.Role())
    Trainer(fleet.distributed_optimizer(optim.SGD(0.01)))
    with pytest.raises(SparseFleetError, match=message):
        fleet.save_inference_model(path if "://" in path else str(tmp_path / path), **options)
    assert [entry.name for entry in tmp_path.rglob("*")] == ["full", "mine"]


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
