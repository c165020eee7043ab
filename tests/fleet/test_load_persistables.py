"""`fluid.io.load_persistables` in any order, into any model: rows and dense parameters are of one training, always."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from pathlib import Path

import numpy as np
import pytest
from server_processes import servers
from small_jobs import Given, batches, local_parameters, small_model

import sparsefleet as sf
from sparsefleet.core import notes
from sparsefleet.core.errors import ConfigError
from sparsefleet.core.process_role import PROCESS_ROLE
from sparsefleet.fleet import DistributedStrategy, Role
from sparsefleet.fleet.facade import Fleet

fluid = sf.fluid
DATA, OTHERS = batches(6), batches(4, seed=9)


@pytest.fixture(autouse=True)
def as_before():
    notes._told.clear()
    PROCESS_ROLE.forget()
    yield
    PROCESS_ROLE.forget()


@pytest.fixture
def saved(tmp_path: Path) -> str:
    """A checkpoint, with Adam's state."""
    model = small_model(seed=3)
    fluid.optimizer.Adam(1e-2).minimize(model.loss)
    exe = fluid.Executor()
    exe.train_from_dataset(model, Given(DATA), quiet=True)
    fluid.io.save_persistables(exe, tmp_path / "saved")
    PROCESS_ROLE.forget()
    return str(tmp_path / "saved")


def auc(model: object, exe: fluid.Executor | None = None) -> float:
    return (exe or fluid.Executor()).infer_from_dataset(model, Given(OTHERS))["auc"]


def test_before_minimize_it_is_what_it_is_after(saved: str) -> None:
    results, stores = [], []
    for first in (True, False):
        PROCESS_ROLE.forget()
        model, exe = small_model(), fluid.Executor()
        if not first:
            fluid.optimizer.Adam(1e-2).minimize(model.loss)
        fluid.io.load_persistables(exe, saved, model)
        loaded = auc(model, exe)
        if first:
            fluid.optimizer.Adam(1e-2).minimize(model.loss)
            assert auc(model, exe) == loaded
        result = fluid.Executor().train_from_dataset(model, Given(OTHERS), quiet=True)
        stores.append(local_parameters(exe.trainer().store))
        results.append((loaded, result.train["auc"], auc(model, exe), auc(model), auc(fluid.default_main_program())))
    assert results[0] == results[1]
    assert len({*results[0][2:]}) == 1
    assert results[0][2] != results[0][0]
    for name, mine in vars(stores[0]).items():
        np.testing.assert_array_equal(mine, vars(stores[1])[name], err_msg=name)


@pytest.mark.parametrize("train", ["fleet", "place", "trainer"])
def test_whoever_trains_it_takes_it_over(saved: str, train: str) -> None:
    model = small_model()
    fluid.io.load_persistables(fluid.Executor(), saved, model)
    loaded = auc(model)
    if train == "fleet":
        fleet = Fleet()
        fleet.init(Role())
        fleet.distributed_optimizer(sf.optim.Adam(1e-2))
        assert fleet.infer_from_dataset(model, Given(OTHERS))["auc"] == loaded
        result = fleet.train_from_dataset(model, Given(OTHERS), quiet=True)
    else:
        fluid.optimizer.Adam(1e-2).minimize(model.loss)
        trainer = sf.Trainer(fluid.CPUPlace() if train == "place" else sf.optim.Adam(1e-2), quiet=True)
        result = trainer.fit(model, Given(OTHERS))
    again = sf.Trainer(sf.optim.Adam(1e-2), quiet=True)
    again.load(other := small_model(), saved)
    assert result.train == again.fit(other, Given(OTHERS)).train


def test_in_a_job_training_is_refused(saved: str) -> None:
    model = small_model()
    fluid.io.load_persistables(fluid.Executor(), saved, model)
    alone = auc(model)
    fleet, exe = Fleet(), fluid.Executor()
    said = (
        r"call load_persistables after optimizer\.minimize\(…\) and fleet\.init_worker\(\).*fleet\.init_server\(path\)"
    )
    with servers() as job:
        job.start(1)
        fleet.init(Role.worker(0, 1, job.endpoints))
        fleet.distributed_optimizer(sf.optim.Adam(1e-2), DistributedStrategy("sync")).minimize(model.loss)
        fleet.init_worker()
        try:
            assert auc(model, exe) == alone, "each process may score it by itself"
            for use in (fleet.infer_from_dataset, exe.train_from_dataset):
                with pytest.raises(ConfigError, match=said):
                    use(model, Given(DATA))
        finally:
            fleet.stop_worker()


