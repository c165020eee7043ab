"""Metrics of models with several labels: which column of the labels belongs to which output, and a metric for each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from sparsefleet.core.batch import F32, Batch
from sparsefleet.core.errors import ConfigError
from sparsefleet.core.schema import Schema
from sparsefleet.metrics.base import Metric, Outputs
from sparsefleet.metrics.clicks import ClickMetrics


def label_names(schema: Schema) -> tuple[str, ...]:
    """Of all labels of a schema, in the order of `Batch.labels`; empty where there is one only."""
    names = schema.labels
    return tuple(names) if len(names) > 1 else ()


def first_label(labels: F32) -> F32:
    """[B], of labels [B] or [B, L]."""
    return labels if labels.ndim == 1 else np.ascontiguousarray(labels[:, 0])


class LabelMetrics(Metric):
    """AUC, log loss and the like of one of several labels: `buy_auc`, `buy_logloss`, …, of samples that have it."""

    def __init__(self, label: str, index: int) -> None:
        """`index`: of its column in the labels. The model's output of the same name is its probability."""
        self.name, self.label = f"label {label}", label
        self._index = index
        self.more_is_better = tuple(f"{label}_{name}" for name in ClickMetrics.more_is_better)
        self.less_is_better = tuple(f"{label}_{name}" for name in ClickMetrics.less_is_better)
        self._sums = ClickMetrics()

    def update(self, batch: Batch, outputs: Outputs) -> None:
        labels = batch.labels.reshape(len(batch), -1)
        if self.label not in outputs or self._index >= labels.shape[1]:
            raise ConfigError(
                f"metrics of label {self.label!r} need the model's probabilities of it and column {self._index + 1} "
                f"of the labels; the model gives {', '.join(outputs)}, the samples have {labels.shape[1]} label(s)"
            )
        self._sums.count(outputs[self.label], labels[:, self._index], batch.weights)

    @property
    def clicks(self) -> ClickMetrics:
        return self._sums

    def merge(self, other: Self) -> None:
        self._sums.merge(other._sums)

    def to_dict(self) -> dict[str, Any]:
        return {"label": self.label, "index": self._index, "sums": self._sums.to_dict()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        made = cls(str(data["label"]), int(data["index"]))
        made._sums = ClickMetrics.from_dict(data["sums"])
        return made

    def values(self) -> dict[str, float]:
        return {f"{self.label}_{name}": value for name, value in self._sums.values().items()}
