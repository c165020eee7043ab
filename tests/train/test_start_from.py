"""fit(start_from=…): a new run that begins with what fits of an old one."""

from __future__ import annotations

import json
import logging
from dataclasses import replace

import numpy as np
import pytest
from fit_jobs import BATCH, TABLE, assert_same_bits, every, network, rows_of, table_rows, trainer
from small_jobs import batches, cluster, readers

from sparsefleet.checkpoint import Checkpoint, latest
from sparsefleet.core.errors import CheckpointError, ConfigError
from sparsefleet.core.schema import CRITEO, CsvDialect, DenseFeature, Schema, Slot
from sparsefleet.core.schema.kept_values import kept_text
from sparsefleet.data.open import open_reader
from sparsefleet.fleet import DistributedStrategy
from sparsefleet.models import CTRDNN
from sparsefleet.optim import SGD, Adam
from sparsefleet.optim.schedule import OnPlateau
from sparsefleet.train import SavePolicy, Validation
from sparsefleet.train.given_data import differing_keys, differing_schemas


@pytest.fixture(scope="module")
def old(clicks, tmp_path_factory):
    folder = tmp_path_factory.mktemp("old")
    trainer().fit(network(), rows_of(clicks), 2, save=SavePolicy(str(folder)))
    return folder


def test_new_data_all_epochs_and_what_was_learnt(clicks, old, tmp_path):
    job = trainer()
    result = job.fit(
        network(7), rows_of(clicks, part="test"), 2, start_from=str(old), save=SavePolicy(str(tmp_path / "new"))
    )
    assert (result.rows, result.steps) == (3000, 30)
    by_hand, model = trainer(), network(8)
    by_hand.load(model, str(old))
    by_hand.fit(model, rows_of(clicks, part="test"), 2)
    assert_same_bits(job, by_hand)
    assert latest(tmp_path / "new").name == "step-00000030"
    before = {key for rows in Checkpoint.open(latest(old)).sparse_rows(TABLE) for key in rows.keys.tolist()}
    assert before < table_rows(job.store).keys(), "rows of new values, besides those of before"


def test_in_a_later_call_it_trains_all_epochs_and_no_more(clicks, old):
    job = trainer()
    job.fit(network(), rows_of(clicks, part="test"), 1)
    result = job.fit(network(7), rows_of(clicks, part="test"), 2, start_from=str(old))
    assert (result.rows, result.steps) == (3000, 30)


def test_with_a_fresh_optimizer(clicks, old):
    job = trainer()
    job.fit(network(7), rows_of(clicks, part="test"), start_from=str(old), fresh_optimizer=True)
    by_hand, model = trainer(), network(8)
    by_hand.load(model, str(old), values_only=True)
    by_hand.fit(model, rows_of(clicks, part="test"))
    assert_same_bits(job, by_hand)


def test_with_another_optimizer_a_slot_less_and_another_layer(clicks, old, caplog):
    caplog.set_level(logging.WARNING)
    model = CTRDNN(CRITEO.slot_names[:-1], 13, network(hidden=(16, 8)).config)
    trainer(rule=SGD(0.001)).fit(model, rows_of(clicks, part="test"), start_from=str(old))
    said = caplog.text
    assert f"taken: table '{TABLE}' (" in said
    assert "parameter tower.layers.0.weight ([16, 117]; the model's is [16, 113])" in said
    assert "starts afresh: the optimizer of table" in said


def test_started_again_it_goes_on_instead(clicks, old, tmp_path):
    """The same call once more, after the run was stopped: not from the old run once again."""

    def run(epochs):
        job = trainer()
        done = job.fit(
            network(), rows_of(clicks), epochs, start_from=str(old), resume="auto", save=every(tmp_path / "new")
        )
        return job, done

    whole, _ = run(1)
    again, result = run(2)
    assert result.steps == 120
    assert result.rows == 6000
    third, nothing = run(2)
    assert nothing.rows == 0
    assert_same_bits(again, third)
    assert whole is not again