def test_a_checkpoint_of_another_optimizer_is_refused_as_after_minimize(saved: str) -> None:
    model = small_model()
    fluid.io.load_persistables(fluid.Executor(), saved, model)
    fluid.optimizer.Adagrad(1e-2).minimize(model.loss)
    with pytest.raises(sf.SparseFleetError, match="values_only=True"):
        fluid.Executor().train_from_dataset(model, Given(DATA), quiet=True)


def test_a_second_model_leaves_the_one_in_training_alone(saved: str, tmp_path: Path) -> None:
    def trained(*, beside: bool) -> list[object]:
        PROCESS_ROLE.forget()
        model, exe, scores = small_model(), fluid.Executor(), []
        fluid.optimizer.Adam(1e-2).minimize(model.loss)
        for _ in range(2):
            exe.train_from_dataset(model, Given(OTHERS), quiet=True)
            scores.append(auc(model, exe))
            if beside:
                fluid.io.load_persistables(exe, saved, other := small_model(seed=7))
                assert auc(other, exe) == auc(other) == alone
                assert auc(fluid.default_main_program(), exe) == scores[-1]
        fluid.io.save_persistables(exe, tmp_path / str(beside))
        scores.append(auc(model))
        return [*scores, sf.Checkpoint.open(tmp_path / str(beside)).manifest.step]

    again = sf.Trainer()
    again.load(scored := small_model(), saved, values_only=True)
    alone = again.evaluate(scored, Given(OTHERS))["auc"]
    assert trained(beside=True) == trained(beside=False)


def test_each_of_two_loaded_models_has_its_own_rows(saved: str, tmp_path: Path) -> None:
    one, exe = small_model(), fluid.Executor()
    fluid.io.load_persistables(exe, saved, one)
    first = auc(one, exe)
    fluid.optimizer.Adam(1e-2).minimize(one.loss)
    exe.train_from_dataset(one, Given(OTHERS), quiet=True)
    fluid.io.save_persistables(exe, tmp_path / "later")
    later = auc(one, exe)
    a, b = small_model(), small_model()
    fluid.io.load_persistables(exe, saved, a)
    fluid.io.load_persistables(exe, tmp_path / "later", b)
    assert (auc(a, exe), auc(b, exe), auc(one, exe)) == (first, later, later)
    fluid.io.load_persistables(exe, saved, one)
    assert auc(one) == first, "the one in training goes on from there"
    with pytest.raises(ConfigError, match=r"this trainer trains another model.*sf\.Trainer\(optimizer\) to train it"):
        exe.train_from_dataset(a, Given(DATA), quiet=True)


def test_a_trainer_loads_into_the_model_in_training_alone(saved: str) -> None:
    model, trainer = small_model(), sf.Trainer(sf.optim.Adam(1e-2), quiet=True)
    trainer.load(small_model(), saved)
    trainer.fit(model, Given(DATA))
    before = trainer.evaluate(model, Given(OTHERS))
    for load in (trainer.load, trainer.restore):
        with pytest.raises(ConfigError, match=r"load .*saved: this trainer trains another model, and would go on"):
            load(small_model(), saved)
    assert trainer.evaluate(model, Given(OTHERS)) == before
    trainer.load(model, saved)
    assert trainer.evaluate(model, Given(OTHERS)) != before


def test_copies_of_a_loaded_model_are_plain_models(saved: str) -> None:
    model = small_model()
    fluid.io.load_persistables(fluid.Executor(), saved, model)
    for twin in (copy.deepcopy(model), copy.copy(model), pickle.loads(pickle.dumps(model))):  # noqa: S301
        with pytest.raises(ConfigError, match="there is no optimizer yet"):
            auc(twin)
        for name, value in model.state_dict().items():
            np.testing.assert_array_equal(value, twin.state_dict()[name])


def test_a_model_that_nobody_has_any_more_takes_its_rows_along(saved: str) -> None:
    model = small_model()
    fluid.io.load_persistables(fluid.Executor(), saved, model)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
