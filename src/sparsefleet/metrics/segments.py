"""Segments: how good predictions are among samples that have the same value of a slot."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from sparsefleet.core.batch import Batch
from sparsefleet.metrics.base import PROBABILITY, Metric, Outputs
from sparsefleet.metrics.grouped import MOST, GroupedClicks
from sparsefleet.metrics.labels import first_label

SHOWN = 20


class Segments(Metric):
    """By value of one slot. A sample with several values counts for each of them, one with none for none.

    `segment_C1_auc`: the mean of the values' AUCs, weighted by samples; `segment_C1_values`: how many values there are.
    `details` tells of each value by itself. Samples with weights count by them: `rows` and `clicks` are then sums of
    weights.
    """

    in_training = False

    def __init__(self, slot: str, names: Mapping[int, str] | None = None, most: int = MOST) -> None:
        """`names`: what to call keys, where that is known (`Schema` makes keys of raw values)."""
        self.name = f"segment {slot}"
        self.more_is_better = (f"segment_{slot}_auc",)
        self.slot, self._names = slot, dict(names or {})
        self._sums = GroupedClicks(most)

    def update(self, batch: Batch, outputs: Outputs) -> None:
        keys, offsets = batch.slot(self.slot)
        sample = np.repeat(np.arange(len(batch)), np.diff(offsets))
        labels = first_label(batch.labels)
        weights = None if batch.weights is None else batch.weights[sample]
        self._sums.count(keys, outputs[PROBABILITY][sample], labels[sample], weights)

    def merge(self, other: Self) -> None:
        self._sums.merge(other._sums)

    def to_dict(self) -> dict[str, Any]:
        names = {str(key): name for key, name in self._names.items()}
        return {"slot": self.slot, "names": names, **self._sums.to_dict()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        made = cls(str(data["slot"]), {int(key): str(name) for key, name in data["names"].items()})
        made._sums = GroupedClicks.from_dict(data)
        return made

    def values(self) -> dict[str, float]:
        table = self._sums.by_group()
        return {f"segment_{self.slot}_auc": table.mean_auc(), f"segment_{self.slot}_values": len(table.groups)}

    def details(self, most: int = SHOWN) -> Sequence[Mapping[str, Any]]:
        """Values that have a name, and the most frequent ones, as plain data; what cannot be told is None."""
        table = self._sums.by_group()
        order = np.argsort(-table.samples, kind="stable")
        named = [i for i in order.tolist() if int(table.groups[i]) in self._names]
        rest = [i for i in order.tolist()[: most + len(named)] if int(table.groups[i]) not in self._names]
        told = []
        for index in (*named, *rest[: max(0, most - len(named))]):
            samples, clicks, auc = float(table.samples[index]), float(table.clicks[index]), float(table.auc[index])
            key = int(table.groups[index])
            told.append(
                {
                    "slot": self.slot,
                    "value": self._names.get(key),
                    "key": key,
                    "rows": _plain(samples),
                    "clicks": _plain(clicks),
                    "auc": None if math.isnan(auc) else auc,
                    "logloss": float(table.log_loss[index]) / samples if samples else None,
                    "click_ratio": float(table.predicted[index]) / clicks if clicks else None,
                }
            )
        return told

    def unmet(self) -> Sequence[str]:
        """The names of values that no sample had."""
        groups = self._sums.by_group().groups
        keys = np.array(list(self._names), np.uint64)
        unmet = ~np.isin(keys, groups) & self._sums.counts(keys)
        return [name for name, missing in zip(self._names.values(), unmet.tolist(), strict=True) if missing]


def _plain(number: float) -> int | float:
    """Of samples without weights, a whole number. Nine digits of any other, however small weights are."""
    return int(number) if number == int(number) else float(f"{number:.9g}")