def test_what_another_run_has_lowered_is_its_own(clicks, tmp_path):
    rule = Adam(0.01, schedule=OnPlateau())
    job = trainer(rule=rule)
    lower = Validation("auc", plateau_factor=0.5, min_delta=1.0)  # nothing is ever better by as much
    job.fit(network(), rows_of(clicks), 3, valid=rows_of(clicks, part="test"), validation=lower, save=every(tmp_path))
    (table,) = job.store.sparse_tables().values()
    assert table.spec.rule.schedule.lowered_to == 0.25
    new = trainer(rule=rule)
    new.fit(network(), rows_of(clicks, part="test"), start_from=str(latest(tmp_path)))
    (table,) = new.store.sparse_tables().values()
    assert table.spec.rule.schedule.drops == ()
    assert new.store.dense_tables()["dense"].rule.schedule.drops == ()


def test_what_does_not_go_together(clicks, old, tmp_path):
    def fit(**settings):
        trainer().fit(network(), rows_of(clicks), **settings)

    with pytest.raises(ConfigError, match="give one of them"):
        fit(resume=str(old), start_from=str(old))
    with pytest.raises(ConfigError, match="fresh_optimizer=True is for start_from"):
        fit(fresh_optimizer=True)
    with pytest.raises(ConfigError, match="save to another folder"):
        fit(start_from=str(old), save=SavePolicy(f"{old}/."))
    with pytest.raises(ConfigError, match="save to another folder"):
        fit(start_from=str(latest(old)), save=SavePolicy(str(old)))
    other = open_reader(clicks / "train", CRITEO.folded(0), batch_size=BATCH)
    with pytest.raises(CheckpointError, match=r"other keys.*sparse_feature_dim is 1000001 there, 0 here"):
        trainer().fit(network(), other, start_from=str(old))


def test_schemas_that_differ():
    then = {
        "hash_seed": 1,
        "slots": [{"name": "a", "hash_prefix": "1"}, {"name": "b"}],
        "dense": [{"name": "n", "diff": 1}],
    }
    assert differing_keys(then, {**then, "slots": [*then["slots"], {"name": "c"}]}) == ([], [])
    now = {"hash_seed": 2, "slots": [{"name": "a", "hash_prefix": "2"}], "dense": [{"name": "n", "diff": 2}]}
    problems, hints = differing_keys(then, now)
    assert problems == ["hash_seed is 1 there, 2 here", "hash_prefix of slot 'a' is '1' there, '2' here"]
    assert hints == ["dense features are normalised otherwise here: n"]


def test_settings_that_only_one_schema_gives():
    """A document leaves out what has its default: where one of two is silent, they may differ all the same."""

    def schema(slot=None, number=None):
        document = Schema((DenseFeature("n", **(number or {})),), (Slot("s", **(slot or {})),)).to_dict()
        return json.loads(json.dumps(document))

    for setting in (
        {"lower": True},
        {"length": 3},
        {"split": "|"},
        {"keys": True},
        {"derive": "hour"},
        {"buckets": (1.0,)},
        {"buckets": (), "quantiles": 2},
    ):
        for one, other in ((schema(), schema(setting)), (schema(setting), schema())):
            problems, hints = differing_keys(one, other)
            assert [problem.split(" is ")[0] for problem in problems] == [f"{next(iter(setting))} of slot 's'"]
            assert hints == []
    for setting in ({"column": "c"}, {"first": 2}, {"min_count": 2}, {"missing": "x"}):
        assert differing_keys(schema(), schema(setting)) == ([], [])
    for setting in ({"function": "log1p"}, {"clip": (0.0, 1.0)}, {"missing": 0.0}):
        said = ["dense features are normalised otherwise here: n"]
        assert differing_keys(schema(), schema(number=setting)) == ([], said)


def test_dense_features_in_other_places():
    """Weights know them by their place: where layers keep their shape, what stood there has to stand there."""

    def schema(*names):
        return Schema(tuple(map(DenseFeature, names)), (Slot("s"),)).to_dict()

    turned = "dense features are in another order: 'a' is number 1 there, 2 here"
    assert differing_keys(schema("a", "b"), schema("b", "a")) == ([turned], [])
    instead = "dense features stand in the place of others: dense feature number 2 is 'b' there, 'c' here"
    assert differing_keys(schema("a", "b"), schema("a", "c")) == ([], [instead])
    assert differing_keys(schema("a", "b"), schema("c", "a", "b")) == ([], []), "another layer, which begins afresh"
    assert differing_keys(schema("a", "b"), schema("a")) == ([], [])


