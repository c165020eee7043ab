"""A checkpoint of two servers loads on any number of them, and in one process; training goes on from it."""

from __future__ import annotations

import numpy as np
import pytest
from small_jobs import Given, batches, cluster, in_threads, local_parameters, readers, small_model, train_local

from sparsefleet import optim
from sparsefleet.checkpoint import Checkpoint
from sparsefleet.export import Bundle
from sparsefleet.fleet import DistributedStrategy
from sparsefleet.fleet.serving_model import save_bundle
from sparsefleet.serving import Predictor
from sparsefleet.store import LocalStore
from sparsefleet.train import FetchHandler, SavePolicy, Trainer

RULE = optim.Adam(1e-3)
SYNC, ASYNC = DistributedStrategy(mode="sync"), DistributedStrategy(mode="async")
SHARES = [batches(15, seed=1), batches(15, seed=2)]
TEST = batches(5, seed=9, vocabulary=260)  # some keys were never trained


def predictions(trainer, model):
    return np.concatenate([scores for _, scores in trainer.predict(model, Given(TEST))])


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A checkpoint of two servers, what the model predicted there, and all parameters."""
    path = tmp_path_factory.mktemp("saved") / "model"
    with cluster(2) as fleet:
        first, _ = fleet.train(readers(SHARES), RULE, SYNC)
        first.trainer.save(str(path))
        return str(path), predictions(first.trainer, first.model), fleet.parameters()


def test_each_server_wrote_its_own_rows(saved):
    files = [entry.path for entry in Checkpoint.open(saved[0]).manifest.files]
    assert len([name for name in files if name.endswith(".parquet")]) == 2


@pytest.mark.parametrize("servers", [1, 2, 3])
@pytest.mark.parametrize("how", ["load", "start from"])
def test_predictions_on_other_numbers_of_servers(saved, servers, how):
    path, wanted, parameters = saved
    with cluster(servers, load_from=path if how == "start from" else None) as fleet:
        trainer, model = Trainer(fleet.job(RULE, ASYNC, 0, 1)), small_model(seed=5)
        if how == "load":
            trainer.load(model, path)
        np.testing.assert_array_equal(predictions(trainer, model), wanted)
        fleet.parameters().assert_close(parameters, 0.0)


def test_predictions_in_one_process(saved):
    path, wanted, parameters = saved
    store = LocalStore()
    trainer, model = Trainer(RULE, store=store), small_model(seed=5)
    trainer.load(model, path)
    np.testing.assert_array_equal(predictions(trainer, model), wanted)
    local_parameters(store).assert_close(parameters, 0.0)


@pytest.mark.parametrize("servers", [1, 3])
def test_training_goes_on_with_new_data_and_new_features(saved, servers):
    """Incremental training: servers start from the checkpoint; the result is that of one process that loads it."""
    path, _, parameters = saved
    news = batches(20, seed=20, first_key=150)  # 150-199 are known, 200-349 are new
    store = LocalStore()
    trainer, model = Trainer(RULE, store=store), small_model(seed=5)
    trainer.load(model, path)
    trainer.fit(model, Given(news))
    with cluster(servers, load_from=path) as fleet:
        fleet.train([Given(news)], RULE, SYNC)
        after = fleet.parameters()
    after.assert_close(local_parameters(store))
    assert len(after.keys) == len(parameters.keys) + 150
    assert after.step == parameters.step + 20


def test_sync_resumed_from_a_checkpoint_equals_one_that_never_stopped(tmp_path):
    one, store = train_local(Given([b for _ in range(2) for b in SHARES[0]]), RULE)
    with cluster(2) as fleet:
        fleet.train([Given(SHARES[0])], RULE, SYNC, save=SavePolicy(str(tmp_path)))
    with cluster(3) as fleet:
        (outcome,) = fleet.train([Given(SHARES[0])], RULE, SYNC, epochs=2, resume=str(tmp_path))
        fleet.parameters().assert_close(local_parameters(store))
    assert outcome.result.steps == one.result.steps == 30


@pytest.mark.parametrize("mode", ["sync", "half_async", "async"])
def test_a_save_while_others_train_is_of_one_moment(tmp_path, mode):
    """Pushes go on; the checkpoint's tables and blocks on all servers are at the same step."""

    class SaveOften(FetchHandler):
        def handler(self, fetched):
            second = int(fetched[0]) // 10
            trainers[1].save(str(tmp_path / str(second)))

    with cluster(3) as fleet:
        jobs = [fleet.job(RULE, DistributedStrategy(mode=mode), worker, 2) for worker in range(2)]
        trainers, models = [Trainer(job, threads=2) for job in jobs], [small_model() for _ in jobs]
        fetch = [[], [SaveOften(["step"], period_batches=10)]]
        in_threads(
            [lambda w=w: trainers[w].fit(models[w], Given(batches(40, seed=w)), fetch=fetch[w]) for w in range(2)]
        )
    manifests = [Checkpoint.open(tmp_path / str(number)).manifest for number in (1, 2, 3, 4)]
    steps = [[info.step for info in (*manifest.tables, *manifest.blocks)] for manifest in manifests]
    assert all(len(set(each)) == 1 for each in steps)
    assert [each[0] for each in steps] == sorted(each[0] for each in steps)
    assert all(manifest.extra["training"]["trainers"].keys() == {"0", "1"} for manifest in manifests)


def test_a_bundle_of_a_running_job_is_what_its_servers_hold(tmp_path):
    with cluster(2) as fleet:
        first, _ = fleet.train(readers(SHARES), RULE, SYNC)
        save_bundle(first.trainer, str(tmp_path / "bundle"), rows="float32", min_seen=0, name="v1")
        wanted = predictions(first.trainer, first.model)
    predictor = Predictor(tmp_path / "bundle")
    np.testing.assert_allclose(np.concatenate([predictor.predict_batch(batch) for batch in TEST]), wanted, atol=1e-6)
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


@pytest.mark.slow
def test_a_bundle_saved_while_others_train_opens_and_scores(tmp_path):
    class SaveBundles(FetchHandler):
        def handler(self, fetched):
            path = str(tmp_path / f"v{int(fetched[0]) // 10}")
            save_bundle(trainers[1], path, rows="float32", min_seen=0, name=None)

    with cluster(3) as fleet:
        trainers = [Trainer(fleet.job(RULE, ASYNC, worker, 2)) for worker in range(2)]
        models = [small_model() for _ in trainers]
        fetch = [[], [SaveBundles(["step"], period_batches=10)]]
        in_threads(
            [lambda w=w: trainers[w].fit(models[w], Given(batches(30, seed=w)), fetch=fetch[w]) for w in range(2)]
        )
    for number in (1, 2, 3):
        bundle = Bundle.open(tmp_path / f"v{number}", full=True)
        assert bundle.manifest.checkpoint.step >= 10 * number
        assert np.isfinite(Predictor(bundle).predict_batch(TEST[0])).all()
