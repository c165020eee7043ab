"""What a trainer asks of readers: the threads that the dataset was told, and samples read as the model knows them."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import sparsefleet as sf
from sparsefleet.core.errors import ConfigError, DataError
from sparsefleet.core.inputs import Inputs
from sparsefleet.core.schema.csv_dialect import CsvDialect
from sparsefleet.core.schema.kept_values import kept_text
from sparsefleet.train import given_data

GENERATOR = Path(__file__).parents[2] / "examples" / "criteo_generator.py"
INPUTS = [("dense_input", 13), *(f"C{n}" for n in range(1, 27)), "label"]


def piped(files: Path, threads: int | None = None, kind: str = "QueueDataset") -> sf.QueueDataset:
    made = sf.DatasetFactory().create_dataset(kind)
    made.set_use_var(INPUTS)
    made.set_pipe_command(f"head -200 | {sys.executable} {GENERATOR}")
    made.set_batch_size(50)
    made.set_filelist(sf.list_files(files))
    if threads is not None:
        made.set_thread(threads)
    return made


def small() -> sf.CTRDNN:
    torch.manual_seed(0)
    return sf.CTRDNN(config=sf.CTRDNNConfig(embedding_size=4, hidden=(8,)))


def test_set_thread_sets_the_threads(clicks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    dataset = piped(clicks / "train", threads=2)
    started = type(dataset).epoch
    monkeypatch.setattr(
        type(dataset), "epoch", lambda self, threads=None: (asked.append(threads), started(self, threads))[1]
    )
    trainer = sf.Trainer(sf.optim.Adam(1e-3))
    model = small()
    trainer.fit(model, dataset)
    assert asked == [2]
    assert trainer.config.threads == 2
    trainer.evaluate(model, piped(clicks / "test"))  # not told: as the training
    trainer.evaluate(model, piped(clicks / "test", threads=1))
    assert asked == [2, 2, 1]


def test_a_trainer_that_contradicts_it(clicks: Path) -> None:
    said = r"Trainer\(threads=3\), but the dataset says set_thread\(2\)"
    with pytest.raises(ConfigError, match=said):
        sf.Trainer(sf.optim.Adam(1e-3), threads=3).fit(small(), piped(clicks / "train", threads=2))
    with pytest.raises(ConfigError, match=said):
        sf.Trainer(sf.optim.Adam(1e-3), threads=3).evaluate(small(), piped(clicks / "test", threads=2))
    assert given_data.threads_for(piped(clicks / "test", threads=2), 2) == 2
    assert given_data.threads_for(piped(clicks / "test"), None) == 1
    assert given_data.threads_for(piped(clicks / "test"), 3) == 3


def test_samples_that_are_read_otherwise_are_refused(clicks: Path, tmp_path: Path) -> None:
    model, trainer = small(), sf.Trainer(sf.optim.Adam(1e-3))
    raw = sf.open_reader(clicks / "test", sf.CRITEO.folded(0))
    said = (
        r"was trained on what the pipe command 'head -200 .*; these samples would be read otherwise "
        r"\(slot C1, C2, C3 and 23 more: ready-made keys in training, values to hash here"
    )
    with pytest.raises(ConfigError, match="the model " + said):
        trainer.fit(model, piped(clicks / "train"), test=raw)  # before it trains
    trainer = sf.Trainer(sf.optim.Adam(1e-3))
    trainer.fit(model, piped(clicks / "train"), save=sf.SavePolicy(str(tmp_path / "run")))
    for use in (trainer.evaluate, trainer.fit, lambda *given: next(trainer.predict(*given))):
        with pytest.raises(ConfigError, match="the model " + said):
            use(model, raw)
    later = sf.Trainer()
    again, schema = sf.saved_model(tmp_path / "run")
    later.load(again, str(tmp_path / "run"))
    with pytest.raises(ConfigError, match=r"run/step-\d+ " + said):
        later.evaluate(again, sf.open_reader(clicks / "test", schema))
    with pytest.raises(ConfigError, match=r"open_reader\(…, same_inputs=True\)"):
        later.evaluate(again, sf.open_reader(clicks / "test", schema))
    assert later.evaluate(again, piped(clicks / "test")) == trainer.evaluate(model, piped(clicks / "test"))
    # The example generator hashes as Criteo's schema does: whoever knows that may say so.
    vouched = sf.open_reader(clicks / "test", sf.CRITEO, same_inputs=True)
    piped_auc = trainer.evaluate(model, _all_of(clicks / "test"))["auc"]
    assert later.evaluate(again, vouched)["auc"] == pytest.approx(piped_auc, abs=1e-6)


def _all_of(files: Path) -> sf.QueueDataset:
    made = piped(files)
    made.set_pipe_command(f"{sys.executable} {GENERATOR}")
    return made


def test_what_readers_say_of_their_samples(clicks: Path) -> None:
    raw = sf.open_reader(clicks / "test", sf.CRITEO).inputs()
    assert (raw.format, set(raw.slots.values()), set(raw.dense.values())) == ("criteo", {"raw"}, {"raw"})
    ready = piped(clicks / "test").inputs()
    assert (ready.format, set(ready.slots.values()), set(ready.dense.values())) == ("pipe", {"ready"}, {"ready"})
    assert ready.layout[0] == ("dense_input", "dense")
    assert ready.pipe_command.startswith("head -200")
    assert Inputs.from_dict(ready.to_dict(), "here") == ready
    through = sf.open_reader(clicks / "test", sf.CRITEO, kind="pyreader").inputs()
    assert through == raw
    schema = sf.Schema((sf.DenseFeature("age"),), (sf.Slot("user"), sf.Slot("ad", keys=True), sf.Slot("tags")))
    mixed = sf.Feeder(schema, [{"label": 1, "age": 3, "user": "ann", "ad": [7]}])
    assert set(mixed.inputs().slots.values()) == {"either"}
    with mixed.epoch() as epoch:
        next(epoch.streams[0])
    assert mixed.inputs().slots == {"user": "raw", "ad": "ready", "tags": "either"}
    assert mixed.inputs().dense == {"age": "raw"}


def test_documents_of_inputs_that_make_no_sense() -> None:
    good = Inputs("pipe", {"C1": "ready"}, {}, "cat", "0", (("C1", "sparse"),)).to_dict()
    for change, said in (
        ({"slots": {"C1": "boiled"}}, "field 'slots' says 'boiled' of 'C1'; allowed are raw, ready, either"),
        ({"pipe_command": 3}, "field 'pipe_command' must be null or text"),
        ({"layout": ["C1"]}, "field 'layout' must be null or a list"),
        ({"more": 1}, "unknown fields 'more'"),
    ):
        with pytest.raises(ConfigError, match=said):
            Inputs.from_dict({**good, **change}, "here")


def threads_of(monkeypatch: pytest.MonkeyPatch, dataset: sf.QueueDataset) -> list[int]:
    asked: list[int] = []
    started = type(dataset).epoch
    monkeypatch.setattr(
        type(dataset), "epoch", lambda self, threads=None: (asked.append(threads), started(self, threads))[1]
    )
    return asked


def test_fluids_thread_sets_the_threads_of_a_call(clicks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, trainer = small(), sf.Trainer(sf.optim.Adam(1e-3), quiet=True)
    told, untold = piped(clicks / "train", threads=2), piped(clicks / "train")
    asked = threads_of(monkeypatch, told)
    for dataset, thread, threads in (
        (told, 2, 2),
        (told, 0, 2),
        (told, 2, 2),
        (untold, 3, 3),
        (untold, 0, 1),
        (untold, 2, 2),
    ):
        trainer.train_from_dataset(model, dataset, thread=thread)
        assert asked[-1] == threads == trainer.config.threads
    trainer.infer_from_dataset(model, piped(clicks / "test"), thread=3)
    trainer.infer_from_dataset(model, piped(clicks / "test"))  # not told: as the training
    trainer.infer_from_dataset(model, piped(clicks / "test", threads=1), thread=1)
    assert asked[-3:] == [3, 2, 1]
    given = sf.Trainer(sf.optim.Adam(1e-3), threads=2, quiet=True)
    model = small()
    for thread in (0, 2, 2):
        given.train_from_dataset(model, untold, thread=thread)
        assert asked[-1] == 2


def test_fluids_thread_that_contradicts_somebody(clicks: Path) -> None:
    model, trainer = small(), sf.Trainer(sf.optim.Adam(1e-3), quiet=True)
    told = piped(clicks / "train", threads=2)
    said = r"_from_dataset\(thread=1\), but the dataset says set_thread\(2\): both are the number of training threads"
    for _ in range(2):
        for call in (trainer.train_from_dataset, trainer.infer_from_dataset):
            with pytest.raises(ConfigError, match=said):
                call(model, told, thread=1)
        trainer.train_from_dataset(model, told)
    given = sf.Trainer(sf.optim.Adam(1e-3), threads=3, quiet=True)
    with pytest.raises(ConfigError, match=r"train_from_dataset\(thread=2\), but Trainer\(threads=3\): both are"):
        given.train_from_dataset(model, piped(clicks / "train"), thread=2)
    for thread in (-1, True, 1.5):
        with pytest.raises(ConfigError, match="it must be a whole number, 0 for as many as the dataset says"):
            trainer.train_from_dataset(model, told, thread=thread)


def test_no_input_called_label(clicks: Path, tmp_path: Path) -> None:
    (tmp_path / "part-0").write_text("".join(f"1 {n % 2} 1 {n}\n" for n in range(100)))
    made = sf.DatasetFactory().create_dataset()
    made.set_use_var([sf.fluid.layers.data("click", dtype="int64"), sf.fluid.layers.data("user", dtype="int64")])
    made.set_filelist([tmp_path / "part-0"])
    model = sf.CTRDNN(("click", "user"), 0, sf.CTRDNNConfig(embedding_size=4, hidden=(8,)))
    with pytest.raises(DataError, match=r'have no label.*given to set_use_var, the one named "label" is the label'):
        sf.Trainer(sf.optim.Adam(1e-3), quiet=True).fit(model, made)


OWN = sf.Schema(
    (sf.DenseFeature("age", 18, 60), sf.DenseFeature("price")), (sf.Slot("city"), sf.Slot("tags")), sparse_feature_dim=0
)


def told(schema: sf.Schema = OWN) -> sf.Feeder:
    """The same samples, read by a schema."""
    samples = [
        {schema.label: n % 2, "age": 20 + n, "price": n / 2, "city": "Oslo", "tags": ["sea", str(n)], "width": 1.0}
        for n in range(8)
    ]
    names = {schema.label, *schema.fields}
    return sf.Feeder(schema, [{k: v for k, v in sample.items() if k in names} for sample in samples], batch_size=4)


def of_own() -> sf.CTRDNN:
    torch.manual_seed(0)
    return sf.CTRDNN(OWN.slot_names, len(OWN.dense), sf.CTRDNNConfig(embedding_size=4, hidden=(8,)))


def taught(schema: sf.Schema = OWN) -> tuple[sf.Trainer, sf.CTRDNN]:
    trainer, model = sf.Trainer(sf.optim.Adam(1e-2), quiet=True), of_own()
    trainer.fit(model, told(schema))
    return trainer, model


def with_slot(**settings: Any) -> sf.Schema:
    return replace(OWN, slots=(sf.Slot("city", **settings), sf.Slot("tags")))


OTHER_KEYS = [
    (OWN.folded(1000), "sparse_feature_dim is 0 there, 1000 here"),
    (replace(OWN, hash_seed=7), "hash_seed is 0 there, 7 here"),
    (with_slot(hash_prefix="14"), r"hash_prefix of slot 'city' is 'city\\x1f' there, '14' here"),
    (with_slot(lower=True), "lower of slot 'city' is None there, True here"),
    (replace(OWN, dense=OWN.dense[::-1]), "dense features are in another order: 'age' is number 1 there, 2 here"),
]
OTHER_SAMPLES = [
    (replace(OWN, slots=(sf.Slot("city"), sf.Slot("tags", first=1))), "first of slot 'tags' is None there, 1 here"),
    (with_slot(missing="none"), "missing of slot 'city' is None there, 'none' here"),
    (
        replace(OWN, dense=(sf.DenseFeature("age", 20, 60), sf.DenseFeature("price"))),
        "minimum of dense feature 'age' is 18 there, 20 here",
    ),
    (
        replace(OWN, dense=(OWN.dense[0], sf.DenseFeature("price", function="log1p"))),
        "function of dense feature 'price' is None there, 'log1p' here",
    ),
    (
        replace(OWN, dense=(OWN.dense[0], sf.DenseFeature("width"))),
        "dense feature number 2 is 'price' there, 'width' here",
    ),
]


@pytest.mark.parametrize(("schema", "said"), [*OTHER_KEYS, *OTHER_SAMPLES])
def test_what_is_scored_by_another_schema_is_refused(schema: sf.Schema, said: str) -> None:
    trainer, model = taught()
    values = trainer.evaluate(model, told())
    for use in (trainer.evaluate, trainer.infer_from_dataset, lambda *given: next(trainer.predict(*given))):
        with pytest.raises(ConfigError, match=f"the model was trained by another schema than that of .*: {said}"):
            use(model, told(schema))
    fresh, again = sf.Trainer(sf.optim.Adam(1e-2), quiet=True), of_own()
    for name, what in (("test", "the test data"), ("valid", "the validation data")):
        with pytest.raises(ConfigError, match=f"another schema than that of {what}: {said}"):
            fresh.fit(again, told(), **{name: told(schema)})
    assert not any(table["rows"] for table in fresh.store.stats()["tables"].values()), "before it trains"
    fresh.fit(again, told(schema), test=told(schema))  # what was refused has taught the model nothing
    vouched = told(schema)
    vouched.same_inputs = True
    trainer.evaluate(model, vouched)
    assert trainer.evaluate(model, told()) == values


@pytest.mark.parametrize(("schema", "said"), OTHER_KEYS)
def test_a_second_fit_by_other_keys_is_refused(schema: sf.Schema, said: str) -> None:
    trainer, model = taught()
    with pytest.raises(ConfigError, match=said):
        trainer.fit(model, told(schema))
    trainer.fit(model, told())


def test_a_second_fit_may_have_more_slots_and_other_numbers(caplog: pytest.LogCaptureFixture) -> None:
    trainer, model = taught()
    more = replace(OWN, slots=(sf.Slot("width_is", column="width", buckets=(1.0,)), *OWN.slots))
    trainer.fit(model, told(more))
    trainer.evaluate(model, told())
    assert "the model:" not in caplog.text
    scaled = replace(OWN, dense=(sf.DenseFeature("age", 20, 60), sf.DenseFeature("price")))
    trainer.fit(model, told(scaled))
    assert "the model: dense features are normalised otherwise here: age" in caplog.text
    trainer.evaluate(model, told(scaled))
    with pytest.raises(ConfigError, match="minimum of dense feature 'age' is 20 there, 18 here"):
        trainer.evaluate(model, told())


def test_where_files_have_things_makes_no_difference(tmp_path: Path) -> None:
    """Names of columns and how files are taken apart are the data's business."""
    (tmp_path / "train.csv").write_text("label,age,price,city,tags,w\n" + "1,20,3,Oslo,sea,1\n0,30,4,Rome,hill,2\n" * 9)
    (tmp_path / "test.csv").write_text("clicked;years;price;town;tags;u\n" + "1;20;3;Oslo;sea;a\n0;30;4;Rome;hill;b\n")
    trained = replace(OWN, weight="w")
    elsewhere = replace(
        OWN,
        label="clicked",
        group="u",
        csv=CsvDialect(delimiter=";"),
        dense=(sf.DenseFeature("age", 18, 60, column="years"), sf.DenseFeature("price", 0.0, 1.0)),
        slots=(sf.Slot("tags"), sf.Slot("city", hash_prefix="city\x1f", column="town")),
    )
    trainer, model = sf.Trainer(sf.optim.Adam(1e-2), quiet=True), of_own()
    trainer.fit(model, sf.open_reader(tmp_path / "train.csv", trained, batch_size=4))
    assert trainer.evaluate(model, sf.open_reader(tmp_path / "test.csv", elsewhere))["rows"] == 2