def test_other_kept_values_are_told():
    def schema(least, *kept, more=()):
        slot = Slot("s", min_count=least)
        hashes = np.array(kept, np.uint64)
        slots = (replace(slot, kept=kept_text(slot, 0, hashes)) if kept else Slot("s"), *more)
        return json.loads(json.dumps(Schema((), slots).to_dict()))

    then = schema(2, 1, 2, 3)
    assert differing_keys(then, then) == ([], [])
    problems, (hint,) = differing_keys(then, schema(2, 3, 4, more=(Slot("t"),)))
    assert not problems
    assert "other values are kept (min_count) of slot s (2 of 3 are rare here, 1 new): rows of values that" in hint
    assert "`sparsefleet data prepare --keep-constants` with the schema of before keeps its values" in hint
    assert "slot s (rare values are told apart here)" in differing_keys(then, schema(None))[1][0]
    assert "slot s (only here are values rare)" in differing_keys(schema(None), then)[1][0]
    other = json.loads(json.dumps(Schema((), (Slot("t"),)).to_dict()))
    assert differing_keys(then, other) == ([], [])


def test_other_kept_values_are_in_the_log(clicks, tmp_path, caplog):
    def samples(*kept):
        slot = replace(CRITEO.slots[0], min_count=2)
        slot = replace(slot, kept=kept_text(slot, 0, np.array(kept, np.uint64)))
        lines = (clicks / "train" / "part-0").read_text().split("\n")[:200]
        rows = "\n".join(",".join(line.split("\t")) for line in lines)
        (tmp_path / "rows.csv").write_text(rows + "\n")
        columns = ("label", *CRITEO.dense_names, *CRITEO.slot_names)
        dialect = CsvDialect(",", False, columns)
        return open_reader(tmp_path / "rows.csv", replace(CRITEO, slots=(slot, *CRITEO.slots[1:]), csv=dialect))

    trainer().fit(network(), samples(1, 2, 3), save=SavePolicy(str(tmp_path / "old")))
    caplog.set_level(logging.WARNING)
    trainer().fit(network(), samples(3, 4), start_from=str(tmp_path / "old"))
    assert "of slot C1 (2 of 3 are rare here, 1 new)" in caplog.text


def test_how_numbers_were_found_is_no_difference():
    def schema(quantiles, measure, bounds=(1.0, 2.0)):
        numbers = DenseFeature("n", 1.0, 2.0, measure=measure)
        document = Schema((numbers,), (Slot("s", buckets=bounds, quantiles=quantiles), Slot("t"))).to_dict()
        return json.loads(json.dumps(document))

    for typed in (schema(None, None), schema(5, "standard")):
        assert differing_keys(schema(3, "min-max"), typed) == ([], [])
        assert differing_schemas(schema(3, "min-max"), typed) == []
    others = schema(3, "min-max", bounds=(1.0, 3.0))
    said = "buckets of slot 's' is [1.0, 2.0] there, [1.0, 3.0] here"
    assert differing_keys(schema(3, "min-max"), others) == ([said], [])
    assert differing_schemas(schema(3, "min-max"), others) == ["buckets of 's' is [1.0, 2.0] there, [1.0, 3.0] here"]
    fewer = {**others, "slots": others["slots"][:1], "hash_seed": 5}
    assert differing_schemas(others, fewer) == ["slots has 't' only there", "hash_seed is 0 there, 5 here"]
    turned = {**others, "slots": others["slots"][::-1]}
    assert differing_schemas(others, turned) == ["slots are in another order"]


@pytest.mark.parametrize("mode", ["sync", "geo"])
def test_on_servers(tmp_path, mode):
    given, strategy = batches(4), DistributedStrategy(mode=mode)
    with cluster(2) as made:
        made.train(readers([given[:2], given[2:]]), SGD(0.1), strategy, save=SavePolicy(str(tmp_path / "old")))
        before = made.parameters()
    with cluster(2) as made:
        done = made.train(
            readers([given[:2], given[2:]]),
            SGD(0.0),
            strategy,
            start_from=str(tmp_path / "old"),
            save=SavePolicy(str(tmp_path / "new")),
            resume="auto",
        )
        after = made.parameters()
    assert [outcome.result.steps for outcome in done] == [2, 2]
    np.testing.assert_array_equal(after.values, before.values)
    np.testing.assert_array_equal(after.dense, before.dense)
