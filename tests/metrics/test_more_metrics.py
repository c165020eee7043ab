"""Group AUC, calibration, segments, several labels and weights: against plain NumPy, and as parts that merge."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from metric_contract import MetricContract, batches, counted

from sparsefleet.core.batch import Batch
from sparsefleet.core.errors import ConfigError
from sparsefleet.core.schema import Schema, Slot
from sparsefleet.core.xxh64 import xxh64
from sparsefleet.kernels.text import feature_key
from sparsefleet.metrics import Calibration, ClickMetrics, GroupAUC, LabelMetrics, MetricSet, Segments
from sparsefleet.metrics.grouped import GroupedClicks
from sparsefleet.scoring.measuring import metrics_of


def drawn(samples=3000, groups=40, seed=3, weights=False):
    random = np.random.default_rng(seed)
    odds = random.normal(-1, 2, samples)
    labels = (random.random(samples) < 1 / (1 + np.exp(-odds))).astype(np.float32)
    probabilities = (1 / (1 + np.exp(-odds + random.normal(0, 1, samples)))).astype(np.float32)
    batch = Batch(
        labels=labels,
        dense=np.empty((samples, 0), np.float32),
        keys=random.integers(0, 7, samples).astype(np.uint64),
        offsets=np.arange(samples + 1, dtype=np.int64),
        slots=("ad",),
        groups=random.integers(0, groups, samples).astype(np.uint64),
        weights=random.random(samples).astype(np.float32) * 3 if weights else None,
    )
    return batch, {"probability": probabilities}


def plain_auc(probabilities, labels, weights=None) -> float:
    """By all pairs; ties count half."""
    weights = np.ones(len(labels)) if weights is None else weights.astype(float)
    positive, negative = labels == 1, labels == 0
    higher = (probabilities[positive, None] > probabilities[None, negative]).astype(float)
    higher += 0.5 * (probabilities[positive, None] == probabilities[None, negative])
    pairs = weights[positive, None] * weights[None, negative]
    return float((higher * pairs).sum() / pairs.sum())


class WithGroups(MetricContract):
    pass


class TestGroupAUC(MetricContract):
    def make(self):
        return GroupAUC(most=10_000)


class TestCalibration(MetricContract):
    def make(self):
        return Calibration(parts=4)


class TestSegments(MetricContract):
    def make(self):
        return Segments("ad", {3: "three"}, most=10_000)


class TestLabel(MetricContract):
    def make(self):
        return NamedLabel("buy", 0)


class NamedLabel(LabelMetrics):
    """As if the model had an output of the label's name."""

    def update(self, batch, outputs):
        super().update(batch, {"buy": outputs["probability"]})


def test_group_auc_is_the_mean_of_the_groups_by_their_samples():
    batch, outputs = drawn(groups=300)
    values = counted(GroupAUC(), [(batch, outputs)]).values()
    total = weight = number = 0
    for group in np.unique(batch.groups):
        mine = batch.groups == group
        if 0 < batch.labels[mine].sum() < mine.sum():
            total += plain_auc(outputs["probability"][mine], batch.labels[mine]) * mine.sum()
            weight += mine.sum()
            number += 1
    assert values["gauc"] == pytest.approx(total / weight, abs=2e-4)
    assert values["gauc_groups"] == number


def test_samples_without_groups_tell_nothing():
    values = counted(GroupAUC(), batches()).values()
    assert math.isnan(values["gauc"])
    assert values["gauc_groups"] == 0


