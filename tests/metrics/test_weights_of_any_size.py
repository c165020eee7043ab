"""Metrics of samples with weights: the same whatever all weights are multiplied by, in whichever parts they are."""

from __future__ import annotations

import base64
import json
import math
import zlib
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsefleet.core.batch import Batch
from sparsefleet.core.errors import ConfigError
from sparsefleet.metrics import Calibration, ClickMetrics, GroupAUC, LabelMetrics, Segments, grouped
from sparsefleet.metrics.bands import LOWEST, WIDTH, banded
from sparsefleet.metrics.weighted import WeightedClicks

LARGEST = float(np.finfo(np.float32).max)
SMALLEST = float(np.finfo(np.float32).smallest_subnormal)
MAKERS = (
    ClickMetrics,
    lambda: LabelMetrics("probability", 0),
    GroupAUC,
    lambda: GroupAUC(most=300),
    lambda: Calibration(5),
    lambda: Segments("ad"),
)


def drawn(weights, samples=2000, seed=5):
    """(batch, outputs); `weights`: what to make of numbers of 0.01 to 3, float64."""
    random = np.random.default_rng(seed)
    odds = random.normal(-1, 2, samples)
    return Batch(
        labels=(random.random(samples) < 1 / (1 + np.exp(-odds))).astype(np.float32),
        dense=np.empty((samples, 0), np.float32),
        keys=random.integers(0, 7, samples).astype(np.uint64),
        offsets=np.arange(samples + 1, dtype=np.int64),
        slots=("ad",),
        groups=random.integers(0, 40, samples).astype(np.uint64),
        weights=weights(random.uniform(0.01, 3, samples)).astype(np.float32),
    ), {"probability": (1 / (1 + np.exp(-odds + random.normal(0, 1, samples)))).astype(np.float32)}


def counted(make, batch, outputs, parts=1):
    metrics = []
    for part in range(parts):
        metrics.append(make())
        for at in range(part * 100, len(batch), parts * 100):
            end = min(at + 100, len(batch))
            metrics[-1].update(batch.samples(at, end), {"probability": outputs["probability"][at:end]})
    for other in reversed(metrics[1:]):
        metrics[0].merge(type(other).from_dict(json.loads(json.dumps(other.to_dict()))))
    return metrics[0]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("power", [-130, -40, -27, -3, 1, 5, 30, 63, 126])
def test_a_power_of_two_times_all_weights_changes_no_digit(make, power):
    plain = counted(make, *drawn(np.asarray)).values()
    for parts in (1, 3):
        # So small that a float32 has no room for all its bits: equal in the fewer that are left.
        left = power < -126 + 7
        times = counted(make, *drawn(lambda weights: np.ldexp(weights, power), samples=2000), parts).values()
        assert times == (pytest.approx(plain, rel=1e-3) if left else pytest.approx(plain, rel=1e-14))


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("factor", [1e-35, 1e-8, 5e-7, 1e-6, 0.1, 7.0, 1e9, 1e37])
def test_no_factor_of_all_weights_changes_a_metric(make, factor):
    plain = counted(make, *drawn(np.asarray)).values()
    assert counted(make, *drawn(lambda weights: weights * factor)).values() == pytest.approx(plain, rel=1e-6, abs=1e-7)


@pytest.mark.parametrize("make", MAKERS)
def test_weights_of_all_sizes_side_by_side_are_summed_exactly_in_any_parts(make):
    batch, outputs = drawn(lambda weights: 10.0 ** np.random.default_rng(2).uniform(-44, 38, len(weights)))
    whole = counted(make, batch, outputs).values()
    for parts in (2, 7):
        assert counted(make, batch, outputs, parts).values() == whole


def test_values_of_clicks_are_those_of_exact_arithmetic():
    batch, outputs = drawn(lambda weights: weights * 10.0 ** np.random.default_rng(2).uniform(-6, 6, len(weights)))
    values = counted(ClickMetrics, batch, outputs).values()
    weights = [Fraction(float(weight)) for weight in batch.weights]
    p, labels = outputs["probability"].astype(np.float64), batch.labels == 1
    losses = -np.log(np.where(labels, p, 1 - p))

    def share(of, among):
        return float(sum(w * Fraction(float(x)) for w, x in zip(weights, of, strict=True)) / sum(among))

    assert values["logloss"] == pytest.approx(share(losses, weights), rel=1e-8)
    assert values["accuracy"] == share((p > 0.5) == labels, weights)
    clicks = [w for w, label in zip(weights, labels, strict=True) if label]
    assert values["click_ratio"] == pytest.approx(share(p, clicks), rel=1e-8)


@settings(deadline=None)
@given(st.lists(st.floats(0, LARGEST, width=32), max_size=20))
def test_bands_hold_every_weight_exactly(weights):
    given_weights = np.array(weights, np.float32)
    exact = banded(given_weights)
    assert all(0 < band <= 36 for band in exact.band[given_weights > 0].tolist())
    for weight, parts, band in zip(given_weights.tolist(), exact.parts().tolist(), exact.band.tolist(), strict=True):
        assert Fraction(weight) == Fraction(parts) * Fraction(2) ** (WIDTH * band - LOWEST)
        assert parts < 2**31


