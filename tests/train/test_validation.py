"""Validation data: the best checkpoint, an early end, lower learning rates; and all of it over a resume."""

from __future__ import annotations

import math

import pytest
from fit_jobs import assert_same_bits, assert_same_checkpoints, every, network, rows_of, trainer
from small_jobs import batches, cluster, readers

from sparsefleet.checkpoint import Checkpoint, best, chosen, latest
from sparsefleet.core.errors import CheckpointError, ConfigError
from sparsefleet.fleet import DistributedStrategy
from sparsefleet.metrics import Calibration, ClickMetrics, GroupAUC, LabelMetrics, Metric, MetricSet, Segments
from sparsefleet.optim import SGD, Adam
from sparsefleet.optim.schedule import Constant, ExponentialDecay, OnPlateau, from_dict
from sparsefleet.train import FetchHandler, SavePolicy, Validation
from sparsefleet.train.validation import Standing

STEPS = 60
"""Of an epoch."""


class Script(Metric):
    """Says what each evaluation is to come to, whatever the model does: the nth one the nth value."""

    name = "script"
    in_training = False
    more_is_better = ("script",)
    values_to_come: list[float] = []  # noqa: RUF012  (of all copies)

    def __init__(self, value=math.nan):
        self.value = value

    def update(self, batch, outputs):
        if math.isnan(self.value):
            self.value = self.values_to_come.pop(0)

    def merge(self, other):
        if math.isnan(self.value):
            self.value = other.value

    def to_dict(self):
        return {"value": None if math.isnan(self.value) else self.value}

    @classmethod
    def from_dict(cls, data):
        return cls(math.nan if data["value"] is None else data["value"])

    def values(self):
        return {"script": self.value}


def scripted(*values, rule=None):
    Script.values_to_come = list(values)
    return trainer(rule=rule, metrics=[Script()])


def fit(job, clicks, epochs=9, model=None, **settings):
    policy = settings.pop("validation", Validation("script", patience=2))
    valid = rows_of(clicks, part="test")
    return job.fit(model or network(), rows_of(clicks), epochs, valid=valid, validation=policy, **settings)


def test_it_stops_when_nothing_gets_better_and_marks_the_best(clicks, tmp_path):
    policy = SavePolicy(str(tmp_path), keep=1)
    result = fit(scripted(0.7, 0.8, 0.6, 0.75, 0.9), clicks, save=policy, test=None)
    assert result.steps == 4 * STEPS
    assert result.stopped == "script has not got better for 2 epoch(s); the best is 0.80000 after epoch 2"
    assert (result.best["epoch"], result.best["step"], result.best["value"]) == (2, 2 * STEPS, 0.8)
    assert result.best["valid"]["script"] == 0.8
    assert result.valid["script"] == 0.75
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best", "latest", "step-00000120", "step-00000240"]
    assert (tmp_path / "best").read_text() == "step-00000120\n"
    assert best(tmp_path).name == "step-00000120"
    assert latest(tmp_path).name == "step-00000240"
    assert chosen(tmp_path)[0].name == "step-00000120"
    assert chosen(tmp_path, "latest")[0].name == "step-00000240"
    assert chosen(tmp_path, "step-00000240")[0].name == "step-00000240"
    with pytest.raises(CheckpointError, match="choose latest, best or a step's"):
        chosen(tmp_path, "worst")


def test_without_validation_data_none_is_best(clicks, tmp_path):
    trainer().fit(network(), rows_of(clicks), save=SavePolicy(str(tmp_path)))
    assert best(tmp_path) is None
    location, why = chosen(tmp_path)
    assert (location.name, why) == ("step-00000060", "the newest one; none is marked best")
    with pytest.raises(CheckpointError, match="has no best checkpoint: its run had no validation data"):
        chosen(tmp_path, "best")


def test_the_best_one_is_what_it_was_when_it_was_best(clicks, tmp_path):
    whole = trainer()
    whole.fit(network(), rows_of(clicks), 1)
    fit(scripted(0.9, 0.8, 0.7), clicks, save=SavePolicy(str(tmp_path / "run"), keep=1))
    again, model = trainer(), network(1)
    again.restore(model, str(best(tmp_path / "run")))
    assert_same_bits(whole, again)