@pytest.mark.parametrize("seed", [0, 7])
@pytest.mark.parametrize("weights", [False, True])
def test_samples_without_a_group_are_left_out_and_counted(seed, weights):
    """They were one giant group."""
    batch, outputs = drawn(weights=weights)
    without = np.random.default_rng(1).random(len(batch)) < 0.3
    batch.labels[3] = np.nan
    groups = np.where(without, np.uint64(xxh64(b"", seed)), batch.groups)
    some = replace(batch, groups=groups)
    schema = Schema((), (Slot("ad"),), group="user", hash_seed=seed)
    given = [
        (some.samples(at, at + 500), {"probability": outputs["probability"][at : at + 500]})
        for at in range(0, len(batch), 500)
    ]
    rest = np.flatnonzero(~without)
    alone = counted(GroupAUC(), [(batch.take(rest), {"probability": outputs["probability"][rest]})]).values()
    left_out = int((without & ~np.isnan(batch.labels)).sum())
    assert left_out > 500
    (whole, first, second) = (metrics_of(schema)[0] for _ in range(3))
    counted(first, given[::2])
    counted(second, given[1::2])
    first.merge(GroupAUC.from_dict(json.loads(json.dumps(second.to_dict()))))
    for metric in (counted(whole, given), first):
        assert metric.values() == {**alone, "gauc_ungrouped": left_out}


def test_beyond_its_room_it_is_a_fair_sample_of_whole_groups_the_same_for_all_parts():
    batch, outputs = drawn(samples=20_000, groups=2000)
    whole = counted(GroupAUC(), [(batch, outputs)]).values()
    given = [
        (batch.samples(at, at + 1000), {"probability": outputs["probability"][at : at + 1000]})
        for at in range(0, 20_000, 1000)
    ]
    small = counted(GroupAUC(most=4000), given).values()
    assert 50 < small["gauc_groups"] < whole["gauc_groups"] / 2
    assert small["gauc"] == pytest.approx(whole["gauc"], abs=0.03)
    parts = [counted(GroupAUC(most=4000), given[start::3]) for start in range(3)]
    for order in ((0, 1, 2), (2, 1, 0)):
        merged = GroupAUC(most=4000)
        for part in order:
            merged.merge(type(merged).from_dict(json.loads(json.dumps(parts[part].to_dict()))))
        assert merged.values() == small


def test_grouped_sums_that_are_damaged_or_do_not_fit():
    data = counted(GroupAUC(), [drawn()]).to_dict()
    for wrong in ({"entries": "???"}, {"most": 0}, {"halvings": 99}, {"entries": data["entries"][:40]}):
        with pytest.raises(ConfigError):
            GroupedClicks.from_dict({**data, **wrong})
    with pytest.raises(ConfigError, match="cannot be merged"):
        GroupAUC(10).merge(GroupAUC(20))


def test_calibration_by_parts():
    batch, outputs = drawn()
    values = counted(Calibration(10), [(batch, outputs)]).values()
    order = np.argsort(outputs["probability"], kind="stable")
    error = 0.0
    for number, part in enumerate(np.array_split(order, 10)):
        predicted, actual = outputs["probability"][part].sum(), batch.labels[part].sum()
        assert values[f"calibration_{number + 1}"] == pytest.approx(predicted / actual, rel=0.2)
        error += abs(predicted - actual) / len(order)
    assert values["calibration_error"] == pytest.approx(error, abs=0.01)
    with pytest.raises(ConfigError, match="cannot be merged"):
        Calibration(3).merge(Calibration(4))


def test_segments_by_value_of_a_slot():
    batch, outputs = drawn()
    metric = counted(Segments("ad", {5: "five"}), [(batch, outputs)])
    lines = metric.details(3)
    assert [line["value"] for line in lines] == ["five", None, None]
    for line in lines:
        mine = batch.keys == line["key"]
        p, labels = outputs["probability"][mine], batch.labels[mine]
        assert (line["rows"], line["clicks"]) == (mine.sum(), labels.sum())
        assert line["auc"] == pytest.approx(plain_auc(p, labels), abs=1e-3)
        assert line["click_ratio"] == pytest.approx(p.sum() / labels.sum(), rel=1e-4)
        assert line["logloss"] == pytest.approx(-np.log(np.where(labels == 1, p, 1 - p)).mean(), rel=1e-4)
    assert metric.values()["segment_ad_values"] == 7
    assert metric.unmet() == []