def test_histograms_are_carried_before_they_leave_64_bits():
    """Parts that merge again and again double what was counted: to far more samples than anybody has."""
    batch, outputs = drawn(lambda weights: weights * 5)
    metric = counted(ClickMetrics, batch, outputs)
    once = metric.values()
    for _ in range(60):
        metric.weighted.merge(WeightedClicks.from_dict(metric.weighted.to_dict(), len(metric.positive)))
    told = metric.values()
    told.pop("rows")
    assert told == pytest.approx({name: value for name, value in once.items() if name != "rows"}, rel=1e-12)


def test_grouped_sums_that_leave_64_bits_are_refused():
    batch, outputs = drawn(np.asarray)
    metric = counted(Calibration, batch, outputs)

    def double():
        for _ in range(64):
            metric.merge(Calibration.from_dict(metric.to_dict()))

    with pytest.raises(ConfigError, match="measure parts of the data"):
        double()


def test_a_checkpoint_of_the_release_before_goes_on():
    """It counted weights in units of 2**-20, samples with a click first."""
    histograms = np.zeros((2, 5), np.int64)
    histograms[0, 3], histograms[1, 1] = 3 << 20, (1 << 20) + 1
    data = {
        "histograms": base64.b64encode(zlib.compress(histograms.astype("<i8").tobytes())).decode(),
        "log_loss": 1 << 20,
        "predicted": 6 << 20,
        "correct": 4 << 20,
    }
    values = WeightedClicks.from_dict(data, 5).values()
    assert values["auc"] == 1
    assert values["logloss"] == pytest.approx(1 / 4, rel=1e-6)
    assert values["click_ratio"] == 2
    assert values["accuracy"] == pytest.approx(1, rel=1e-6)
    histograms[0, 0] = -1
    wrapped = {**data, "histograms": base64.b64encode(zlib.compress(histograms.astype("<i8").tobytes())).decode()}
    whole = {**counted(ClickMetrics, *drawn(np.asarray)).to_dict(), "weighted": wrapped}
    with pytest.raises(ConfigError):
        ClickMetrics.from_dict(whole)


def test_sums_by_group_of_the_release_before_are_refused_in_words():
    data = GroupAUC().to_dict()
    del data["layout"]
    with pytest.raises(ConfigError, match="measure again"):
        GroupAUC.from_dict(data)


@pytest.mark.parametrize(
    "wrong", [{"bands": [0]}, {"bands": [3, 3]}, {"bands": [99]}, {"bands": [1, 2, 3]}, {"bands": "x"}, {"correct": -1}]
)
def test_weighted_sums_that_are_damaged_are_refused(wrong):
    data = counted(ClickMetrics, *drawn(np.asarray)).to_dict()
    with pytest.raises(ConfigError, match="not metrics"):
        ClickMetrics.from_dict({**data, "weighted": {**data["weighted"], **wrong}})


def test_the_smallest_and_the_largest_weight_count():
    for weight in (SMALLEST, LARGEST):
        values = counted(ClickMetrics, *drawn(lambda weights, weight=weight: np.full(len(weights), weight))).values()
        ones = counted(ClickMetrics, *drawn(np.ones_like)).values()
        assert values == pytest.approx(ones, rel=1e-6)


def test_which_groups_are_left_out_does_not_depend_on_weights():
    batch, outputs = drawn(lambda weights: 10.0 ** np.random.default_rng(4).uniform(-9, 9, len(weights)))
    plain = drawn(np.ones_like)
    metrics = [counted(lambda: GroupAUC(most=300), *each) for each in ((batch, outputs), plain)]
    assert metrics[0].values()["gauc_groups"] == metrics[1].values()["gauc_groups"] > 0
    assert metrics[0]._sums.halvings == metrics[1]._sums.halvings > 0


def test_a_small_group_keeps_its_auc_beside_a_heavy_one():
    labels, p = np.array([0, 1, 0, 1], np.float32), np.array([0.1, 0.2, 0.4, 0.3], np.float32)
    batch = Batch(
        labels, np.empty((4, 0), np.float32), np.zeros(4, np.uint64), np.arange(5, dtype=np.int64), ("ad",),
        groups=np.array([0, 0, 1, 1], np.uint64), weights=np.array([1e30, 1e30, 1e-30, 1e-30], np.float32),
    )  # fmt: skip
    metric = GroupAUC()
    metric.update(batch, {"probability": p})
    assert metric._sums.by_group().auc.tolist() == [1, 0]
    assert not math.isnan(metric.values()["gauc"])


def test_many_samples_at_once(monkeypatch):
    whole = counted(Calibration, *drawn(np.asarray)).values()
    monkeypatch.setattr(grouped, "PENDING", 64)
    assert counted(Calibration, *drawn(np.asarray)).values() == whole
