"""Metrics over all trainers are exactly those of one process on all rows."""

from __future__ import annotations

import pytest
from small_jobs import Given, batches, cluster, in_threads, readers, small_model, train_local

from sparsefleet import optim
from sparsefleet.fleet import DistributedStrategy
from sparsefleet.train import Trainer

RULE = optim.Adam(1e-2)


@pytest.mark.parametrize("threads", [1, 2])
def test_evaluation_by_three_trainers(tmp_path, threads):
    trained, _ = train_local(Given(batches(30, seed=1)), RULE)
    trained.trainer.save(str(tmp_path / "model"))
    shares = [batches(count, rows=17, seed=count, vocabulary=300) for count in (1, 5, 12)]
    wanted = trained.trainer.evaluate(trained.model, Given([batch for share in shares for batch in share]))
    with cluster(2, load_from=str(tmp_path / "model")) as fleet:
        jobs = [fleet.job(RULE, DistributedStrategy(mode="async"), worker, 3) for worker in range(3)]
        models = [small_model(seed=7) for _ in jobs]
        values = {}

        def score(worker):
            trainer = Trainer(jobs[worker], threads=threads)
            values[worker] = trainer.evaluate_everywhere(models[worker], Given(shares[worker]))

        in_threads([lambda worker=worker: score(worker) for worker in range(3)])
    for worker in range(3):
        assert values[worker]["auc"] == wanted["auc"]
        assert values[worker] == wanted


@pytest.mark.parametrize("mode", ["sync", "half_async", "async", "geo"])
def test_all_trainers_score_the_same_model_after_an_epoch(mode):
    """Whoever is done first must not score with dense values from before the others' last steps."""
    shares, tests = [batches(count, seed=count) for count in (4, 40)], [batches(3, seed=77), batches(2, seed=78)]
    with cluster(2) as fleet:
        outcomes = fleet.train(readers(shares), optim.SGD(1e-2), DistributedStrategy(mode=mode), test=readers(tests))
        # A model that takes all its parameters from the servers.
        scorer = Trainer(optim.SGD(1e-2), store=outcomes[0].trainer.store)
        there = scorer.evaluate(small_model(seed=7), Given([*tests[0], *tests[1]]))
    for outcome in outcomes:
        assert outcome.result.test == pytest.approx(there, rel=1e-5)
        assert outcome.result.train == outcomes[0].result.train
