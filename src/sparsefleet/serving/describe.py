"""What a bundle is, as plain data: the answer to GET /v1/model, and what `sparsefleet verify` compares."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from sparsefleet.core.inputs import pipe_advice
from sparsefleet.export.bundle import Bundle


def fields_of(bundle: Bundle, allow_missing: bool) -> list[dict[str, Any]]:
    """Every field that a row of a request may have, in the order of rows that are lists, and whether it must."""
    schema, inputs = bundle.schema, bundle.inputs
    used = {slot for entry in bundle.network.embeddings for slot in entry.slots}
    numbers = [
        {
            "name": name,
            "kind": "number",
            "required": not allow_missing,
            "used": bundle.network.dense is not None,
            "takes": "either" if inputs is None else inputs.dense.get(name, "either"),
        }
        for name in schema.dense_names
    ]
    categories = [
        {
            "name": name,
            "kind": "category",
            "required": not allow_missing,
            "used": name in used,
            "takes": "either" if inputs is None else inputs.slots.get(name, "either"),
        }
        for name in schema.slot_names
    ]
    return [*numbers, *categories]


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