def test_named_values_that_no_sample_has():
    batch, outputs = drawn()
    metric = counted(Segments("ad", {99: "gone", 5: "five", 2**64 - 1: "never"}), [(batch, outputs)])
    assert metric.unmet() == ["gone", "never"]
    few = counted(Segments("ad", {key: str(key) for key in range(7)}, most=1), [(batch, outputs)])
    assert few.values()["segment_ad_values"] < 7, "some are left out"
    assert few.unmet() == [], "which does not mean that no sample has them"
    whole = MetricSet(ClickMetrics(), [Segments("ad", {99: "gone"}), Segments("user")])
    assert whole.unmet_segments() == {"ad": ["gone"]}


def test_weights():
    batch, outputs = drawn(weights=True)
    metric = counted(ClickMetrics(), [(batch, outputs)])
    p, labels, w = outputs["probability"].astype(float), batch.labels, batch.weights.astype(float)
    values = metric.values()
    assert values["auc"] == pytest.approx(plain_auc(p, labels, w), abs=1e-4)
    losses = -np.log(np.where(labels == 1, p, 1 - p))
    assert values["logloss"] == pytest.approx((losses * w).sum() / w.sum(), rel=1e-5)
    assert values["click_ratio"] == pytest.approx((p * w).sum() / (labels * w).sum(), rel=1e-5)
    assert values["accuracy"] == pytest.approx((((p > 0.5) == labels) * w).sum() / w.sum(), rel=1e-5)
    assert values["rows"] == len(batch)
    again = ClickMetrics.from_dict(json.loads(json.dumps(metric.to_dict())))
    assert again.values() == values
    again.merge(copy.deepcopy(metric))
    assert again.values()["auc"] == pytest.approx(values["auc"])


def test_normalized_entropy():
    batch, outputs = drawn()
    values = counted(ClickMetrics(), [(batch, outputs)]).values()
    share = float(batch.labels.mean())
    entropy = -(share * math.log(share) + (1 - share) * math.log(1 - share))
    assert values["normalized_entropy"] == pytest.approx(values["logloss"] / entropy)
    constant = {"probability": np.full(len(batch), share, np.float32)}
    assert counted(ClickMetrics(), [(batch, constant)]).values()["normalized_entropy"] == pytest.approx(1, abs=1e-5)
    assert math.isnan(ClickMetrics().values()["normalized_entropy"])


def test_several_labels_by_name():
    batch, outputs = drawn()
    buys = np.where(batch.labels == 1, (batch.keys < 3).astype(np.float32), np.nan).astype(np.float32)
    both = Batch(
        labels=np.ascontiguousarray(np.stack([batch.labels, buys], 1)),
        dense=batch.dense,
        keys=batch.keys,
        offsets=batch.offsets,
        slots=batch.slots,
    )
    given = {**outputs, "buy": np.ascontiguousarray(1 - outputs["probability"])}
    values = counted(LabelMetrics("buy", 1), [(both, given)]).values()
    defined = ~np.isnan(buys)
    assert values["buy_auc"] == pytest.approx(plain_auc(given["buy"][defined], buys[defined]), abs=1e-3)
    assert values["buy_rows"] == batch.labels.sum()
    assert counted(ClickMetrics(), [(both, outputs)]).values() == counted(ClickMetrics(), [(batch, outputs)]).values()
    with pytest.raises(ConfigError, match="the model gives probability, the samples have 2 label"):
        LabelMetrics("buy", 1).update(both, outputs)