def test_the_learning_rate_drops_on_a_plateau(clicks):
    policy = Validation("script", plateau_factor=0.1, plateau_patience=2, min_factor=0.005)
    rule = Adam(0.01, schedule=OnPlateau(ExponentialDecay(100, 0.5)))
    job = scripted(0.8, 0.7, 0.7, 0.7, 0.7, 0.7, 0.7, rule=rule)
    fit(job, clicks, 7, validation=policy)
    (table,) = job.store.sparse_tables().values()
    drops = ((3 * STEPS, 0.1), (5 * STEPS, pytest.approx(0.01)), (7 * STEPS, 0.005))
    assert table.spec.rule.schedule.drops == drops
    assert job.store.dense_tables()["dense"].rule.schedule.drops == drops
    assert table.spec.rule.rate(3 * STEPS) == Adam(0.01, schedule=ExponentialDecay(100, 0.5)).rate(3 * STEPS)
    lowered = 0.1 * Adam(0.01, schedule=ExponentialDecay(100, 0.5)).rate(3 * STEPS + 1)
    assert table.spec.rule.rate(3 * STEPS + 1) == pytest.approx(lowered, rel=1e-12)


def test_a_rate_that_cannot_be_lowered_is_refused(clicks):
    with pytest.raises(ConfigError, match=r"Adam\(0.01, schedule=optim.schedule.OnPlateau\(\)\)"):
        fit(scripted(), clicks, validation=Validation("script", plateau_factor=0.1))


def stop_at(step):
    class Stop(FetchHandler):
        def handler(self, fetched):
            raise KeyboardInterrupt

    return Stop(["step"], period_batches=step)


@pytest.mark.parametrize("stop", [STEPS + 30, 2 * STEPS + 5])
def test_resumed_anywhere_it_decides_as_if_never_stopped(clicks, tmp_path, stop):
    """Rates, counters of patience, the best: the same bits and the same end."""
    policy, rule = Validation("script", patience=3, plateau_factor=0.1), Adam(0.01, schedule=OnPlateau())
    values = (0.8, 0.7, 0.75, 0.7, 0.9)
    whole = scripted(*values, rule=rule)
    done = fit(whole, clicks, validation=policy, save=every(tmp_path / "whole"))
    assert done.steps == 4 * STEPS
    first = scripted(*values, rule=rule)
    with pytest.raises(KeyboardInterrupt):
        fit(first, clicks, validation=policy, save=every(tmp_path / "cut"), fetch=[stop_at(stop)])
    again = trainer(rule=rule, metrics=[Script()])
    result = fit(again, clicks, model=network(1), validation=policy, save=every(tmp_path / "cut"), resume="auto")
    assert_same_bits(whole, again)
    assert_same_checkpoints(latest(tmp_path / "whole"), latest(tmp_path / "cut"))
    assert result.stopped == done.stopped
    assert {name: result.best[name] for name in ("epoch", "step", "value")} == {"epoch": 1, "step": 60, "value": 0.8}
    assert best(tmp_path / "cut").name == "step-00000060"
    # Once more: nothing is left, and nothing is trained.
    third = trainer(rule=rule, metrics=[Script()])
    after = fit(third, clicks, validation=policy, save=every(tmp_path / "cut"), resume="auto")
    assert (after.rows, after.stopped) == (0, done.stopped)


def test_an_epoch_that_was_not_judged_before_the_end_is_judged_first(clicks, tmp_path):
    """Killed while it scored the validation data: its last checkpoint is of the epoch's last batch."""
    policy = every(tmp_path, STEPS, every_epoch=False)
    trainer().fit(network(), rows_of(clicks), 1, save=policy)
    result = fit(scripted(0.5, 0.4, 0.3), clicks, save=policy, resume="auto")
    assert result.best["epoch"] == 1
    assert result.steps == 3 * STEPS
    assert best(tmp_path).name == "step-00000060"


def test_a_second_call_of_fit_judges_its_own_epochs_only(clicks):
    job, model = scripted(0.9, 0.5, 0.6), network()
    fit(job, clicks, 1, model)
    again = fit(job, clicks, 2, model)
    assert (again.best["epoch"], again.best["value"], again.steps) == (3, 0.6, 3 * STEPS)
    assert Script.values_to_come == []


