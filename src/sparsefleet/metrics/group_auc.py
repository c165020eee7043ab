"""GroupAUC: how well samples of the same group (a user, a query) are ranked among themselves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from sparsefleet.core.batch import Batch
from sparsefleet.core.xxh64 import xxh64
from sparsefleet.metrics.base import PROBABILITY, Metric, Outputs
from sparsefleet.metrics.grouped import MOST, GroupedClicks
from sparsefleet.metrics.labels import first_label

NO_GROUP = xxh64(b"")
"""What readers make of no group, or an empty text, where the schema has no `hash_seed`."""


class GroupAUC(Metric):
    """The mean of the groups' AUCs, weighted by their samples, over groups with clicks and others (`Batch.groups`).

    Where samples have weights, they count by them. Samples without a group (no user, or an empty text) are left out:
    they are no group.

    `gauc`, `gauc_groups`, the groups that it is the mean of, and `gauc_ungrouped`, how many samples were left out for
    want of a group. Exact but for ties of predictions closer than 0.6 %
    of their odds, and for inputs of more than `most` pairs of group and bucket: see `metrics/grouped.py`.
    """

    name = "gauc"
    in_training = False
    more_is_better = ("gauc",)

    def __init__(self, most: int = MOST, no_group: int = NO_GROUP) -> None:
        """`no_group`: what samples without a group have in `Batch.groups`; a schema with a `hash_seed` has another."""
        self._sums, self._no_group, self._ungrouped = GroupedClicks(most), np.uint64(no_group), 0

    def update(self, batch: Batch, outputs: Outputs) -> None:
        if batch.groups is None:
            return
        labels, probabilities = first_label(batch.labels), outputs[PROBABILITY]
        groups, weights = batch.groups, batch.weights
        without = groups == self._no_group
        if without.any():
            self._ungrouped += int((without & ((labels == 0) | (labels == 1))).sum())
            labels, probabilities, groups = labels[~without], probabilities[~without], groups[~without]
            weights = None if weights is None else weights[~without]
        self._sums.count(groups, probabilities, labels, weights, ranks_only=True)

    def merge(self, other: Self) -> None:
        self._sums.merge(other._sums)
        self._ungrouped += other._ungrouped

    def to_dict(self) -> dict[str, Any]:
        return {**self._sums.to_dict(), "no_group": int(self._no_group), "ungrouped": self._ungrouped}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        made = cls(no_group=int(data["no_group"]))
        made._sums, made._ungrouped = GroupedClicks.from_dict(data), int(data["ungrouped"])
        return made

    def values(self) -> dict[str, float]:
        table = self._sums.by_group()
        mean = table.mean_auc()
        groups = 0 if math.isnan(mean) else int((table.auc == table.auc).sum())
        return {"gauc": mean, "gauc_groups": groups, "gauc_ungrouped": self._ungrouped}
