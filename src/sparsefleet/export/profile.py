"""The profile of a bundle: how the samples that its model was trained on are spread, slot by slot and number by number.

A server counts the same of its requests and tells how far they are from it (`serving/drift.py`). FORMAT.md describes
profile.json.

Legend: B samples, S slots, N values, n dense features, K bins.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsefleet.core.batch import F32, I64, U64, Batch
from sparsefleet.core.errors import BundleError
from sparsefleet.core.json_fields import document, short
from sparsefleet.core.schema import Schema
from sparsefleet.export.manifest import BundleFields, NetworkInfo
from sparsefleet.export.rows_file import RowsFile

F64 = npt.NDArray[np.float64]

FORMAT, VERSION = "sparsefleet-profile", 1
KEY_BINS = 64
"""A slot's values are counted by the upper bits of their mixed keys: a value always falls into the same bin."""
LENGTHS = (0, 1, 2, 4, 8, 16, 32)
"""Samples are counted by how many values a slot has: up to each of these, and more."""
NUMBER_BINS = 16
"""A number is counted by bounds that part the training's samples evenly; fewer where many of them are equal."""
MOST_SAMPLES = 100_000
"""Of longer data, evenly spread batches are counted."""


def key_bins(keys: U64) -> I64:
    """[N] The bin of each key: the first six bits of its mixed value, as a rows file orders keys."""
    mixed = (keys ^ (keys >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((mixed ^ (mixed >> np.uint64(31))) >> np.uint64(58)).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Spread:
    """Counts of samples and values; a sum of two is the spread of both."""

    keys_SK: F64
    lengths_SK: F64
    numbers_nK: F64
    values_S: F64
    """Values, where it is known which of them have a row; the counts of the other fields may be of more samples."""
    unknown_S: F64
    """Those of them without one."""

    @staticmethod
    def nothing(slots: int, numbers: int) -> Spread:
        return Spread(
            np.zeros((slots, KEY_BINS)),
            np.zeros((slots, len(LENGTHS) + 1)),
            np.zeros((numbers, NUMBER_BINS)),
            np.zeros(slots),
            np.zeros(slots),
        )

    def add(self, batch: Batch, bounds_nK: F32, by_slot: tuple[I64, I64] | None = None) -> None:
        """`bounds_nK`: the upper bounds of all bins but the last. `by_slot`: values of each slot, and the unknown."""
        slots = len(batch.slots)
        lengths_BS = np.diff(batch.offsets).reshape(-1, slots)
        places_BS = np.broadcast_to(np.arange(slots), lengths_BS.shape)
        slot_of = np.repeat(places_BS.reshape(-1), lengths_BS.reshape(-1))
        self.keys_SK[...] += _counted(slot_of * KEY_BINS + key_bins(batch.keys), self.keys_SK.shape)
        bins = np.searchsorted(LENGTHS, lengths_BS)
        self.lengths_SK[...] += _counted(places_BS * (len(LENGTHS) + 1) + bins, self.lengths_SK.shape)
        if batch.dense.shape[1]:
            bins_Bn = (batch.dense[:, :, None] > bounds_nK).sum(2)
            at = np.arange(batch.dense.shape[1]) * NUMBER_BINS + bins_Bn
            self.numbers_nK[...] += _counted(at, self.numbers_nK.shape)
        if by_slot is not None:
            self.values_S[...] += by_slot[0]
            self.unknown_S[...] += by_slot[1]

    def halve(self) -> None:
        for counts in (self.keys_SK, self.lengths_SK, self.numbers_nK, self.values_S, self.unknown_S):
            counts *= 0.5


def _counted(places: I64, shape: tuple[int, ...]) -> I64:
    return np.bincount(places.reshape(-1), minlength=shape[0] * shape[1]).reshape(shape)


@dataclass(frozen=True, slots=True)
class Profile:
    data: str
    """What was counted, as whoever exported named it."""
    samples: int
    bounds_nK: F32
    """[n, NUMBER_BINS - 1] upper bounds; infinity where there are fewer."""
    spread: Spread

    def to_json(self, schema: Schema) -> bytes:
        spread = self.spread
        slots = {
            name: {
                "keys": _whole(spread.keys_SK[place]),
                "lengths": _whole(spread.lengths_SK[place]),
                "unknown": int(spread.unknown_S[place]),
            }
            for place, name in enumerate(schema.slot_names)
        }
        numbers = {}
        for place, name in enumerate(schema.dense_names):
            bounds = [float(bound) for bound in self.bounds_nK[place] if np.isfinite(bound)]
            counts = _whole(spread.numbers_nK[place])
            numbers[name] = {"bounds": bounds, "counts": counts[: len(bounds) + 1]}
        facts = {"format": FORMAT, "version": VERSION, "data": self.data, "samples": self.samples}
        return (json.dumps({**facts, "slots": slots, "numbers": numbers}, allow_nan=False) + "\n").encode()


def make_profile(
    data: str,
    batches: Iterable[Batch],
    network: NetworkInfo,
    schema: Schema,
    tables: Mapping[str, RowsFile],
) -> Profile:
    """Count samples by the rows that the export has kept."""
    kept, stride, most = [], 1, MOST_SAMPLES
    for number, batch in enumerate(batches):
        if number % stride == 0 and len(batch):
            kept.append(batch)
        while sum(map(len, kept)) > most and len(kept) > 1:  # every other one of what there is, and of what comes
            kept, stride = kept[::2], 2 * stride
    if not kept:
        raise BundleError(f"{data} holds no sample: there is nothing to compare requests with")
    dense = np.concatenate([batch.dense for batch in kept])
    bounds_nK = np.full((len(schema.dense), NUMBER_BINS - 1), np.inf, np.float32)
    for place in range(len(schema.dense)):
        parted = np.unique(np.quantile(dense[:, place], np.arange(1, NUMBER_BINS) / NUMBER_BINS, method="lower"))
        bounds_nK[place, : len(parted)] = parted
    spread = Spread.nothing(len(schema.slots), len(schema.dense))
    of_slot = {slot: entry.table for entry in network.embeddings for slot in entry.slots}
    for batch in kept:
        spread.add(batch, bounds_nK, _known(batch, of_slot, tables))
    return Profile(data, len(dense), bounds_nK, spread)


def _known(batch: Batch, of_slot: Mapping[str, str], tables: Mapping[str, RowsFile]) -> tuple[I64, I64]:
    """[S] values, and those without a row; a slot that the network does not look up has neither."""
    values, unknown = np.zeros(len(batch.slots), np.int64), np.zeros(len(batch.slots), np.int64)
    for place, slot in enumerate(batch.slots):
        if slot in of_slot:
            keys, _ = batch.slot(slot)
            values[place] = len(keys)
            unknown[place] = len(keys) - int(np.count_nonzero(tables[of_slot[slot]].lookup(keys)[1]))
    return values, unknown


def parse_profile(data: bytes, schema: Schema, where: str) -> Profile:
    fields = BundleFields(document(data, where, BundleError), where)
    fields.header(FORMAT, VERSION, VERSION, "profile")
    told, samples = fields.text("data"), fields.integer("samples", 1)
    slots, numbers = fields.child("slots"), fields.child("numbers")
    spread = Spread.nothing(len(schema.slots), len(schema.dense))
    bounds_nK = np.full((len(schema.dense), NUMBER_BINS - 1), np.inf, np.float32)
    for place, name in enumerate(schema.slot_names):
        part = slots.child(name)
        spread.keys_SK[place] = _counts(part, "keys", KEY_BINS)
        spread.lengths_SK[place] = _counts(part, "lengths", len(LENGTHS) + 1)
        spread.unknown_S[place] = part.integer("unknown")
        spread.values_S[place] = spread.keys_SK[place].sum()
        part.end()
    for place, name in enumerate(schema.dense_names):
        part = numbers.child(name)
        bounds = part.items("bounds", _number)
        if len(bounds) >= NUMBER_BINS or list(bounds) != sorted(set(bounds)):
            raise part.fail("bounds", f"is {short(bounds)}; wanted are up to {NUMBER_BINS - 1} numbers that ascend")
        bounds_nK[place, : len(bounds)] = bounds
        spread.numbers_nK[place, : len(bounds) + 1] = _counts(part, "counts", len(bounds) + 1)
        part.end()
    for each in (slots, numbers, fields):
        each.end()
    return Profile(told, samples, bounds_nK, spread)


def _counts(fields: BundleFields, name: str, wanted: int) -> list[int]:
    found = fields.items(name, _count)
    if len(found) != wanted:
        raise fields.fail(name, f"has {len(found)} counts; wanted are {wanted}")
    return list(found)


def _count(item: Any, where: str) -> int:
    if not isinstance(item, int) or isinstance(item, bool) or not 0 <= item < 2**53:
        raise BundleError(f"{where}: wanted is a count, got {short(item)}")
    return item


def _number(item: Any, where: str) -> float:
    if not isinstance(item, int | float) or isinstance(item, bool) or not abs(item) < 3.4e38:
        raise BundleError(f"{where}: wanted is a number, got {short(item)}")
    return float(item)


def _whole(counts: F64) -> list[int]:
    return [int(count) for count in counts]