def test_real_metrics(clicks, tmp_path):
    policy = Validation("logloss", patience=1)
    valid, test = rows_of(clicks, part="test"), rows_of(clicks, part="test")
    result = trainer().fit(network(), rows_of(clicks), 3, valid=valid, validation=policy, test=test)
    assert policy.lower
    assert result.best["valid"] == result.best["test"]
    assert result.best["value"] == result.best["valid"]["logloss"]
    job = trainer()
    with pytest.raises(ConfigError, match="no metric 'acu' to go by; it has auc, logloss"):
        job.fit(network(), rows_of(clicks), valid=rows_of(clicks, part="test"), validation=Validation("acu"))
    tables = job.store.stats()["tables"].values()
    assert not any(table["rows"] for table in tables), "it is refused before an epoch is trained for it"
    with pytest.raises(ConfigError, match="give valid="):
        trainer().fit(network(), rows_of(clicks), validation=Validation())


def test_a_metric_that_nobody_has_is_refused_beside_metrics_of_ones_own(clicks):
    job = scripted(0.5)
    with pytest.raises(ConfigError, match=r"no metric 'scirpt' to go by; it has auc, .*, script "):
        fit(job, clicks, validation=Validation("scirpt"))
    assert not any(table["rows"] for table in job.store.stats()["tables"].values()), "before an epoch is trained"


def test_a_metric_that_names_its_values_late_is_looked_for_after_the_epoch(clicks):
    class Late(Script):
        more_is_better = ("late",)

        def values(self):
            return {} if math.isnan(self.value) else {"late": self.value}

    Script.values_to_come = [0.5, 0.6]
    assert fit(trainer(metrics=[Late()]), clicks, 1, validation=Validation("late")).best["value"] == 0.5
    with pytest.raises(ConfigError, match=r"no metric 'laet' to go by; it has auc, .*, late "):
        fit(trainer(metrics=[Late()]), clicks, 1, validation=Validation("laet", lower_is_better=False))


