"""Bundles behind URIs (s3://, gs://, abfs://, hdfs://): put there whole, and fetched into a cache on the local disk.

Rows are memory-mapped, so a bundle is always served from a local disk. The cache is `SPARSEFLEET_CACHE`, or
`~/.cache/sparsefleet`. A bundle there has been compared with its manifest, byte by byte, when it was fetched; each
place (the folder above the bundles) keeps its `KEPT` last used ones.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import posixpath
import shutil
import time
import uuid
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from sparsefleet.core.errors import BundleError
from sparsefleet.core.filesystems import open_filesystem
from sparsefleet.export import manifest as manifests
from sparsefleet.export.manifest import BundleFile, BundleManifest

CACHE = "SPARSEFLEET_CACHE"
KEPT = 3
FLAT = ("s3", "gcs", "abfs")
"""Filesystems whose folders are nothing but parts of names."""
STEP = 8 << 20
WAITS = (0.2, 1.0)
"""Seconds before a failed transfer is tried again."""

T = TypeVar("T")
logger = logging.getLogger(__name__)


class RemoteFolder:
    """A folder behind a URI."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        parts = urlsplit(uri)
        if parts.scheme in ("redis", "rediss", "http", "https"):
            raise BundleError(
                f"{shown(uri)!r:.200} is no place for a bundle: give a local path, or a URI such as s3://, gs://, "
                "abfs://, hdfs:// or file://"
            )
        if not parts.path.strip("/"):
            raise BundleError(f"{shown(uri)!r:.200} names a whole bucket; a bundle is a folder in it")
        self._filesystem, inner = open_filesystem(uri, BundleError)
        self._inner = inner.rstrip("/")

    @property
    def shown(self) -> str:
        return shown(self.uri)

    def read(self, name: str, limit: int) -> bytes | None:
        """A small file's bytes; None where there is none."""
        from pyarrow import fs

        def read() -> bytes | None:
            path = posixpath.join(self._inner, name)
            info = self._filesystem.get_file_info(path)
            if info.type != fs.FileType.File:
                return None
            if info.size > limit:
                raise BundleError(f"{self.shown}/{name}: {info.size} bytes; at most {limit} are allowed")
            with self._filesystem.open_input_stream(path) as file:
                data: bytes = file.read(limit + 1)
            return data

        return self._tried(name, read)

    def fetch(self, entry: BundleFile, target: Path) -> None:
        """Copy one file here, and compare it with the manifest on the way."""

        def copy() -> None:
            crc = size = 0
            target.parent.mkdir(parents=True, exist_ok=True)
            path = posixpath.join(self._inner, entry.path)
            with self._filesystem.open_input_stream(path) as file, target.open("wb") as out:
                while (data := file.read(STEP)) and size <= entry.bytes:
                    out.write(data)
                    crc, size = zlib.crc32(data, crc), size + len(data)
                out.flush()
                os.fsync(out.fileno())
            if size != entry.bytes or f"crc32:{crc:08x}" != entry.checksum:
                raise BundleError(
                    f"{self.shown}/{entry.path}: damaged or half uploaded: {size} bytes with crc32:{crc:08x}; the "
                    f"manifest says {entry.bytes} with {entry.checksum}"
                )

        self._tried(entry.path, copy)

    def put(self, name: str, source: Path) -> None:
        def copy() -> None:
            path = posixpath.join(self._inner, name)
            if self._filesystem.type_name not in FLAT:
                self._filesystem.create_dir(posixpath.dirname(path), recursive=True)
            with source.open("rb") as file, self._filesystem.open_output_stream(path, compression=None) as out:
                while data := file.read(STEP):
                    out.write(data)

        self._tried(name, copy)

    def _tried(self, name: str, call: Callable[[], T]) -> T:
        import pyarrow as pa

        for wait in (*WAITS, None):
            try:
                return call()
            except (OSError, pa.ArrowException) as error:
                told = (str(error).strip().splitlines() or [type(error).__name__])[0]
                if wait is None or isinstance(error, FileNotFoundError | PermissionError):
                    raise BundleError(f"{self.shown}/{name}: {told}") from error
                logger.warning("%s/%s: %s; trying again in %g s", self.shown, name, told, wait)
                time.sleep(wait)
        raise AssertionError("the last try returns or raises")


def shown(uri: str) -> str:
    """A URI for messages and logs: without the keys that may stand in it."""
    parts = urlsplit(uri)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="")).rstrip("/")


