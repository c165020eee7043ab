"""Importance: how much worse a saved model gets where one slot, or one dense feature, is shuffled among the samples.

A shuffled feature has the right values at the wrong samples: what the model knew from it is gone, and nothing else has
changed. Samples are shuffled in memory, so they must fit there, or a part of them is taken.

Several features may be made of one column of the data (a price and its range, a user and a cross with the item). With
one of them shuffled, the model still knows the column by the others, and the loss tells less than the column's worth.
So each feature is told with those that read a column of its own, and `by_column` shuffles all features that read a
column together, in one order. A cross then gets the cross of another sample as it is: keys alone do not say what it
would be of one sample's user and another's item.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsefleet.core.batch import Batch
from sparsefleet.core.errors import ConfigError, DataError
from sparsefleet.core.inputs import Inputs
from sparsefleet.core.schema import Schema
from sparsefleet.data.base import BatchStream, Epoch, Reader
from sparsefleet.data.reading import ReadingOptions
from sparsefleet.metrics import LabelMetrics
from sparsefleet.nn.objective import label_names
from sparsefleet.optim import SGD
from sparsefleet.scoring.saved_model import check_inputs, saved_model
from sparsefleet.train import Trainer

Tell = Callable[[int, int], None]
"""Called with how many shuffles are done, and of how many."""


@dataclass(frozen=True)
class Loss:
    """What shuffling one feature costs, or one column of the data."""

    name: str
    kind: str
    """slot, dense or column."""
    auc: float
    """How much AUC falls, in the mean over `repeats`."""
    logloss: float
    """How much log loss grows."""
    spread: float
    """Of `auc` over the repeats: largest less smallest."""
    features: tuple[str, ...] = ()
    """Of a column: those that were shuffled. Of a feature: others that read the same column, and were not."""
    labels: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)
    """Of a model with several labels: `auc` and `logloss` of each; None where the samples have no AUC of it."""


@dataclass(frozen=True)
class Importance:
    rows: int
    metrics: Mapping[str, float]
    """Of the samples as they are: `auc` and `logloss`, of `label`."""
    losses: tuple[Loss, ...]
    """The most important first."""
    label: str = ""
    """Whose AUC and log loss they are, of a model with several labels."""


@dataclass(frozen=True, slots=True)
class _Shuffle:
    """What is shuffled together, and what is told beside it."""

    name: str
    kind: str
    shuffled: tuple[str, ...]
    features: tuple[str, ...]


def measure_importance(
    checkpoint: str,
    files: Sequence[str],
    reading: ReadingOptions,
    *,
    model: str | None = None,
    columns: Sequence[str] = (),
    by_column: bool = False,
    label: str | None = None,
    rows: int | None = None,
    repeats: int = 1,
    seed: int = 0,
    tell: Tell = lambda done, total: None,
) -> Importance:
    """Shuffle one feature at a time and score. `columns`: only these; `rows`: of the first so many samples.

    `by_column`: shuffle one column of the data at a time, in all features that read it; `columns` are then names of
    those. `label`: whose AUC and log loss are told, of a model with several; the first one's otherwise. `model`: where
    the class of a model of one's own is, my_model.py:MyNet.
    """
    if repeats < 1:
        raise ConfigError(f"repeats={repeats} must be 1 or above")
    if rows is not None and rows < 2:
        raise ConfigError(f"rows={rows} must be 2 or above: there is nothing to shuffle")
    network, schema = saved_model(checkpoint, model)
    told = label or schema.label
    if told not in schema.labels:
        raise ConfigError(f"--label {told}: the model has none of that name; it has {', '.join(schema.labels)}")
    chosen = _chosen(_of_columns(schema) if by_column else _of_features(schema), columns)
    samples = reading.open(files, schema)
    check_inputs(checkpoint, samples)  # before a large model is loaded
    known = {*(label_names(network) or ()), told}
    labels = [schema.label, *(name for name in schema.labels[1:] if name in known)]
    others = [LabelMetrics(name, schema.labels.index(name)) for name in labels[1:]]
    trainer = Trainer(SGD(), threads=reading.threads, quiet=True, metrics=others)
    trainer.load(network, checkpoint, values_only=True)
    given = InMemory(samples, rows)
    tell(0, len(chosen))
    whole = trainer.evaluate(network, given)
    plain = _by_label(whole, labels)
    if math.isnan(plain[told]["auc"]):
        of = f"label {told!r}: " if len(labels) > 1 else ""
        raise DataError(f"{of}all samples have the same label, or none: there is no AUC that could fall")
    losses = []
    for number, shuffle in enumerate(chosen):
        found = []
        for again in range(repeats):
            given.shuffle(shuffle.shuffled, np.random.default_rng([seed, again, number]))
            found.append(_by_label(trainer.evaluate(network, given), labels))
        given.restore()
        losses.append(_loss(shuffle, plain, found, told))
        tell(number + 1, len(chosen))
    losses.sort(key=lambda loss: (-loss.auc, -loss.logloss, loss.name))
    metrics = whole if told == schema.label else plain[told]
    return Importance(len(given), metrics, tuple(losses), told if len(labels) > 1 else "")


def _by_label(values: Mapping[str, float], labels: Sequence[str]) -> dict[str, dict[str, float]]:
    """`auc` and `logloss` of each label, as metrics tell them: the first one's have no prefix."""
    prefixes = ["", *(f"{label}_" for label in labels[1:])]
    return {
        label: {name: values[f"{prefix}{name}"] for name in ("auc", "logloss")}
        for label, prefix in zip(labels, prefixes, strict=True)
    }


