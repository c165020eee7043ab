"""Thin bundles: everything but the rows, for servers that read those from Redis.

The manifest is the whole bundle's, rows files included: their checksums say which rows in Redis belong to it.
"""

from __future__ import annotations

import os
import shutil
import uuid
from pathlib import Path

from sparsefleet.core.errors import BundleError
from sparsefleet.export import manifest as manifests
from sparsefleet.export.bundle import Bundle, is_remote, local_path
from sparsefleet.export.manifest import BundleFile
from sparsefleet.export.remote import RemoteFolder, check_free, put_bundle


def check_thin(out: str) -> None:
    """BundleError where something has that name already, for whoever has much to do before `write_thin`."""
    if is_remote(out):
        check_free(out)
    elif (target := local_path(out)).exists():
        raise BundleError(f"cannot write a thin bundle to {target}: it exists; give it a name of its own")


def write_thin(bundle: Bundle, out: str) -> None:
    """Write a bundle without its rows to a folder (or a URI) that does not exist yet."""
    check_thin(out)
    files = thin_files(bundle)
    if is_remote(out):
        put_bundle(bundle.path, RemoteFolder(out), files, lambda what: None)
        return
    target = local_path(out)
    draft = target.with_name(f".{target.name}.tmp-{uuid.uuid4().hex[:12]}")
    try:
        draft.mkdir(parents=True)
        for path in (*(entry.path for entry in files), manifests.MANIFEST):
            _copy(bundle.path / path, draft / path)
        draft.rename(target)
    except OSError as error:
        raise BundleError(f"cannot write {target}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def thin_files(bundle: Bundle) -> tuple[BundleFile, ...]:
    rows = {table.path for table in bundle.manifest.tables}
    return tuple(entry for entry in bundle.manifest.files if entry.path not in rows)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with source.open("rb") as file, target.open("xb") as out:
        shutil.copyfileobj(file, out)
        out.flush()
        os.fsync(out.fileno())
