"""The warm-up of a bundle: a few samples, and the scores that they must get wherever the bundle serves.

Samples stand as keys and normalised numbers, so that they test what can fail while a server runs (rows and network)
and depend on nothing else. The first has no values at all; the others have one key of a table in every slot.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from sparsefleet.core.batch import F32, U64, Batch
from sparsefleet.core.errors import BundleError
from sparsefleet.core.json_fields import document, short
from sparsefleet.core.schema import Schema
from sparsefleet.export.manifest import BundleFields, NetworkInfo
from sparsefleet.export.onnx_session import open_session, run_session
from sparsefleet.export.rows_file import RowsFile

FORMAT, VERSION = "sparsefleet-warm-up", 1
SAMPLES = 4
TOLERANCE = 1e-4
"""Processors round differently, and ONNX Runtime chooses kernels by processor: a wrong row is further off than this."""


@dataclass(frozen=True, slots=True)
class WarmUp:
    batch: Batch
    scores: F32

    def problem(self, found: F32) -> str:
        """What is wrong with the scores that these samples got; empty where nothing is."""
        if not np.isfinite(found).all():
            return f"the warm-up's samples score {found.tolist()}, which are not all numbers"
        off = np.abs(found.astype(np.float64) - self.scores)
        worst = int(np.argmax(off))
        if off[worst] > TOLERANCE:
            return f"sample {worst} of the warm-up scores {found[worst]:.6f}; the bundle says {self.scores[worst]:.6f}"
        return ""

    def to_json(self) -> bytes:
        keys, offsets, slots = self.batch.keys, self.batch.offsets, len(self.batch.slots)
        bags = [keys[start:stop].tolist() for start, stop in pairwise(offsets.tolist())]
        samples = [
            {
                "dense": self.batch.dense[index].astype(float).tolist(),
                "keys": bags[index * slots : (index + 1) * slots],
                "score": float(score),
            }
            for index, score in enumerate(self.scores)
        ]
        return (json.dumps({"format": FORMAT, "version": VERSION, "samples": samples}, allow_nan=False) + "\n").encode()


def make_warm_up(graph: bytes, network: NetworkInfo, schema: Schema, tables: Mapping[str, RowsFile]) -> WarmUp:
    """Scores come from the exported rows and network, so they hold for every type of rows."""
    slots = schema.slot_names
    of_slot = {slot: entry.table for entry in reversed(network.embeddings) for slot in entry.slots}
    keys_BS: list[list[list[int]]] = [[[] for _ in slots]]
    for sample in range(1, SAMPLES):
        found = []
        for place, slot in enumerate(slots):
            held: U64 = tables[of_slot[slot]].keys() if slot in of_slot else np.empty(0, np.uint64)
            # Anywhere in the file, but the same in every export.
            found.append([int(held[(sample * 7919 + place * 104729) % len(held)])] if len(held) else [])
        keys_BS.append(found)
    dense = np.tile(np.linspace(0.0, 1.0, SAMPLES, dtype=np.float32)[:, None], (1, len(schema.dense)))
    batch = _batch(dense, keys_BS, slots)
    inputs = {network.dense.input: batch.dense} if network.dense is not None else {}
    for entry in network.embeddings:
        pooled = np.zeros((SAMPLES, entry.width), np.float32)
        for sample, bags in enumerate(keys_BS):
            for place, slot in enumerate(entry.slots):
                if bag := bags[slots.index(slot)]:  # one value: its sum and its mean are its row, and its sequence too
                    row = tables[entry.table].lookup(np.array(bag, np.uint64))[0][0]
                    pooled[sample, place * entry.dim : (place + 1) * entry.dim] = row
                    if entry.length is not None:  # behind the vectors, 1 where there is a value
                        pooled[sample, entry.length * entry.dim] = 1
        inputs[entry.input] = pooled
    scores = run_session(open_session(graph), network.output, inputs)
    if not (np.isfinite(scores) & (scores >= 0) & (scores <= 1)).all():
        raise BundleError(f"the network scores {scores.tolist()}, which are no probabilities: training has diverged")
    return WarmUp(batch, scores)


def parse_warm_up(data: bytes, schema: Schema, where: str) -> WarmUp:
    fields = BundleFields(document(data, where, BundleError), where)
    fields.header(FORMAT, VERSION, VERSION, "warm-up")
    samples = fields.items("samples", lambda item, at: _sample(item, at, schema))
    fields.end()
    if not samples:
        raise fields.fail("samples", "is empty")
    dense = np.array([sample[0] for sample in samples], np.float32).reshape(len(samples), len(schema.dense))
    batch = _batch(dense, [sample[1] for sample in samples], schema.slot_names)
    return WarmUp(batch, np.array([sample[2] for sample in samples], np.float32))


def _sample(item: Any, where: str, schema: Schema) -> tuple[list[float], list[list[int]], float]:
    fields = BundleFields(item, where)
    dense, keys, score = fields.take("dense"), fields.take("keys"), fields.take("score")
    fields.end()
    if not _numbers(dense, len(schema.dense)):
        raise fields.fail("dense", f"is {short(dense)}; wanted are {len(schema.dense)} numbers")
    fits = isinstance(keys, list) and len(keys) == len(schema.slots)
    if not fits or not all(isinstance(bag, list) and all(_key(key) for key in bag) for bag in keys):
        raise fields.fail("keys", f"is {short(keys)}; wanted are {len(schema.slots)} lists of keys")
    if not _numbers([score], 1) or not 0 <= score <= 1:
        raise fields.fail("score", f"is {short(score)}; wanted is a probability")
    return dense, keys, score


def _numbers(value: Any, count: int) -> bool:
    return (
        isinstance(value, list)
        and len(value) == count
        and all(isinstance(one, int | float) and not isinstance(one, bool) and abs(one) < 1e38 for one in value)
    )


def _key(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**64


def _batch(dense: F32, keys_BS: list[list[list[int]]], slots: tuple[str, ...]) -> Batch:
    bags = [bag for sample in keys_BS for bag in sample]
    offsets = np.zeros(len(bags) + 1, np.int64)
    np.cumsum([len(bag) for bag in bags], out=offsets[1:])
    return Batch(
        labels=np.full(len(keys_BS), np.nan, np.float32),
        dense=dense,
        keys=np.array([key for bag in bags for key in bag], np.uint64),
        offsets=offsets,
        slots=slots,
    )
