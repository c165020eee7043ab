"""Servers that start from a checkpoint: trainers wait for as long as it gets on; buffers come too."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from small_jobs import Given, batches, cluster, in_threads, readers, small_model
from torch import nn

from sparsefleet import optim
from sparsefleet.checkpoint import Checkpoint
from sparsefleet.core.errors import ConfigError, StoreError
from sparsefleet.core.inputs import Inputs
from sparsefleet.core.schema import CRITEO
from sparsefleet.fleet import DistributedStrategy
from sparsefleet.store import LocalStore
from sparsefleet.store.base import RunFacts
from sparsefleet.table import TableSpec
from sparsefleet.train import Trainer

SPEC = TableSpec("ads", 2, optim.SGD(1.0))
TIMEOUT = 1.0


@pytest.fixture
def saved(tmp_path):
    store = LocalStore()
    store.create_table(SPEC)
    store.pull("ads", np.arange(400, dtype=np.uint64))
    store.save(str(tmp_path / "model"), RunFacts())
    return str(tmp_path / "model")


def make_slow(monkeypatch, pieces: int, pause: float) -> None:
    """Reading a table gives its rows in so many pieces, with pauses between them."""
    read = Checkpoint.own_rows

    def slowly(self, *arguments, **settings):
        for rows in read(self, *arguments, **settings):
            for start in range(pieces):
                time.sleep(pause)  # a load that takes longer than time-outs
                yield type(rows)(
                    *(getattr(rows, name)[start::pieces] for name in ("keys", "values", "state", "seen", "touched"))
                )

    monkeypatch.setattr(Checkpoint, "own_rows", slowly)


def test_a_load_that_stands_still_is_not(saved, monkeypatch):
    make_slow(monkeypatch, 1, 3 * TIMEOUT)
    with cluster(1, load_from=saved) as fleet:
        store = fleet.store(timeout=TIMEOUT)
        with pytest.raises(StoreError, match=r"has not got on with it for 1 s: load table 'ads'; 0 rows are there"):
            store.create_table(SPEC)


@pytest.mark.parametrize("how", ["start from", "load"])
def test_a_load_that_takes_long_is_waited_for(saved, monkeypatch, caplog, how):
    monkeypatch.setattr("sparsefleet.store.remote.checkpoints.TELL_EVERY", 0.5)
    monkeypatch.setattr("sparsefleet.server.long_tasks.TELL_EVERY", 0.5)
    make_slow(monkeypatch, 10, TIMEOUT / 4)
    caplog.set_level("INFO")
    with cluster(2, load_from=saved if how == "start from" else None) as fleet:
        stores = [fleet.store(worker, 2, timeout=TIMEOUT) for worker in range(2)]
        begun = time.monotonic()
        in_threads([lambda store=store: store.create_table(SPEC) for store in stores])
        if how == "load":
            stores[0].load(saved)
        assert time.monotonic() - begun > 2 * TIMEOUT
        assert stores[1].stats()["tables"]["ads"]["rows"] == 400
    said = " ".join(record.getMessage() for record in caplog.records)
    what = "load table 'ads'" if how == "start from" else f"load {saved}"
    assert f"waiting for server 0 ({fleet.endpoints[0]}) to {what}: " in said
    assert "at work for " in said


class WithNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ctr = small_model()
        self.norm = nn.BatchNorm1d(13)

    def forward(self, batch):
        return self.ctr(batch) + self.norm(torch.from_numpy(batch.dense)).mean(dim=1, keepdim=True)


def test_buffers_of_the_checkpoint_reach_the_trainers(tmp_path):
    trainer, model = Trainer(optim.SGD(1e-3)), WithNorm()
    trainer.fit(model, Given(batches(10)))
    trainer.save(str(tmp_path / "model"))
    assert model.norm.num_batches_tracked == 10
    with cluster(2, load_from=str(tmp_path / "model")) as fleet:
        other = WithNorm()
        again = Trainer(store=fleet.store(), optimizer=optim.SGD(1e-3))
        again.evaluate(other, Given(batches(2)))
    assert other.norm.num_batches_tracked == 10
    for name, tensor in model.state_dict().items():
        assert torch.equal(other.state_dict()[name], tensor), name


class Read(Given):
    """Batches that say how their samples were read."""

    def __init__(self, given, word: str) -> None:
        super().__init__(given)
        self._inputs = Inputs.of_schema("pipe" if word == "ready" else "criteo", CRITEO, word)

    def inputs(self) -> Inputs:
        return self._inputs


def test_trainers_hear_how_its_samples_were_read(tmp_path):
    trainer, model = Trainer(optim.SGD(1e-3)), small_model()
    trainer.fit(model, Read(batches(2), "ready"))
    trainer.save(str(tmp_path / "model"))
    with cluster(2, load_from=str(tmp_path / "model")) as fleet:
        again = Trainer(store=fleet.store(), optimizer=optim.SGD(1e-3))
        with pytest.raises(ConfigError, match="the checkpoint that the servers started from was trained on"):
            again.fit(small_model(), Read(batches(2), "raw"))
        again.fit(small_model(), Read(batches(2), "ready"))
    with cluster(1) as fleet:
        Trainer(store=fleet.store(), optimizer=optim.SGD(1e-3)).fit(small_model(), Read(batches(2), "raw"))


class Folded(Given):
    schema = CRITEO.folded(0)


def test_trainers_hear_the_schema_of_its_samples(tmp_path):
    trainer, model = Trainer(optim.SGD(1e-3)), small_model()
    trainer.fit(model, Given(batches(2)))
    trainer.save(str(tmp_path / "model"))
    said = (
        "the checkpoint that the servers started from was trained by another schema than that of these samples: "
        "sparse_feature_dim is 1000001 there, 0 here"
    )
    with cluster(2, load_from=str(tmp_path / "model")) as fleet:
        again, network = Trainer(store=fleet.store(), optimizer=optim.SGD(1e-3)), small_model()
        for use in (again.fit, again.evaluate, again.evaluate_everywhere, lambda *given: next(again.predict(*given))):
            with pytest.raises(ConfigError, match=said):
                use(network, Folded(batches(2)))
        again.evaluate(network, Given(batches(2)))
        again.fit(network, Given(batches(2)))


def test_a_job_of_many_trainers_refuses_test_data_by_another_schema():
    given = batches(4)
    said = "the model was trained by another schema than that of the test data: sparse_feature_dim is 1000001 there"
    with cluster(2) as fleet, pytest.raises(ConfigError, match=said):
        fleet.train(
            readers([given[:2], given[2:]]),
            optim.SGD(1e-3),
            DistributedStrategy(mode="sync"),
            test=[Folded(given[:1]), Folded(given[1:2])],
        )
