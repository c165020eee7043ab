"""What every metric promises. A metric's test derives from `MetricContract` and says how to make one.

class TestMine(MetricContract):
    def make(self):
        return Mine()
"""

from __future__ import annotations

import copy
import json

import numpy as np

from sparsefleet.core.batch import Batch
from sparsefleet.metrics import Metric, check_metrics


def batches(count: int = 6, samples: int = 50, seed: int = 0):
    """(batch, outputs); one label is missing in each batch."""
    random = np.random.default_rng(seed)
    for _ in range(count):
        labels = (random.random(samples) < 0.3).astype(np.float32)
        labels[random.integers(samples)] = np.nan
        batch = Batch(
            labels=labels,
            dense=random.random((samples, 2)).astype(np.float32),
            keys=random.integers(0, 9, samples).astype(np.uint64),
            offsets=np.arange(samples + 1, dtype=np.int64),
            slots=("ad",),
        )
        yield batch, {"probability": random.random(samples).astype(np.float32)}


def counted(metric: Metric, given) -> Metric:
    for batch, outputs in given:
        metric.update(batch, outputs)
    return metric


class MetricContract:
    def make(self) -> Metric:
        """One that has counted nothing, with settings that are not the defaults."""
        raise NotImplementedError

    def same(self, one: Metric, other: Metric) -> None:
        np.testing.assert_equal(one.values(), other.values())  # NaN equals NaN

    def test_it_has_a_name_and_values_that_are_numbers(self):
        check_metrics([] if self.make().name == "clicks" else [self.make()])
        metric = self.make()
        names = list(metric.values())
        assert names
        assert all(isinstance(value, int | float) for value in metric.values().values())
        assert list(counted(metric, batches()).values()) == names

    def test_parts_merge_to_the_whole_in_any_order(self):
        given = list(batches())
        whole = counted(self.make(), given)
        parts = [counted(self.make(), given[start::3]) for start in range(3)]
        for order in ((0, 1, 2), (2, 0, 1)):
            merged = self.make()
            for part in order:
                before = parts[part].values()
                merged.merge(parts[part])
                np.testing.assert_equal(parts[part].values(), before)
            self.same(merged, whole)

    def test_it_survives_as_json_and_counts_on(self):
        given = list(batches())
        half = counted(self.make(), given[:3])
        again = type(half).from_dict(json.loads(json.dumps(half.to_dict())))
        self.same(again, half)
        self.same(counted(again, given[3:]), counted(self.make(), given))

    def test_a_copy_counts_by_itself(self):
        metric = self.make()
        nothing = metric.values()
        counted(copy.deepcopy(metric), batches())
        np.testing.assert_equal(metric.values(), nothing)

    def test_it_keeps_nothing_of_what_it_is_given(self):
        given = list(batches(2))
        metric = counted(self.make(), given)
        before = metric.values()
        for batch, outputs in given:
            batch.labels[:] = 1
            outputs["probability"][:] = 0
        np.testing.assert_equal(metric.values(), before)