def test_rare_values_are_the_trainings() -> None:
    then, now = (with_slot(min_count=2).to_dict() for _ in range(2))
    slot, hashes = sf.Slot("city", min_count=2), [np.array(some, np.uint64) for some in ([1, 2, 3], [2, 3, 4, 5])]
    first, second = (kept_text(slot, 0, some) for some in hashes)
    then["kept"], now["kept"] = {"city": first}, {"city": second}
    assert given_data.read_otherwise(then, now) == ["slot 'city' has other rare values (min_count)"]
    assert given_data.read_otherwise(then, {**now, "kept": {"city": first.replace(first[:4], "0002", 1)}}) == []
    problems, hints = given_data.differing_keys(then, now)
    assert problems == [], "another day has others"
    assert len(hints) == 1
    assert "slot city (1 of 3 are rare here, 2 new)" in hints[0]
    more = {**now, "slots": [{**now["slots"][0], "min_count": 5}]}
    assert given_data.differing_keys(then, more) == (problems, hints)


def test_keys_of_version_1_are_ready_made_ones_of_version_2() -> None:
    """What an older release wrote of `set_use_var`, and this one; there is no telling how samples were read then."""
    now = sf.Schema((), (sf.Slot("u", keys=True), sf.Slot("v", keys=True)), sparse_feature_dim=0)
    then = replace(now, slots=(sf.Slot("u"), sf.Slot("v")), version=1)
    for function in (given_data.read_otherwise, lambda one, other: given_data.differing_keys(one, other)[0]):
        assert function(then.to_dict(), now.to_dict()) == function(now.to_dict(), then.to_dict()) == []
        other = replace(then, slots=(sf.Slot("u", hash_prefix="x"), sf.Slot("v"))).to_dict()
        assert function(then.to_dict(), other) == ["hash_prefix of slot 'u' is 'u\\x1f' there, 'x' here"]


