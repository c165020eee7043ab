"""What is inside a checkpoint, and how two of them differ: plain data for people and programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsefleet.checkpoint.reader import Checkpoint
from sparsefleet.checkpoint.retention import latest
from sparsefleet.checkpoint.storage import AnyPath
from sparsefleet.core.batch import U64
from sparsefleet.core.schema.document import meaning_of
from sparsefleet.core.table_rows import TableRows

BUDGET = 1 << 30
"""Bytes of rows held at once while two tables are compared: larger ones take several passes over the keys."""


def show(path: AnyPath) -> dict[str, Any]:
    """Tables, blocks, sizes, step and positions of a checkpoint, or of the newest one in a folder."""
    checkpoint = Checkpoint.open(latest(path))
    manifest = checkpoint.manifest
    return {
        "path": str(checkpoint.location),
        "step": manifest.step,
        "created": manifest.created,
        "sparsefleet": manifest.sparsefleet,
        "bytes": sum(entry.bytes for entry in manifest.files),
        "base": None if manifest.base is None else manifest.base.name,
        "tables": [
            {
                "name": table.name,
                "rows": checkpoint.row_count(table.name),
                "dim": table.dim,
                "optimizer": table.rule["name"],
                "state_width": table.state_width,
                "step": table.step,
                "files": len(files := manifest.files_of("sparse", table.name)),
                "bytes": sum(entry.bytes for entry in files),
            }
            for table in manifest.tables
        ],
        "blocks": [
            {
                "name": block.name,
                "size": block.size,
                "parameters": {name: list(shape) for name, shape in block.layout},
                "optimizer": block.rule["name"],
                "state_width": block.state_width,
                "step": block.step,
                "files": len(files := manifest.files_of("dense", block.name)),
                "bytes": sum(entry.bytes for entry in files),
            }
            for block in manifest.blocks
        ],
        "buffers": sorted(checkpoint.buffers()),
        "model": dict(manifest.model),
        "inputs": manifest.inputs,
        "positions": dict(manifest.positions),
        "extra": dict(manifest.extra),
    }


def diff(a: AnyPath, b: AnyPath) -> dict[str, Any]:
    """How two checkpoints differ. `same`: everything that training or serving would load is equal.

    Positions, inputs, `extra`, dates, when rows were touched and how they are spread over files do not count; nor does
    the order of lines in the schema (`multislot`): how samples were read is of the inputs.
    """
    first, second = Checkpoint.open(latest(a)), Checkpoint.open(latest(b))
    tables = {name: _table(first, second, name) for name in _names(first, second, "tables")}
    tensors = {
        **_tensors(_parameters(first), _parameters(second)),
        **_tensors(first.buffers(), second.buffers(), prefix="buffers/"),
    }
    result: dict[str, Any] = {
        "a": str(first.location),
        "b": str(second.location),
        "step": [first.manifest.step, second.manifest.step],
        "schema": _fields(_schema(first), _schema(second)),
        "model": _fields(first.manifest.model, second.manifest.model),
        "tables": tables,
        "dense": tensors,
    }
    result["same"] = (
        first.manifest.step == second.manifest.step
        and not result["schema"]
        and not result["model"]
        and all(entry["same"] for entry in [*tables.values(), *tensors.values()])
    )
    return result


def _schema(checkpoint: Checkpoint) -> dict[str, Any]:
    return {name: value for name, value in meaning_of(checkpoint.manifest.schema or {}).items() if name != "multislot"}


def _names(first: Checkpoint, second: Checkpoint, kind: str) -> list[str]:
    names = [item.name for side in (first, second) for item in getattr(side.manifest, kind)]
    return list(dict.fromkeys(names))


def _fields(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Fields that differ: {name: [in a, in b]}, None where there is none."""
    return {name: [a.get(name), b.get(name)] for name in dict.fromkeys([*a, *b]) if a.get(name) != b.get(name)}


def _parameters(checkpoint: Checkpoint) -> dict[str, npt.NDArray[Any]]:
    """Parameters and optimizer state by name, each with its block's name in front."""
    result: dict[str, npt.NDArray[Any]] = {}
    for info in checkpoint.manifest.blocks:
        result.update({f"{info.name}/{name}": array for name, array in checkpoint.dense(info.name).items()})
        if info.state_width:
            result[f"{info.name}/optimizer state"] = checkpoint.dense_cut(info.name).state
    return result


