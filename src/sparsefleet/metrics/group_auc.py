"""GroupAUC: how well samples of the same group (a user, a query) are ranked among themselves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Self

from sparsefleet.core.batch import Batch
from sparsefleet.metrics.base import PROBABILITY, Metric, Outputs
from sparsefleet.metrics.grouped import MOST, GroupedClicks
from sparsefleet.metrics.labels import first_label


class GroupAUC(Metric):
    """The mean of the groups' AUCs, weighted by their samples, over groups with clicks and others (`Batch.groups`).

    Where samples have weights, they count by them.

    `gauc`, and `gauc_groups`, the groups that it is the mean of. Exact but for ties of predictions closer than 0.6 %
    of their odds, and for inputs of more than `most` pairs of group and bucket: see `metrics/grouped.py`.
    """

    name = "gauc"
    in_training = False
    more_is_better = ("gauc",)

    def __init__(self, most: int = MOST) -> None:
        self._sums = GroupedClicks(most)

    def update(self, batch: Batch, outputs: Outputs) -> None:
        if batch.groups is not None:
            labels = first_label(batch.labels)
            self._sums.count(batch.groups, outputs[PROBABILITY], labels, batch.weights, ranks_only=True)

    def merge(self, other: Self) -> None:
        self._sums.merge(other._sums)

    def to_dict(self) -> dict[str, Any]:
        return self._sums.to_dict()

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        made = cls()
        made._sums = GroupedClicks.from_dict(data)
        return made

    def values(self) -> dict[str, float]:
        table = self._sums.by_group()
        mean = table.mean_auc()
        return {"gauc": mean, "gauc_groups": 0 if math.isnan(mean) else int((table.auc == table.auc).sum())}