def test_labels_in_another_order_are_refused() -> None:
    """Heads and losses know labels by their place: swapped, each would learn the other's."""
    then = sf.Schema((), (sf.Slot("u"),), label="click", more_labels=(sf.Label("buy"), sf.Label("stay")))
    swapped = replace(then, label="buy", more_labels=(sf.Label("click"), sf.Label("stay")))
    named = replace(then, label="clicked", more_labels=(sf.Label("bought"), sf.Label("stayed")))
    for function in (given_data.read_otherwise, lambda one, other: given_data.differing_keys(one, other)[0]):
        found = function(then.to_dict(), swapped.to_dict())
        assert found == ["labels are in another order: 'click' is number 1 there, 2 here"]
        assert function(then.to_dict(), named.to_dict()) == []


def timed(time_format: str) -> sf.Schema:
    slots = (*OWN.slots, sf.Slot("hour", column="at", derive="hour"), sf.Slot("day", column="at", derive="weekday"))
    return replace(OWN, slots=slots, time_format=time_format)


def at_times(path: Path, times: tuple[str, ...]) -> str:
    rows = [f"{n % 2},20,3,Oslo,sea,{time}" for n, time in enumerate(times * 4)]
    path.write_text("\n".join(["label,age,price,city,tags,at", *rows, ""]))
    return str(path)