def _tensors(
    a: Mapping[str, npt.NDArray[Any]], b: Mapping[str, npt.NDArray[Any]], prefix: str = ""
) -> dict[str, dict[str, Any]]:
    result: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys([*a, *b]):
        if name not in a or name not in b:
            entry: dict[str, Any] = {"same": False, "only_in": "a" if name in a else "b"}
        elif a[name].shape != b[name].shape or a[name].dtype != b[name].dtype:
            kinds = [f"{array[name].dtype} {list(array[name].shape)}" for array in (a, b)]
            entry = {"same": False, "shapes": kinds}
        else:
            largest = _largest(a[name], b[name])
            entry = {"same": largest == 0, "max_difference": largest}
        result[prefix + name] = entry
    return result


def _table(first: Checkpoint, second: Checkpoint, name: str) -> dict[str, Any]:
    sides = [{table.name: table for table in side.manifest.tables}.get(name) for side in (first, second)]
    a, b = sides
    if a is None or b is None:
        return {"same": False, "only_in": "a" if b is None else "b"}
    spec = {
        field: [getattr(a, field), getattr(b, field)]
        for field in ("dim", "state_width", "step", "seed")
        if getattr(a, field) != getattr(b, field)
    }
    if a.rule["name"] != b.rule["name"]:
        spec["optimizer"] = [a.rule["name"], b.rule["name"]]
    result: dict[str, Any] = {"spec": spec, "rows": [first.row_count(name), second.row_count(name)]}
    if a.dim == b.dim:
        result.update(_rows(first, second, name, with_state=a.state_width == b.state_width))
    differences = ("only_in_a", "only_in_b", "max_difference", "max_state_difference", "seen_differs")
    result["same"] = not spec and all(result.get(what, 0) == 0 for what in differences)
    return result


def _rows(first: Checkpoint, second: Checkpoint, name: str, with_state: bool) -> dict[str, Any]:
    """Compare by key, a share of the keys at a time, so that memory stays within the budget."""
    info = first.manifest.table(name)
    row_bytes = 2 * (12 + 4 * (info.dim + (info.state_width if with_state else 0)))  # once as read, once sorted
    passes = max(1, -(-(first.row_count(name) + second.row_count(name)) * row_bytes // BUDGET))
    only_a = only_b = both = seen_differs = 0
    largest = largest_state = 0.0
    for index in range(passes):
        a = _share(first, name, index, passes, with_state)
        b = _share(second, name, index, passes, with_state)
        _, in_a, in_b = np.intersect1d(a.keys, b.keys, assume_unique=True, return_indices=True)
        both += len(in_a)
        only_a += len(a) - len(in_a)
        only_b += len(b) - len(in_b)
        largest = max(largest, _largest(a.values[in_a], b.values[in_b]))
        largest_state = max(largest_state, _largest(a.state[in_a], b.state[in_b]))
        seen_differs += int(np.count_nonzero(a.seen[in_a] != b.seen[in_b]))
    result = {
        "in_both": both,
        "only_in_a": only_a,
        "only_in_b": only_b,
        "max_difference": largest,
        "seen_differs": seen_differs,
    }
    if with_state:
        result["max_state_difference"] = largest_state
    return result


def _share(checkpoint: Checkpoint, name: str, index: int, passes: int, read_state: bool) -> TableRows:
    def keep(keys: U64) -> npt.NDArray[np.bool_]:
        # Folded keys are small numbers: spread them before they are dealt out.
        spread = (keys * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(32)
        return np.asarray(spread % np.uint64(passes) == np.uint64(index))

    info = checkpoint.manifest.table(name)
    chunks = list(checkpoint.sparse_rows(name, keep if passes > 1 else None, read_state=read_state))
    width = info.state_width if read_state else 0
    empty = TableRows(
        np.empty(0, np.uint64),
        np.empty((0, info.dim), np.float32),
        np.empty((0, width), np.float32),
        np.empty(0, np.uint32),
    )
    parts = [empty, *chunks]
    return TableRows(
        np.concatenate([part.keys for part in parts]),
        np.concatenate([part.values for part in parts]),
        np.concatenate([part.state for part in parts]),
        np.concatenate([part.seen for part in parts]),
    )


def _largest(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> float:
    """Largest absolute difference; NaN equals NaN and is infinitely far from any number."""
    if a.size == 0:
        return 0.0
    if a.dtype.kind != "f":
        return float(np.max(np.abs(a.astype(np.float64) - b.astype(np.float64)))) if not np.array_equal(a, b) else 0.0
    with np.errstate(invalid="ignore"):
        difference = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0, np.abs(a - b))
    return float(np.where(np.isnan(difference), np.inf, difference).max())
