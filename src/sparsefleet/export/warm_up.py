"""The warm-up of a bundle: a few samples, and the scores that they must get wherever the bundle serves.

Samples stand as keys and normalised numbers, so that they test what can fail while a server runs (rows and network)
and depend on nothing else. The first has no values at all; the others have one key of a table in every slot.

Of a model for several labels, every label's scores are kept (version 2 of the format); of one label, its scores alone
(version 1, as older releases write and read it).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from sparsefleet.core.batch import F32, U64, Batch
from sparsefleet.core.errors import BundleError
from sparsefleet.core.json_fields import document, short
from sparsefleet.core.schema import Schema
from sparsefleet.export.manifest import BundleFields, NetworkInfo
from sparsefleet.export.onnx_session import open_session, run_outputs
from sparsefleet.export.rows_file import RowsFile

FORMAT, VERSION = "sparsefleet-warm-up", 2
SAMPLES = 4
TOLERANCE = 1e-4
"""Processors round differently, and ONNX Runtime chooses kernels by processor: a wrong row is further off than this."""


@dataclass(frozen=True, slots=True)
class WarmUp:
    batch: Batch
    scores: F32
    """[B]; of a model for several labels, those of the first."""
    by_label: Mapping[str, F32] = field(default_factory=dict)
    """Of a model for several labels: [B] of each, the first one's too. Empty for a model of one label, and in bundles
    of releases that kept the first one's scores alone."""

    def problem(self, found: F32, by_label: Mapping[str, F32]) -> str:
        """What is wrong with the scores that these samples got; empty where nothing is.

        `found`: of the first label. `by_label`: of each, where the model is for several.
        """
        if not by_label:
            return _problem("", found, self.scores)
        first = next(iter(by_label))
        for label, values in by_label.items():
            wanted = self.by_label.get(label, self.scores if label == first else None)
            if problem := _problem(f" for {label}", values, wanted):
                return problem
        return ""

    def to_json(self) -> bytes:
        keys, offsets, slots = self.batch.keys, self.batch.offsets, len(self.batch.slots)
        bags = [keys[start:stop].tolist() for start, stop in pairwise(offsets.tolist())]
        samples = [
            {
                "dense": self.batch.dense[index].astype(float).tolist(),
                "keys": bags[index * slots : (index + 1) * slots],
                **self._scores_of(index),
            }
            for index in range(len(self.scores))
        ]
        document = {"format": FORMAT, "version": 2 if self.by_label else 1, "samples": samples}
        return (json.dumps(document, allow_nan=False) + "\n").encode()

    def _scores_of(self, index: int) -> dict[str, Any]:
        if not self.by_label:
            return {"score": float(self.scores[index])}
        return {"scores": {label: float(values[index]) for label, values in self.by_label.items()}}


def _problem(of: str, found: F32, wanted: F32 | None) -> str:
    if not np.isfinite(found).all():
        return f"the warm-up's samples score {found.tolist()}{of}, which are not all numbers"
    if wanted is None:
        return ""
    off = np.abs(found.astype(np.float64) - wanted)
    worst = int(np.argmax(off))
    if off[worst] > TOLERANCE:
        return f"sample {worst} of the warm-up scores {found[worst]:.6f}{of}; the bundle says {wanted[worst]:.6f}"
    return ""


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
    outputs = network.labels or ((schema.label, network.output),)
    scored = run_outputs(open_session(graph), [output for _, output in outputs], inputs)
    for (label, _), scores in zip(outputs, scored, strict=True):
        if not (np.isfinite(scores) & (scores >= 0) & (scores <= 1)).all():
            raise BundleError(
                f"the network scores {scores.tolist()} for {label}, which are no probabilities: training has diverged"
            )
    by_label = {label: scores for (label, _), scores in zip(network.labels, scored, strict=False)}
    return WarmUp(batch, scored[0], by_label)


def parse_warm_up(data: bytes, schema: Schema, network: NetworkInfo, where: str) -> WarmUp:
    fields = BundleFields(document(data, where, BundleError), where)
    version = fields.header(FORMAT, 1, VERSION, "warm-up")
    labels = None if version == 1 else tuple(label for label, _ in network.labels)
    samples = fields.items("samples", lambda item, at: _sample(item, at, schema, labels))
    fields.end()
    if not samples:
        raise fields.fail("samples", "is empty")
    dense = np.array([sample[0] for sample in samples], np.float32).reshape(len(samples), len(schema.dense))
    batch = _batch(dense, [sample[1] for sample in samples], schema.slot_names)
    scores_LB = np.array([sample[2] for sample in samples], np.float32).T
    return WarmUp(batch, scores_LB[0], dict(zip(labels or (), scores_LB, strict=False)))


def _sample(
    item: Any, where: str, schema: Schema, labels: tuple[str, ...] | None
) -> tuple[list[float], list[list[int]], list[float]]:
    """Numbers, keys and scores; `labels`: what the scores are of, None: there is one."""
    fields = BundleFields(item, where)
    dense, keys = fields.take("dense"), fields.take("keys")
    scores = [fields.take("score")] if labels is None else _labelled(fields, labels)
    fields.end()
    if not _numbers(dense, len(schema.dense)):
        raise fields.fail("dense", f"is {short(dense)}; wanted are {len(schema.dense)} numbers")
    fits = isinstance(keys, list) and len(keys) == len(schema.slots)
    if not fits or not all(isinstance(bag, list) and all(_key(key) for key in bag) for bag in keys):
        raise fields.fail("keys", f"is {short(keys)}; wanted are {len(schema.slots)} lists of keys")
    for score in scores:
        if not _numbers([score], 1) or not 0 <= score <= 1:
            name = "score" if labels is None else "scores"
            raise fields.fail(name, f"holds {short(score)}; wanted is a probability")
    return dense, keys, scores


def _labelled(fields: BundleFields, labels: tuple[str, ...]) -> list[Any]:
    """The scores of the labels, in their order."""
    given = fields.take("scores")
    if not isinstance(given, dict) or not labels or tuple(given) != labels:
        raise fields.fail(
            "scores",
            f"is {short(given)}; network.json has the labels {', '.join(labels) or 'none'}: files of two bundles?",
        )
    return [given[label] for label in labels]


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
