"""All metrics of a run together, and metrics of the user's own."""

from __future__ import annotations

import json
import math
import threading

import numpy as np
import pytest
from metric_contract import MetricContract, batches, counted

from sparsefleet.core.errors import ConfigError
from sparsefleet.metrics import ClickMetrics, Metric, MetricSet, check_metrics


class Brier(Metric):
    """Mean squared distance of prediction and label; whole numbers, so that parts merge exactly."""

    name = "brier"

    def __init__(self, digits=9):
        self.digits, self.sum, self.samples = digits, 0, 0

    def update(self, batch, outputs):
        known = ~np.isnan(batch.labels)
        squares = (outputs["probability"][known].astype(np.float64) - batch.labels[known]) ** 2
        self.sum += int(np.rint(squares * 10**self.digits).sum())
        self.samples += int(known.sum())

    def merge(self, other):
        if other.digits != self.digits:
            raise ConfigError(f"brier of {other.digits} and {self.digits} digits cannot be merged")
        self.sum += other.sum
        self.samples += other.samples

    def to_dict(self):
        return {"digits": self.digits, "sum": self.sum, "samples": self.samples}

    @classmethod
    def from_dict(cls, data):
        made = cls(data["digits"])
        made.sum, made.samples = data["sum"], data["samples"]
        return made

    def values(self):
        return {"brier": self.sum / 10**self.digits / self.samples if self.samples else math.nan}


class TestBrier(MetricContract):
    def make(self):
        return Brier(digits=6)


class TestClickMetrics(MetricContract):
    def make(self):
        return ClickMetrics(num_thresholds=100)


def test_a_set_tells_the_values_of_all():
    given = list(batches())
    both = MetricSet(ClickMetrics(), [Brier()])
    counted(both, given)
    clicks, brier = counted(ClickMetrics(), given).values(), counted(Brier(), given).values()
    assert both.values() == {**clicks, **brier}
    assert both.own_values() == brier


def test_sets_of_several_trainers_are_put_together():
    given = list(batches())
    parts = [
        json.loads(json.dumps(counted(MetricSet(ClickMetrics(), [Brier()]), given[i::2]).to_dict())) for i in (0, 1)
    ]
    whole = counted(MetricSet(ClickMetrics(), [Brier()]), given)
    assert MetricSet.together(parts, [Brier()]).values() == whole.values()


def test_checkpoints_without_the_metric_or_with_another_one_are_gone_on_from():
    given = list(batches())
    plain = counted(MetricSet(ClickMetrics()), given[:3])
    assert plain.to_dict() == plain.clicks.to_dict()  # as checkpoints have always had it
    assert math.isnan(MetricSet.together([plain.to_dict()], [Brier()]).values()["brier"])
    with_brier = counted(MetricSet(ClickMetrics(), [Brier()]), given[:3])
    assert "brier" not in MetricSet.together([with_brier.to_dict()]).values()


def test_what_was_counted_with_other_settings_is_not_mixed():
    saved = counted(MetricSet(ClickMetrics(), [Brier(3)]), batches()).to_dict()
    with pytest.raises(ConfigError, match="brier of 3 and 9 digits cannot be merged"):
        MetricSet.together([saved], [Brier()])
    saved["own"]["brier"] = {"nonsense": 1}
    with pytest.raises(ConfigError, match=r"'brier': this is not a metric that its to_dict wrote: KeyError"):
        MetricSet.together([saved], [Brier()])


def test_the_metric_that_is_given_stays_empty():
    given = Brier()
    counted(MetricSet(ClickMetrics(), [given]), batches())
    assert given.samples == 0


def test_many_threads_may_count_at_once():
    given = list(batches(40))
    together = MetricSet(ClickMetrics(), [Brier()])
    threads = [threading.Thread(target=counted, args=(together, given[i::4])) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert together.values() == counted(MetricSet(ClickMetrics(), [Brier()]), given).values()


def test_what_threads_have_counted_so_far_is_told_while_they_count():
    """Each counts in a place of its own; whoever reads adds them up, once."""
    whole, parts = MetricSet(ClickMetrics(64)), MetricSet(ClickMetrics(64))
    told = []
    for given in batches():
        whole.update(*given)
        thread = threading.Thread(target=parts.update, args=given)
        thread.start()
        parts.update(*given)
        thread.join()
        whole.update(*given)
        told.append((parts.click_values(), whole.click_values(), parts.to_dict() == whole.to_dict()))
    assert len(told) > 1
    for mine, wanted, same in told:
        assert mine == pytest.approx(wanted, nan_ok=True)
        assert same


def other(**names):
    return type("Other", (Brier,), names)()


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ([Brier], "a metric is an object of a class derived from sparsefleet.metrics.Metric"),
        ([len], "a metric is an object of a class derived from"),
        ([Brier(), Brier()], "the metric Brier has name='brier': give each metric a name of its own"),
        ([other(name="")], "has name=''"),
        ([Brier(), other(name="two")], "'two' tells values that something else tells already: brier; call them"),
        ([other(values=lambda self: {"auc": 1.0, "loss": 0.0})], "tells already: auc, loss"),
    ],
)
def test_what_is_no_metric_and_names_that_are_taken_are_refused(own, said):
    with pytest.raises(ConfigError, match=said):
        check_metrics(own)
