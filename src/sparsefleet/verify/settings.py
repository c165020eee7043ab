"""Question 3: are the serving settings right? What every place says of itself, side by side.

A setting is a name, and for each place that has a word on it {item: value}: "hash prefixes" is one setting with an item
for each slot, so that a difference is told by its slot.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from sparsefleet.checkpoint import Checkpoint
from sparsefleet.core.errors import ConfigError, SparseFleetError
from sparsefleet.core.schema import Schema
from sparsefleet.core.schema.kept_values import kept_hashes
from sparsefleet.export.bundle import Bundle
from sparsefleet.export.exporting import inputs_of
from sparsefleet.export.manifest import ZEROS
from sparsefleet.nn.embedding import SparseEmbedding
from sparsefleet.serving.describe import described
from sparsefleet.verify.pruned import left_out
from sparsefleet.verify.report import Check

Items = Mapping[str, Any]
Settings = Mapping[str, Items]
"""What one place says: {setting: {item: value}}."""

SAME = "the same"
TOLD_ONLY = {"made from"}
"""A copied or renamed checkpoint is still the one that it was made from: its step and its parameters decide."""


def offline_settings(checkpoint: Checkpoint, schema: Schema, model: nn.Module, bundle: Bundle) -> Settings:
    unneeded = left_out(model, bundle)
    embeddings = {
        name: {"table": module.table, "dim": module.dim, "slots": list(module.slots), "pooling": module.pooling}
        for name, module in model.named_modules()
        if isinstance(module, SparseEmbedding) and name not in unneeded
    }
    manifest = checkpoint.manifest
    inputs, told = inputs_of(checkpoint), bundle.inputs
    if inputs is not None and told is not None and told == inputs.vouched():
        inputs = told  # exported so: raw values, too, are read as the training's
    return {
        **_schema_settings(schema if inputs is None else inputs.served_schema(schema)),
        **_inputs_settings(None if inputs is None else inputs.to_dict()),
        **_embedding_settings(embeddings),
        # Training and `sparsefleet infer` have no option for this: they always take zeros.
        "unknown and missing values": {
            f"{what} in {name}": ZEROS for name in embeddings for what in ("unknown", "missing")
        },
        "step": {"step": manifest.step},
        "made from": {"checkpoint": checkpoint.location.name, "saved": manifest.created},
    }


def bundle_settings(bundle: Bundle) -> Settings:
    return told_settings(described(bundle), str(bundle.path))


def told_settings(told: Mapping[str, Any], where: str) -> Settings:
    """The settings in a description of a bundle, which is also what a server answers to GET /v1/model."""
    try:
        embeddings = {entry["module"]: entry for entry in told["embeddings"]}
        origin = told["checkpoint"]
        return {
            **_schema_settings(Schema.from_dict(told["schema"], where)),
            **_inputs_settings(told.get("inputs")),
            **_embedding_settings(embeddings),
            "unknown and missing values": {
                f"{what} in {name}": entry[what]
                for name, entry in embeddings.items()
                for what in ("unknown", "missing")
            },
            "step": {"step": origin["step"]},
            "made from": {"checkpoint": origin["name"], "saved": origin["created"]},
            "version": {"version": told["version"], "id": told["id"]},
            "row types": {table["name"]: table["dtype"] for table in told["tables"]},
            "rows left out": {"met fewer times than": told["min_seen"]},
            "files": dict(told["checksums"]),
        }
    except (KeyError, TypeError, AttributeError, ConfigError) as error:
        raise SparseFleetError(f"{where} does not tell its settings as this release does: {error!r}") from error


def _schema_settings(schema: Schema) -> dict[str, Items]:
    return {
        "slots": _ordered(schema.slot_names),
        "dense features": _ordered(schema.dense_names),
        "labels": _ordered(schema.labels),
        "hash seed": {"hash_seed": schema.hash_seed},
        "hash prefixes": {slot.name: slot.prefix.decode() for slot in schema.slots},
        "folding of keys": {"sparse_feature_dim": schema.sparse_feature_dim},
        "normalisation": {f.name: f"(x - {f.minimum:.17g}) / {f.diff:.17g}" for f in schema.dense},
        "transforms": {
            **{feature.name: str(feature) for feature in schema.dense if not feature.plain},
            **{slot.name: str(slot) for slot in schema.slots if not slot.plain},
        }
        or {"transforms": "none"},
        "kept values": {slot.name: _kept(slot.kept) for slot in schema.slots if slot.kept is not None}
        or {"kept values": "all"},
    }


def _kept(text: str) -> str:
    count = len(kept_hashes(text, "kept values"))
    return f"{count:,} values, {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _inputs_settings(told: Mapping[str, Any] | None) -> dict[str, Items]:
    """What of a sample comes ready, and what the schema hashes and normalises; nothing where a place does not say."""
    return {} if told is None else {"inputs": {**told["dense"], **told["slots"]}}


def _embedding_settings(embeddings: Mapping[str, Mapping[str, Any]]) -> dict[str, Items]:
    return {
        "pooling": {name: entry["pooling"] for name, entry in embeddings.items()},
        "embeddings": {
            name: f"{entry['dim']} values from table {entry['table']} for {', '.join(entry['slots'])}"
            for name, entry in embeddings.items()
        },
    }


def _ordered(names: Sequence[str]) -> Items:
    return {f"number {index}": name for index, name in enumerate(names, 1)}


def compare_settings(places: Mapping[str, Settings]) -> list[Check]:
    names = dict.fromkeys(name for settings in places.values() for name in settings)
    return [_compared(name, {place: said[name] for place, said in places.items() if name in said}) for name in names]


def _compared(name: str, said: Mapping[str, Items]) -> Check:
    items = dict.fromkeys(item for values in said.values() for item in values)
    differing = {}
    for item in items:
        values = {place: values.get(item) for place, values in said.items()}
        if len({str(value) for value in values.values()}) > 1:
            differing[item] = values
    facts = {"places": list(said), "differences": differing}
    if not differing:
        return Check(name, True, _summary(next(iter(said.values()))), SAME, facts)
    shown = [
        f"{item}: " + ", ".join(f"{value!r} in {place}" for place, value in values.items())
        for item, values in list(differing.items())[:3]
    ]
    more = f"; and {len(differing) - 3} more" if len(differing) > 3 else ""
    ok = None if name in TOLD_ONLY else False
    return Check(name, ok, "; ".join(shown) + more, SAME if ok is False else "", facts)


def _summary(items: Items) -> str:
    values = list(dict.fromkeys(map(str, items.values())))
    text = ", ".join(values)
    return text if len(values) <= 2 and len(text) <= 60 else f"{len(items)} equal"


def check_precision(graph: Any) -> Check:
    """What the network computes in."""
    import onnx

    names = {onnx.TensorProto.DataType.Name(entry.data_type) for entry in graph.initializer}
    kinds = sorted(name.lower() for name in names)
    floats = [kind for kind in kinds if "float" in kind or kind == "double"]
    ok = floats in ([], ["float"])
    figure = f"tensors of the graph: {', '.join(kinds) or 'none'}"
    return Check("precision of the network", ok, figure, "float32", {"types": kinds})
