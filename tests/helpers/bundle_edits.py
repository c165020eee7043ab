"""Bundles changed behind their makers' back, with checksums that agree."""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any


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
