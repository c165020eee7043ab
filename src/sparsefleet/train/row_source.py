"""BatchRows: gives a model the rows of the batch it runs on, and takes their gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from torch import nn

from sparsefleet.core.batch import F32, U64, Batch
from sparsefleet.core.keyed_rows import KeyedRows
from sparsefleet.kernels.rows import counted_keys, select_slots, unique_keys
from sparsefleet.nn.embedding import attach as attach_source
from sparsefleet.nn.embedding import tables
from sparsefleet.nn.lookup import Lookup, slot_places
from sparsefleet.store.base import Each, ParameterStore, Pending

Pull = Callable[[str, U64], Pending[F32]]
PullAll = Callable[[Mapping[str, U64]], Pending[dict[str, F32]]]


def _one_by_one(pull: Pull, asked: Mapping[str, U64]) -> Each[F32]:
    return Each({table: pull(table, keys) for table, keys in asked.items()})


@dataclass(frozen=True, slots=True)
class _BatchKeys:
    """What a batch asks for, and by table where the rows go: (table, slots, inverse, counts, offsets)."""

    batch: Batch
    asked: Mapping[str, U64]
    found: Sequence[tuple[str, tuple[str, ...], Any, Any, Any]]


class BatchRows:
    """A RowSource over any way to pull. One per copy of the model; not shared between threads."""

    def __init__(self, model: nn.Module, pull: Pull, *, training: bool, pull_all: PullAll | None = None) -> None:
        """pull_all: for all tables of a batch at once, in place of `pull`."""
        self._pull_all: PullAll = pull_all or partial(_one_by_one, pull)
        self._training = training
        # The slots of a table are those of all its embeddings: their keys are deduplicated and pulled together, so
        # that a batch asks for a row once and pushes one gradient for it.
        self._slots = {
            name: tuple(dict.fromkeys(slot for user in users for slot in user.slots))
            for name, users in tables(model).items()
        }
        self._batch: Batch | None = None
        self._keys: _BatchKeys | None = None
        """Of the batch that was prepared last."""
        self._lookups: dict[str, Lookup] = {}

    def prepare(self, batch: Batch) -> Mapping[str, U64]:
        """The unique keys of this batch, by table. They are kept for `begin`, which asks for the same arrays."""
        self._keys = self._keys_of(batch)
        return self._keys.asked

    def begin(self, batch: Batch) -> None:
        """Look up all tables for this batch."""
        prepared, self._keys = self._keys, None
        if prepared is None or prepared.batch is not batch:
            prepared = self._keys_of(batch)
        asked = prepared.asked
        rows = self._pull_all(asked).wait()
        for table, slots, inverse, counts, offsets in prepared.found:
            self._lookups[table] = Lookup(asked[table], rows[table], inverse, offsets, slots, self._training, counts)
        self._batch = batch

    def _keys_of(self, batch: Batch) -> _BatchKeys:
        asked: dict[str, U64] = {}
        found = []
        for table, slots in self._slots.items():
            keys, offsets = batch.keys, batch.offsets
            if slots != batch.slots:
                keys, offsets = select_slots(keys, offsets, len(batch.slots), slot_places(batch.slots, slots))
            if self._training:
                unique, inverse, counts = counted_keys(keys)
            else:
                (unique, inverse), counts = unique_keys(keys), None
            asked[table] = unique
            found.append((table, slots, inverse, counts, offsets))
        return _BatchKeys(batch, asked, found)

    def lookup(self, table: str, batch: Batch) -> Lookup:
        if batch is not self._batch:
            self.begin(batch)
        return self._lookups[table]

    def gradients(self) -> dict[str, KeyedRows]:
        """After backward: per table, what the batch asks of each of its keys."""
        asked = {}
        for table, found in self._lookups.items():
            gradient = found.gradient
            if gradient is None:
                # The model did not use this table for this batch. Zeros would still move rows, by Adam's momentum.
                asked[table] = KeyedRows(found.keys[:0], np.empty((0, found.values.shape[1]), np.float32))
            else:
                asked[table] = KeyedRows(found.keys, gradient, found.counts)
        return asked

    def end(self) -> None:
        """Let go of the batch's rows."""
        self._batch, self._lookups = None, {}


def attach(model: nn.Module, store: ParameterStore) -> nn.Module:
    """Let a model read its rows from a store, for calling it by hand; rows that are not there read as zeros."""
    attach_source(model, BatchRows(model, lambda table, keys: store.pull(table, keys, create=False), training=False))
    return model