@pytest.mark.parametrize("mode", ["sync", "async", "geo"])
def test_all_trainers_of_a_job_decide_alike(tmp_path, mode):
    """Two servers and two trainers: one best checkpoint, one end, one learning rate; and a resumed job has it again."""
    given, valid = batches(8), batches(2, seed=5)
    strategy = DistributedStrategy(mode=mode) if mode != "geo" else DistributedStrategy(mode=mode, k_steps=2)
    rule = SGD(0.0, schedule=OnPlateau())  # nothing ever changes: the first epoch stays the best

    def run(epochs, **settings):
        with cluster(2) as made:
            done = made.train(
                readers([given[:4], given[4:]]),
                rule,
                strategy,
                epochs=epochs,
                save=SavePolicy(str(tmp_path), keep=1),
                **settings,
            )
            tables = [t for s in made.servers for t in s.state.holdings.tables()]
            return [outcome.result for outcome in done], [t.spec.rule for t in tables]

    policy = Validation(patience=3, plateau_factor=0.5)
    shares = readers([valid[:1], valid[1:]])
    import small_jobs

    real = small_jobs.train_one

    def with_shares(trainer, reader, model, epochs, **settings):
        return real(trainer, reader, model, epochs, valid=shares[trainer.crew.index], **settings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(small_jobs, "train_one", with_shares)
        results, rules = run(9, validation=policy)
        assert {result.stopped for result in results} == {results[0].stopped}
        assert "has not got better for 3 epoch(s)" in results[0].stopped
        assert [result.best["epoch"] for result in results] == [1, 1]
        assert results[0].steps == 4 * 4
        found = Checkpoint.open(latest(tmp_path)).manifest
        assert found.extra["training"]["validation"]["rate_factor"] == 0.125
        assert best(tmp_path).name == "step-00000004"
        if mode != "geo":
            assert [factor for _, factor in rules[0].schedule.drops] == [0.5, 0.25, 0.125]
            _, resumed = run(9, validation=policy, resume=str(tmp_path))
            assert [rule.schedule.drops for rule in resumed] == [rule.schedule.drops for rule in rules]


def test_settings():
    for name, wrong in (("patience", 0), ("min_delta", -1.0), ("plateau_factor", 1.0), ("plateau_patience", 0)):
        with pytest.raises(ConfigError, match=name):
            Validation(**{name: wrong})
    assert Validation("mine", lower_is_better=True).better(1.0, 2.0)
    assert not Validation(min_delta=0.1).better(0.85, 0.8)


def test_which_way_is_better_the_metrics_say():
    own = (LabelMetrics("buy", 1), GroupAUC(), Calibration(2), Segments("C1"), Script())
    up = ("auc", "accuracy", "buy_auc", "buy_accuracy", "gauc", "segment_C1_auc", "script")
    down = ("logloss", "normalized_entropy", "buy_logloss", "buy_normalized_entropy", "calibration_error")
    for names, lower in ((up, False), (down, True)):
        for name in names:
            policy = Validation(name).decided(own)
            assert policy.lower is lower
            assert policy.better(1.0, 2.0) is lower
    neither = set(MetricSet(ClickMetrics(), own).values()) - {*up, *down}
    assert {"rows", "click_ratio", "buy_rows", "gauc_groups", "calibration_2", "segment_C1_values"} <= neither
    for name in neither:
        with pytest.raises(ConfigError, match=f"cannot go by '{name}': nothing .* better, or less. Choose auc, acc"):
            Validation(name).decided(own)
        assert Validation(name, lower_is_better=True).decided(own).lower, "somebody knows better"


def test_the_least_is_the_best_where_less_is_better(clicks):
    class Error(Script):
        more_is_better, less_is_better = (), ("script",)

    Script.values_to_come = [0.3, 0.1, 0.2]
    done = fit(trainer(metrics=[Error()]), clicks, 3)
    assert (done.best["epoch"], done.best["value"]) == (2, 0.1)


def test_a_metric_of_ones_own_has_to_say_its_way(clicks):
    class Silent(Script):
        more_is_better = ()

    job = trainer(metrics=[Silent()])
    with pytest.raises(ConfigError, match=r"cannot go by 'script': .* Validation\(metric=…, lower_is_better=False\)"):
        fit(job, clicks)
    assert not any(table["rows"] for table in job.store.stats()["tables"].values()), "before an epoch is trained"
    Script.values_to_come = [0.3, 0.1]
    assert fit(job, clicks, 2, validation=Validation("script", lower_is_better=True)).best["value"] == 0.1
    for wrong in ({"more_is_better": "script"}, {"less_is_better": ("script",)}):
        metric = Script()
        vars(metric).update(wrong)
        with pytest.raises(ConfigError, match="give lists of names of its values, each in one of them at most"):
            trainer(metrics=[metric]).fit(network(), rows_of(clicks))


def test_not_a_number_is_never_the_best():
    policy, standing = Validation(patience=2), Standing("auc")
    standing = standing.after(policy, math.nan, 1, 10)
    assert (standing.best, standing.not_better) == (None, 1)
    standing = standing.after(policy, 0.6, 2, 20).after(policy, math.nan, 3, 30)
    assert (standing.best, standing.best_epoch, standing.not_better) == (0.6, 2, 1)
    assert Standing.from_dict(standing.to_dict()) == standing
    with pytest.raises(CheckpointError, match="validation is damaged"):
        Standing.from_dict({"metric": 3})


def test_the_schedule():
    schedule = OnPlateau(Constant()).lowered(10, 0.5).lowered(20, 0.25)
    assert [schedule.factor(step) for step in (1, 10, 11, 20, 21, 99)] == [1, 1, 0.5, 0.5, 0.25, 0.25]
    assert from_dict(schedule.to_dict()).drops == schedule.drops
    assert schedule == OnPlateau()
    assert Adam(0.1, schedule=schedule) == Adam(0.1, schedule=OnPlateau())
    for drops in ([(1,)], [(5, 0.5), (1, 0.5)], [(1, 2.0)], 3):
        with pytest.raises(ConfigError, match="drops"):
            OnPlateau(drops=drops)
