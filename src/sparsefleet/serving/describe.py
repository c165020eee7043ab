"""What a bundle is, as plain data: the answer to GET /v1/model, and what `sparsefleet verify` compares."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from sparsefleet.core.inputs import Inputs, pipe_advice
from sparsefleet.core.schema import Schema
from sparsefleet.export.bundle import Bundle


def fields_of(bundle: Bundle, allow_missing: bool) -> list[dict[str, Any]]:
    """Every field that a row of a request may have, in the order of rows that are lists, and whether it must."""
    schema, inputs = bundle.schema, bundle.inputs
    used = {slot for entry in bundle.network.embeddings for slot in entry.slots}
    crossed = {name for slot in schema.slots if slot.name in used for name in slot.cross or ()}
    return [
        {
            "name": name,
            "kind": "number" if name in schema.number_fields else "category",
            "required": not allow_missing,
            "used": (bundle.network.dense is not None and any(feature.source == name for feature in schema.dense))
            or any(slot.source == name and slot.name in used | crossed for slot in schema.slots),
            "takes": "either" if inputs is None else _takes(schema, inputs, name),
        }
        for name in schema.fields
    ]


def _takes(schema: Schema, inputs: Inputs, field: str) -> str:
    """What a field held in training: raw, ready or either."""
    told = [inputs.dense.get(feature.name) for feature in schema.dense if feature.source == field]
    told += [inputs.slots.get(slot.name) for slot in schema.slots if slot.cross is None and slot.source == field]
    return next((word for word in told if word is not None), "either")


def described(bundle: Bundle) -> dict[str, Any]:
    manifest, schema = bundle.manifest, bundle.schema
    return {
        "version": manifest.name,
        "id": manifest.id,
        "created": manifest.created,
        "sparsefleet": manifest.sparsefleet,
        "checkpoint": asdict(manifest.checkpoint),
        "dense": list(schema.dense_names),
        "slots": list(schema.slot_names),
        "labels": list(bundle.labels),
        "schema": schema.to_dict(),
        "inputs": None if bundle.inputs is None else bundle.inputs.to_dict(),
        "requests_hold": "" if bundle.inputs is None else pipe_advice(bundle.inputs),
        "tables": [
            {"name": table.name, "dim": table.dim, "rows": table.rows, "dtype": table.dtype}
            for table in manifest.tables
        ],
        "min_seen": manifest.min_seen,
        "embeddings": [asdict(entry) for entry in bundle.network.embeddings],
        "missing": "zeros",
        "unknown": "zeros",
        "lineage": manifest.lineage.to_dict(),
        "checksums": {entry.path: entry.checksum for entry in manifest.files},
    }