def test_what_a_schema_and_a_user_ask_for():
    schema = Schema((), (Slot("ad"), Slot("user")))
    assert metrics_of(schema) == ()
    calibration, ads, users = metrics_of(schema, True, ("ad=a1,a2", "user"))
    assert (calibration.name, ads.name, users.name) == ("calibration", "segment ad", "segment user")
    key = feature_key(b"a2", schema.slots[0].prefix, schema.hash_seed, schema.sparse_feature_dim)
    assert ads.to_dict()["names"][str(key)] == "a2"
    with pytest.raises(ConfigError, match="no slot 'usr'; did you mean user"):
        metrics_of(schema, segments=("usr",))


@pytest.mark.parametrize("make", [GroupAUC, lambda: Calibration(4), lambda: Segments("ad", {3: "three"})])
def test_a_sample_of_weight_two_counts_as_two_of_them_within_groups_too(make):
    batch, outputs = drawn(groups=40)
    times = np.random.default_rng(3).integers(0, 4, len(batch))
    weighed = Batch(
        batch.labels,
        batch.dense,
        batch.keys,
        batch.offsets,
        batch.slots,
        groups=batch.groups,
        weights=times.astype(np.float32),
    )
    places = np.repeat(np.arange(len(batch)), times)
    repeated, probabilities = batch.take(places), {"probability": outputs["probability"][places]}
    mine, plain = make(), make()
    half = len(batch) // 2
    for a, b in ((0, half), (half, len(batch))):
        mine.update(weighed.samples(a, b), {"probability": outputs["probability"][a:b]})
    plain.update(repeated, probabilities)
    again = type(mine).from_dict(json.loads(json.dumps(mine.to_dict())))
    for found in (mine, again):
        assert found.values() == pytest.approx(plain.values(), rel=1e-5)
    if isinstance(mine, Segments):
        for one, other in zip(mine.details(), plain.details(), strict=True):
            assert one.keys() == other.keys()
            for name in ("key", "rows", "clicks", "auc", "logloss", "click_ratio"):
                assert one[name] == pytest.approx(other[name], rel=1e-5)
    # Parts with and without weights go together: a sample without one counts 1.
    twice = make()
    twice.update(batch, outputs)
    twice.merge(make_ones(make, batch, outputs))
    alone = make()
    for _ in range(2):
        alone.update(batch, outputs)
    assert twice.values() == pytest.approx(alone.values(), rel=1e-5)


def make_ones(make, batch, outputs):
    ones = Batch(
        batch.labels,
        batch.dense,
        batch.keys,
        batch.offsets,
        batch.slots,
        groups=batch.groups,
        weights=np.ones(len(batch), np.float32),
    )
    metric = make()
    metric.update(ones, outputs)
    return metric


def test_a_segment_is_called_as_the_data_has_it():
    slots = (
        Slot("tags", lower=True, length=3, split="|"),
        Slot("range", column="price", buckets=(0.0, 10.0)),
        Slot("hour", column="ts", derive="hour"),
        Slot("shop", keys=True),
        Slot("site"),
        Slot("both", cross=("site", "shop")),
    )
    schema = Schema((), slots, time="ts", sparse_feature_dim=0)

    def names(text):
        return next(iter(metrics_of(schema, segments=(text,)))).to_dict()["names"]

    def key(slot, text):
        return str(feature_key(text, slots[slot].prefix, 0, 0))

    assert names("tags=SPORTS,spo,b") == {key(0, b"spo"): "SPORTS, spo", key(0, b"b"): "b"}
    assert names("range=-3,5,1e3") == {key(1, b"0"): "-3", key(1, b"1"): "5", key(1, b"2"): "1e3"}
    assert names("hour=13") == {key(2, b"13"): "13"}
    assert names("shop=77") == {"77": "77"}
    for text, said in (
        ("tags=a|b", "'a|b' is several values; name values one by one"),
        ("range=cheap", "'cheap' is no value of slot range: not a number"),
        ("shop=x", "'x' is no value of slot shop"),
        ("both=a", "both is a cross, whose values have no names; say --segment both"),
    ):
        with pytest.raises(ConfigError) as error:
            metrics_of(schema, segments=(text,))
        assert said in str(error.value)
