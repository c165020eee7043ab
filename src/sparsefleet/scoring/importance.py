"""Importance: how much worse a saved model gets where one slot, or one dense feature, is shuffled among the samples.

A shuffled column has the right values at the wrong samples: what the model knew from it is gone, and nothing else has
changed. Samples are shuffled in memory, so they must fit there, or a part of them is taken.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsefleet.core.batch import Batch
from sparsefleet.core.errors import ConfigError, DataError
from sparsefleet.core.inputs import Inputs
from sparsefleet.core.schema import Schema
from sparsefleet.data.base import BatchStream, Epoch, Reader
from sparsefleet.data.reading import ReadingOptions
from sparsefleet.optim import SGD
from sparsefleet.scoring.saved_model import check_inputs, saved_model
from sparsefleet.train import Trainer

Tell = Callable[[int, int], None]
"""Called with how many columns are done, and of how many."""


@dataclass(frozen=True)
class Loss:
    """What shuffling one column costs."""

    name: str
    kind: str
    """slot or dense."""
    auc: float
    """How much AUC falls, in the mean over `repeats`."""
    logloss: float
    """How much log loss grows."""
    spread: float
    """Of `auc` over the repeats: largest less smallest."""


@dataclass(frozen=True)
class Importance:
    rows: int
    metrics: Mapping[str, float]
    """Of the samples as they are."""
    losses: tuple[Loss, ...]
    """The most important first."""


def measure_importance(
    checkpoint: str,
    files: Sequence[str],
    reading: ReadingOptions,
    *,
    model: str | None = None,
    columns: Sequence[str] = (),
    rows: int | None = None,
    repeats: int = 1,
    seed: int = 0,
    tell: Tell = lambda done, total: None,
) -> Importance:
    """Shuffle one column at a time and score. `columns`: only these; `rows`: of the first so many samples.

    `model`: where the class of a model of one's own is, my_model.py:MyNet.
    """
    if repeats < 1:
        raise ConfigError(f"repeats={repeats} must be 1 or above")
    if rows is not None and rows < 2:
        raise ConfigError(f"rows={rows} must be 2 or above: there is nothing to shuffle")
    network, schema = saved_model(checkpoint, model)
    chosen = _columns(schema, columns)
    samples = reading.open(files, schema)
    check_inputs(checkpoint, samples)  # before a large model is loaded
    trainer = Trainer(SGD(), threads=reading.threads, quiet=True)
    trainer.load(network, checkpoint, values_only=True)
    given = InMemory(samples, rows)
    tell(0, len(chosen))
    plain = trainer.evaluate(network, given)
    if math.isnan(plain["auc"]):
        raise DataError("all samples have the same label, or none: there is no AUC that could fall")
    losses = []
    for number, (name, kind) in enumerate(chosen):
        found = []
        for again in range(repeats):
            given.shuffle(name, kind, np.random.default_rng([seed, again, number]))
            found.append(trainer.evaluate(network, given))
        given.restore()
        falls = [plain["auc"] - values["auc"] for values in found]
        grows = [values["logloss"] - plain["logloss"] for values in found]
        losses.append(Loss(name, kind, _mean(falls), _mean(grows), max(falls) - min(falls)))
        tell(number + 1, len(chosen))
    losses.sort(key=lambda loss: (-loss.auc, -loss.logloss, loss.name))
    return Importance(len(given), plain, tuple(losses))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _columns(schema: Schema, wanted: Sequence[str]) -> list[tuple[str, str]]:
    all_columns = [*((name, "slot") for name in schema.slot_names), *((name, "dense") for name in schema.dense_names)]
    if not wanted:
        return all_columns
    kinds = dict(all_columns)
    for name in wanted:
        if name not in kinds:
            raise ConfigError(f"--column {name}: the model has none of that name; it has {', '.join(kinds)}")
    return [(name, kinds[name]) for name in dict.fromkeys(wanted)]


class InMemory(Reader):
    """Samples that are scored again and again, one column of them shuffled."""

    def __init__(self, samples: Reader, rows: int | None) -> None:
        self.schema, self.batch_size, self._inputs = samples.schema, samples.batch_size, samples.inputs()
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

    def shuffle(self, name: str, kind: str, random: np.random.Generator) -> None:
        order = random.permutation(len(self._whole))
        shuffled = _slot_shuffled if kind == "slot" else _dense_shuffled
        at = (self.schema.slot_names if kind == "slot" else self.schema.dense_names).index(name)
        self._shuffled = shuffled(self._whole, at, order)

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


def _dense_shuffled(batch: Batch, at: int, order: npt.NDArray[np.int64]) -> Batch:
    dense = batch.dense.copy()
    dense[:, at] = batch.dense[order, at]
    columns = {**batch.columns(), "dense": dense}
    return Batch.trusted(keys=batch.keys, offsets=batch.offsets, slots=batch.slots, **columns)


def _slot_shuffled(batch: Batch, at: int, order: npt.NDArray[np.int64]) -> Batch:
    """Sample i gets the values that sample order[i] has in this slot, however many they are."""
    samples, slots = len(batch), len(batch.slots)
    starts = batch.offsets[:-1].reshape(samples, slots).copy()
    lengths = np.diff(batch.offsets).reshape(samples, slots)
    starts[:, at], lengths[:, at] = starts[order, at], lengths[order, at]
    flat = lengths.ravel()
    offsets = np.zeros(len(flat) + 1, np.int64)
    np.cumsum(flat, out=offsets[1:])
    places = np.arange(offsets[-1]) - np.repeat(offsets[:-1], flat) + np.repeat(starts.ravel(), flat)
    return Batch.trusted(keys=batch.keys[places], offsets=offsets, slots=batch.slots, **batch.columns())
