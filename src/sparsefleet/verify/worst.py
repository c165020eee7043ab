"""The samples whose scores are furthest apart, with all that went into them: where do the places begin to differ?

Legend: D values a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sparsefleet.core.batch import F32, U64, Batch
from sparsefleet.core.errors import SparseFleetError
from sparsefleet.export.bundle import Bundle
from sparsefleet.export.manifest import EmbeddingInput
from sparsefleet.serving.samples import SampleParser
from sparsefleet.verify.differences import apart, worst
from sparsefleet.verify.offline import KnownRows
from sparsefleet.verify.places import BUNDLE, CHECKPOINT, RowsPlace
from sparsefleet.verify.samples import DataSamples
from sparsefleet.verify.scores import Scored
from sparsefleet.verify.table_rows import row_tolerance

WORST = 10


def worst_samples(
    samples: DataSamples,
    scored: Scored,
    bundle: Bundle,
    offline: Mapping[str, KnownRows],
    places: Mapping[str, RowsPlace],
) -> list[dict[str, Any]]:
    if not scored.online:
        return []
    pairs = ((wanted, found[label]) for found in scored.online.values() for label, wanted in scored.expected.items())
    far = np.max([apart(wanted, found) for wanted, found in pairs], axis=0)
    chosen = worst(far, WORST)
    online = _parsed(samples, chosen, bundle)
    return [
        _sample(
            samples,
            index,
            scored,
            float(far[index]),
            bundle,
            offline,
            places,
            online and online.samples(place, place + 1),
        )
        for place, index in enumerate(chosen)
    ]


def _parsed(samples: DataSamples, chosen: list[int], bundle: Bundle) -> Batch | None:
    """The chosen samples, read with the bundle's schema; None where it cannot read them."""
    try:
        return SampleParser(bundle.schema, max_rows=2**31, inputs=bundle.inputs).samples(
            [samples.raw[index] for index in chosen]
        )
    except SparseFleetError:
        return None


def _sample(
    samples: DataSamples,
    index: int,
    scored: Scored,
    difference: float,
    bundle: Bundle,
    offline: Mapping[str, KnownRows],
    places: Mapping[str, RowsPlace],
    online: Batch | None,
) -> dict[str, Any]:
    trained = samples.batch.samples(index, index + 1)
    first, *more = scored.expected
    everywhere = {CHECKPOINT: scored.trained, **scored.online}
    scores = {name: float(found[first][index]) for name, found in everywhere.items()}
    labelled = {
        name: {label: float(each[index]) for label, each in found.items()} for name, found in everywhere.items()
    }
    return {
        "row": index,
        "where": samples.where[index],
        "difference": difference,
        "scores": scores,
        **({"scores_by_label": labelled} if more else {}),
        "expected": float(scored.expected[first][index]),
        "input": samples.raw[index],
        "dense": _numbers(trained, online, bundle),
        "slots": [
            _slot(embedding, slot, samples.raw[index].get(slot), trained, online, bundle, offline, places)
            for embedding in bundle.network.embeddings
            for slot in embedding.slots
        ],
    }


def _numbers(trained: Batch, online: Batch | None, bundle: Bundle) -> dict[str, Any]:
    """Each dense feature as the network gets it."""
    found = {CHECKPOINT: trained.dense[0].tolist()}
    if online is not None:
        found[BUNDLE] = online.dense[0].tolist()
    names = bundle.schema.dense_names
    return {
        name: {place: values[at] for place, values in found.items() if at < len(values)}
        for at, name in enumerate(names)
    }


def _slot(
    embedding: EmbeddingInput,
    slot: str,
    values: Any,
    trained: Batch,
    online: Batch | None,
    bundle: Bundle,
    offline: Mapping[str, KnownRows],
    places: Mapping[str, RowsPlace],
) -> dict[str, Any]:
    """One slot of one embedding: its values, their keys and their rows, in every place."""
    dtype = next(table.dtype for table in bundle.manifest.tables if table.name == embedding.table)
    keys = {CHECKPOINT: _keys(trained, slot), BUNDLE: _keys(online, slot)}
    rows: dict[str, F32 | None] = {CHECKPOINT: _looked_up(offline.get(embedding.table), keys[CHECKPOINT])}
    for name, place in places.items():
        rows[name] = _read(place, embedding.table, keys[BUNDLE])
    parts = [f"keys in {BUNDLE}"] if keys[CHECKPOINT].tolist() != keys[BUNDLE].tolist() else []
    if not parts:
        parts = [f"rows in {name}" for name in places if _part(rows[CHECKPOINT], rows[name], dtype)]
    return {
        "slot": slot,
        "table": embedding.table,
        "values": values,
        "keys": {name: found.tolist() for name, found in keys.items()},
        "rows": {name: None if found is None else found.tolist() for name, found in rows.items()},
        "parts_at": parts,
    }


def _keys(batch: Batch | None, slot: str) -> U64:
    if batch is None or slot not in batch.slots:
        return np.empty(0, np.uint64)
    return batch.slot(slot)[0]


def _looked_up(known: KnownRows | None, keys: U64) -> F32 | None:
    return None if known is None else known.lookup(keys)[0]


def _read(place: RowsPlace, table: str, keys: U64) -> F32 | None:
    try:
        unique, inverse = np.unique(keys, return_inverse=True)
        return place.source.rows(table, unique)[0][inverse]
    except SparseFleetError:
        return None


def _part(offline: F32 | None, online: F32 | None, dtype: str) -> bool:
    if offline is None or online is None or offline.shape != online.shape:
        return True
    return bool((apart(offline, online) > row_tolerance(offline, dtype)).any())