def beside(uri: str, name: str) -> str:
    """The URI of something in the folder that `uri` names, with the same options."""
    parts = urlsplit(uri)
    return urlunsplit(parts._replace(path=posixpath.join(parts.path, quote(name))))


def read_small(uri: str, limit: int) -> bytes | None:
    """A small file behind a URI; None where there is none."""
    parts = urlsplit(uri)
    folder, name = posixpath.split(parts.path)
    return RemoteFolder(urlunsplit(parts._replace(path=folder))).read(unquote(name), limit)


def fetch_bundle(uri: str, *, rows: bool = True) -> Path:
    """The local copy of a bundle, fetched unless the cache has it. `rows`: its rows files too."""
    remote = RemoteFolder(uri)
    raw = remote.read(manifests.MANIFEST, manifests.MAX_BYTES)
    if raw is None:
        raise BundleError(
            f"no bundle at {remote.shown}: it holds no {manifests.MANIFEST}, so it is none, or half uploaded"
        )
    manifest = manifests.parse_manifest(raw, f"{remote.shown}/{manifests.MANIFEST}")
    place = _cache() / hashlib.sha256(posixpath.dirname(remote.shown).encode()).hexdigest()[:16]
    # The same id may come with other bytes of `created`: the folder is named by the manifest as it is.
    folder = place / f"{manifest.id}-{zlib.crc32(raw):08x}{'' if rows else '-thin'}"
    if not _complete(folder, manifest, rows):
        _download(remote, manifest, raw, folder, rows)
    with contextlib.suppress(OSError):
        os.utime(folder)
    _prune(place, folder)
    return folder


def _complete(folder: Path, manifest: BundleManifest, rows: bool) -> bool:
    try:
        return (folder / manifests.MANIFEST).is_file() and all(
            (folder / entry.path).stat().st_size == entry.bytes for entry in _wanted(manifest, rows)
        )
    except OSError:
        return False


def _wanted(manifest: BundleManifest, rows: bool) -> list[BundleFile]:
    left_out = set() if rows else {table.path for table in manifest.tables}
    return [entry for entry in manifest.files if entry.path not in left_out]


def _download(remote: RemoteFolder, manifest: BundleManifest, raw: bytes, folder: Path, rows: bool) -> None:
    draft = folder.with_name(f".{folder.name}.tmp-{uuid.uuid4().hex[:12]}")
    try:
        draft.mkdir(parents=True)
        for entry in _wanted(manifest, rows):
            remote.fetch(entry, draft / entry.path)
        (draft / manifests.MANIFEST).write_bytes(raw)
        try:
            draft.rename(folder)
        except OSError:
            if _complete(folder, manifest, rows):  # another process was faster
                return
            shutil.rmtree(folder)
            draft.rename(folder)
    except OSError as error:
        raise BundleError(
            f"cannot keep {remote.shown} in {folder.parent}: {error.strerror or error}; {CACHE} names another folder"
        ) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _prune(place: Path, mine: Path) -> None:
    """Remove all but the last used ones. Whoever has one mapped keeps its pages: only the names go."""

    def used(path: Path) -> float:
        try:
            return path.stat().st_mtime
        except OSError:
            return 0.0

    found = sorted((path for path in place.iterdir() if not path.name.startswith(".")), key=used, reverse=True)
    for path in found[KEPT:]:
        if path != mine:
            shutil.rmtree(path, ignore_errors=True)


def _cache() -> Path:
    given = os.environ.get(CACHE)
    if given:
        return Path(given).expanduser().absolute() / "bundles"
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser().absolute() / "sparsefleet" / "bundles"


def check_free(uri: str) -> RemoteFolder:
    """The place for a new bundle. One that is there is refused: an object store cannot replace it in one step."""
    remote = RemoteFolder(uri)
    if remote.read(manifests.MANIFEST, manifests.MAX_BYTES) is not None:
        raise BundleError(
            f"{remote.shown} holds a bundle already. Bundles behind URIs are never replaced, for a server might fetch "
            "half of each: give the new one a name of its own"
        )
    return remote


def put_bundle(folder: Path, remote: RemoteFolder, files: tuple[BundleFile, ...], progress: Any) -> None:
    """Upload a bundle, its manifest last: until that is there, nobody takes the folder for a bundle."""
    for entry in files:
        progress(f"{remote.shown}/{entry.path}")
        remote.put(entry.path, folder / entry.path)
    remote.put(manifests.MANIFEST, folder / manifests.MANIFEST)