@pytest.mark.parametrize("here", ["seconds", "auto", "milliseconds"])
def test_times_in_another_format(tmp_path: Path, caplog: pytest.LogCaptureFixture, here: str) -> None:
    """Of the same text it makes other keys; of other files, whose times are written so, the same."""
    trained, other = timed("yymmddhh"), timed(here)
    times = at_times(tmp_path / "then.csv", ("14102100", "14102213"))
    seconds = (1413849600, 1413982800)
    written = tuple(str(1000 * one if here == "milliseconds" else one) for one in seconds)
    later = at_times(tmp_path / "later.csv", written)
    torch.manual_seed(0)
    model = sf.CTRDNN(trained.slot_names, 2, sf.CTRDNNConfig(embedding_size=4, hidden=(8,)))
    trainer = sf.Trainer(sf.optim.Adam(1e-2), quiet=True)
    trainer.fit(model, sf.open_reader(times, trained, batch_size=4))
    said = f"time_format, by which slot 'hour', 'day' is made, is 'yymmddhh' there, '{here}' here"
    for use in (trainer.evaluate, trainer.infer_from_dataset, lambda *given: next(trainer.predict(*given))):
        with pytest.raises(ConfigError, match=said):
            use(model, sf.open_reader(times, other))
    vouched = sf.open_reader(later, other, same_inputs=True)
    values = trainer.evaluate(model, sf.open_reader(times, trained))
    assert trainer.evaluate(model, vouched) == values
    assert not caplog.records
    trainer.fit(model, sf.open_reader(later, other, batch_size=4))
    assert said + ": only if the times of these files are written in that other way" in caplog.text


