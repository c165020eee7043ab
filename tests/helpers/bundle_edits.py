"""Bundles changed behind their makers' back, with checksums that agree."""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnx.numpy_helper


def rewrite(bundle: Path, path: str, data: bytes) -> None:
    """Change a file and make the manifest agree, as somebody who means harm would."""
    (bundle / path).write_bytes(data)
    manifest = json.loads((bundle / "manifest.json").read_text())
    for entry in manifest["files"]:
        if entry["path"] == path:
            entry["bytes"], entry["checksum"] = len(data), f"crc32:{zlib.crc32(data):08x}"
    (bundle / "manifest.json").write_text(json.dumps(manifest))


def with_schema(bundle: Path, copy: Path, edit: Callable[[dict[str, Any]], None]) -> Path:
    """A copy whose schema is another."""
    shutil.copytree(bundle, copy)
    schema = json.loads((copy / "schema.json").read_text())
    edit(schema)
    rewrite(copy, "schema.json", json.dumps(schema).encode())
    return copy


def change_tensor(bundle: Path, copy: Path, name: str, checksums: bool = True) -> Path:
    """A copy of the bundle with one value of one tensor another."""
    shutil.copytree(bundle, copy)
    model = onnx.load_model_from_string((copy / "model.onnx").read_bytes())
    (tensor,) = (entry for entry in model.graph.initializer if entry.name.endswith(name))
    values = onnx.numpy_helper.to_array(tensor).copy()
    values[1, 3] += 0.25
    tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
    data = model.SerializeToString()
    if checksums:
        rewrite(copy, "model.onnx", data)
    else:
        (copy / "model.onnx").write_bytes(data)
    return copy


def failed_checks(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What a report of `verify` complains of, by name."""
    return {
        check["what"]: check
        for part in ("graph", "parameters", "settings", "scores")
        for check in report[part]["checks"]
        if check["ok"] is False
    }