def _loss(
    shuffle: _Shuffle,
    plain: Mapping[str, Mapping[str, float]],
    found: Sequence[Mapping[str, Mapping[str, float]]],
    told: str,
) -> Loss:
    falls = {label: [plain[label]["auc"] - values[label]["auc"] for values in found] for label in plain}
    grows = {label: [values[label]["logloss"] - plain[label]["logloss"] for values in found] for label in plain}
    each = {label: {"auc": _known(_mean(falls[label])), "logloss": _known(_mean(grows[label]))} for label in plain}
    return Loss(
        shuffle.name,
        shuffle.kind,
        _mean(falls[told]),
        _mean(grows[told]),
        max(falls[told]) - min(falls[told]),
        shuffle.features,
        each if len(plain) > 1 else {},
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _sources(schema: Schema) -> dict[str, frozenset[str]]:
    """Of each slot and dense feature, the columns of the data that it is made of."""
    slots = {slot.name: slot for slot in schema.slots}
    made_of = {
        name: frozenset(slots[part].source for part in slot.cross) if slot.cross else frozenset([slot.source])
        for name, slot in slots.items()
    }
    return {**made_of, **{feature.name: frozenset([feature.source]) for feature in schema.dense}}


def _of_features(schema: Schema) -> list[_Shuffle]:
    sources = _sources(schema)

    def shuffle(name: str, kind: str) -> _Shuffle:
        same = tuple(other for other in sources if other != name and sources[other] & sources[name])
        return _Shuffle(name, kind, (name,), same)

    return [
        *(shuffle(name, "slot") for name in schema.slot_names),
        *(shuffle(name, "dense") for name in schema.dense_names),
    ]


def _of_columns(schema: Schema) -> list[_Shuffle]:
    sources = _sources(schema)
    readers = {column: tuple(name for name in sources if column in sources[name]) for column in schema.fields}
    return [_Shuffle(column, "column", names, names) for column, names in readers.items()]


def _chosen(possible: Sequence[_Shuffle], wanted: Sequence[str]) -> list[_Shuffle]:
    if not wanted:
        return list(possible)
    known = {shuffle.name: shuffle for shuffle in possible}
    for name in wanted:
        if name not in known:
            raise ConfigError(f"--column {name}: the model has none of that name; it has {', '.join(known)}")
    return [known[name] for name in dict.fromkeys(wanted)]


class InMemory(Reader):
    """Samples that are scored again and again, one column of them shuffled."""

    def __init__(self, samples: Reader, rows: int | None) -> None:
        self.schema, self.batch_size, self._inputs = samples.schema, samples.batch_size, samples.inputs()
        self.same_inputs = samples.same_inputs
        self._batches, left = list[Batch](), math.inf if rows is None else rows
        with samples.epoch(1) as epoch:
            for batch in epoch.streams[0]:
                taken = batch if len(batch) <= left else batch.samples(0, int(left))
                self._batches.append(taken)
                samples.consumed(batch)
                left -= len(taken)
                if left <= 0:
                    break
        if not self._batches:
            raise DataError("there are no samples to score")
        self._whole = Batch.concat(self._batches)
        self._shuffled = self._whole

    def __len__(self) -> int:
        return len(self._whole)

    def shuffle(self, features: Sequence[str], random: np.random.Generator) -> None:
        """These slots and dense features, all in the same order."""
        order = random.permutation(len(self._whole))
        slots = [at for at, name in enumerate(self.schema.slot_names) if name in features]
        dense = [at for at, name in enumerate(self.schema.dense_names) if name in features]
        self._shuffled = _slots_shuffled(_dense_shuffled(self._whole, dense, order), slots, order)

    def restore(self) -> None:
        self._shuffled = self._whole

    def epoch(self, threads: int = 1) -> Epoch:
        starts = iter(range(0, len(self._shuffled), self.batch_size))
        taking = threading.Lock()
        return Epoch([_Taking(self._shuffled, starts, self.batch_size, taking) for _ in range(threads)])

    def consumed(self, batch: Batch) -> None:
        """Nothing is resumed."""

    def position(self) -> dict[str, Any]:
        return {}

    def seek(self, position: Mapping[str, Any]) -> None:
        assert not position

    def inputs(self) -> Inputs | None:
        return self._inputs


class _Taking(BatchStream):
    """Batches that threads take as they become free."""

    def __init__(self, whole: Batch, starts: Iterator[int], size: int, taking: threading.Lock) -> None:
        self._whole, self._starts, self._size, self._taking = whole, starts, size, taking

    def __next__(self) -> Batch:
        with self._taking:
            start = next(self._starts)
        return self._whole.samples(start, min(start + self._size, len(self._whole)))


def _dense_shuffled(batch: Batch, at: Sequence[int], order: npt.NDArray[np.int64]) -> Batch:
    if not at:
        return batch
    dense = batch.dense.copy()
    dense[:, at] = batch.dense[:, at][order]
    columns = {**batch.columns(), "dense": dense}
    return Batch.trusted(keys=batch.keys, offsets=batch.offsets, slots=batch.slots, **columns)


def _slots_shuffled(batch: Batch, at: Sequence[int], order: npt.NDArray[np.int64]) -> Batch:
    """Sample i gets the values that sample order[i] has in these slots, however many they are."""
    if not at:
        return batch
    samples, slots = len(batch), len(batch.slots)
    starts = batch.offsets[:-1].reshape(samples, slots).copy()
    lengths = np.diff(batch.offsets).reshape(samples, slots)
    starts[:, at], lengths[:, at] = starts[:, at][order], lengths[:, at][order]
    flat = lengths.ravel()
    offsets = np.zeros(len(flat) + 1, np.int64)
    np.cumsum(flat, out=offsets[1:])
    places = np.arange(offsets[-1]) - np.repeat(offsets[:-1], flat) + np.repeat(starts.ravel(), flat)
    return Batch.trusted(keys=batch.keys[places], offsets=offsets, slots=batch.slots, **batch.columns())