def test_where_no_time_is_read_its_format_says_nothing() -> None:
    functions = (given_data.read_otherwise, lambda one, other: [*chain(*given_data.differing_keys(one, other))])
    for function in functions:
        assert function(timed("auto").to_dict(), timed("seconds").to_dict()) == [], "a number means the same"
        assert function(OWN.to_dict(), replace(OWN, time="at", time_format="milliseconds").to_dict()) == []
        assert function(timed("auto").to_dict(), replace(OWN, time_format="yymmddhh").to_dict()) == []
        assert len(function(timed("auto").to_dict(), timed("milliseconds").to_dict())) == 1
    assert given_data.read_otherwise(timed("auto").to_dict(), timed("yymmddhh").to_dict(), {"hour", "day"}) == []


def test_of_ready_samples_only_what_is_made_of_them_counts() -> None:
    then = sf.Schema((sf.DenseFeature("a"), sf.DenseFeature("b")), (sf.Slot("s", hash_prefix="14"),)).to_dict()
    now = sf.Schema((sf.DenseFeature("x"), sf.DenseFeature("y")), (sf.Slot("s", keys=True),), hash_seed=3).to_dict()
    assert given_data.read_otherwise(then, now, {"s", "a", "b", "x", "y"}) == []
    found = given_data.read_otherwise(then, now, {"a", "b"})
    assert [one.split(" is ")[0] for one in found] == [
        "hash_seed",
        "hash_prefix of slot 's'",
        "keys of slot 's'",
        "dense feature number 1",
        "dense feature number 2",
    ]
    turned = {**then, "dense": then["dense"][::-1]}
    assert "in another order" in given_data.read_otherwise(then, turned, {"s", "a", "b"})[0]


def test_a_checkpoint_tells_its_schema(clicks: Path, tmp_path: Path) -> None:
    """Training by the schema that `data prepare` wrote, a test by Criteo's constants."""
    measured = tuple(replace(feature, diff=feature.diff * 2) for feature in sf.CRITEO.dense)
    written = replace(sf.CRITEO, dense=measured)
    trainer, model = sf.Trainer(sf.optim.Adam(1e-3), quiet=True), small()
    trainer.fit(model, sf.open_reader(clicks / "train", written, batch_size=100), save=sf.SavePolicy(str(tmp_path)))
    later, again = sf.Trainer(quiet=True), small()
    later.load(again, str(tmp_path))
    said = r"step-\d+ was trained by another schema .*diff of dense feature 'I1' .*; and 8 differences more\."
    with pytest.raises(ConfigError, match=said):
        later.evaluate(again, sf.open_reader(clicks / "test", sf.CRITEO))
    assert later.evaluate(again, sf.open_reader(clicks / "test", written))["rows"] == 1500
