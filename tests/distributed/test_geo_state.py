"""Geo with a rule that has state: what checkpoints hold of it, and what goes on from them."""

from __future__ import annotations

import numpy as np
import pytest
from small_jobs import TABLE, Given, batches, cluster, local_parameters, small_model, train_local

from sparsefleet import optim
from sparsefleet.checkpoint import Checkpoint, latest
from sparsefleet.core.errors import CheckpointError
from sparsefleet.fleet import DistributedStrategy
from sparsefleet.store import LocalStore
from sparsefleet.train import SavePolicy, Trainer

GEO = DistributedStrategy(mode="geo", k_steps=5)
DATA = batches(20, seed=3)
ADAM = optim.Adam(1e-2)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A checkpoint of a geo job with Adam, and what its servers held."""
    folder = tmp_path_factory.mktemp("geo")
    with cluster(2) as fleet:
        fleet.train([Given(DATA[0::2]), Given(DATA[1::2])], ADAM, GEO, save=SavePolicy(str(folder)))
        return folder, fleet.parameters()


def test_a_checkpoint_holds_values_and_says_where_the_state_is(saved):
    folder, there = saved
    checkpoint = Checkpoint.open(latest(folder))
    for info in (checkpoint.manifest.table(TABLE), checkpoint.manifest.block("dense")):
        assert (info.rule["name"], info.rule["state"], info.state_width) == ("adam", "elsewhere", 0)
    rows = sum(len(part) for part in checkpoint.sparse_rows(TABLE))
    assert rows == len(there.keys)
    assert all(part.seen.all() for part in checkpoint.sparse_rows(TABLE))


def test_a_geo_job_goes_on_from_it_on_any_number_of_servers(saved):
    folder, there = saved
    with cluster(3) as fleet:
        (a, b) = fleet.train([Given(DATA[0::2]), Given(DATA[1::2])], ADAM, GEO, epochs=1, resume=str(folder))
        assert (a.result.rows, b.result.rows) == (0, 0), "its epoch was done before"
        now = fleet.parameters()
    np.testing.assert_array_equal(now.keys, there.keys)
    np.testing.assert_array_equal(now.values, there.values)
    np.testing.assert_array_equal(now.dense, there.dense)
    with cluster(1) as fleet:
        outcomes = fleet.train([Given(DATA[0::2]), Given(DATA[1::2])], ADAM, GEO, epochs=2, resume=str(folder))
        assert fleet.parameters().step > 0
    assert [outcome.result.rows for outcome in outcomes] == [sum(map(len, DATA[0::2])), sum(map(len, DATA[1::2]))]


def test_other_modes_refuse_it_with_a_reason_and_take_its_values(saved):
    folder, there = saved
    with pytest.raises(
        CheckpointError,
        match="is of a job in mode geo, whose trainers keep adam's state themselves: it holds none",
    ):
        train_local(Given(DATA), ADAM, epochs=2, resume=str(folder))
    store = LocalStore()
    Trainer(ADAM, store=store).load(small_model(), str(folder), values_only=True)
    here = local_parameters(store)
    np.testing.assert_array_equal(here.values, there.values)
    np.testing.assert_array_equal(here.dense, there.dense)


def test_geo_goes_on_from_a_checkpoint_of_another_mode(tmp_path):
    _, store = train_local(Given(DATA), ADAM, save=SavePolicy(str(tmp_path)))
    before = local_parameters(store)
    with cluster(2) as fleet:
        fleet.train([Given([])], ADAM, GEO, epochs=1, resume=str(tmp_path))
        now = fleet.parameters()
    np.testing.assert_array_equal(now.keys, before.keys)
    np.testing.assert_array_equal(now.values, before.values)
    assert not now.state.size
    with cluster(1) as fleet, pytest.raises(CheckpointError, match="saved with optimizer adam; the model's is adagrad"):
        fleet.train([Given(DATA)], optim.Adagrad(), GEO, epochs=2, resume=str(tmp_path))


def test_a_second_fit_goes_on_with_the_state():
    """One trainer is one process, also over several calls."""
    one, store = train_local(Given(DATA), ADAM, epochs=2)
    with cluster(1) as fleet:
        trainer, model = Trainer(fleet.job(ADAM, GEO, 0, 1)), small_model()
        for _ in range(2):
            trainer.fit(model, Given(DATA))
        there, here = fleet.parameters(), local_parameters(store)
    np.testing.assert_allclose(there.values, here.values, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(there.dense, here.dense, rtol=1e-3, atol=1e-5)
    assert one.result.rows == 2 * sum(map(len, DATA))
