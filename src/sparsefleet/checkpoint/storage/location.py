"""Location: a path on some storage, made from a local path or a URI."""

from __future__ import annotations

import os
import posixpath
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from pyarrow import fs

from sparsefleet.checkpoint.storage.arrow import ArrowStorage
from sparsefleet.checkpoint.storage.base import Entry, Output, Storage
from sparsefleet.checkpoint.storage.local import LocalStorage
from sparsefleet.core.errors import CheckpointError
from sparsefleet.core.filesystems import open_filesystem


@dataclass(frozen=True, slots=True)
class Location:
    """`location / "name"` goes down; `str(location)` is what another process can `locate` again."""

    storage: Storage
    path: str
    uri: str = ""
    """What the user gave, extended as we go down; empty for local paths."""

    def __truediv__(self, name: str) -> Location:
        uri = self.uri
        if uri:
            parts = urlsplit(uri)
            uri = urlunsplit(parts._replace(path=posixpath.join(parts.path, name)))
        return Location(self.storage, posixpath.join(self.path, name), uri)

    def __str__(self) -> str:
        return self.uri or self.path

    @property
    def name(self) -> str:
        return posixpath.basename(self.path)

    @property
    def parent(self) -> Location:
        uri = self.uri
        if uri:
            parts = urlsplit(uri)
            uri = urlunsplit(parts._replace(path=posixpath.dirname(parts.path)))
        return Location(self.storage, posixpath.dirname(self.path), uri)

    def open_output(self) -> Output:
        return self.storage.open_output(self.path)

    def open_input(self) -> Any:
        return self.storage.open_input(self.path)

    def size(self) -> int | None:
        return self.storage.size(self.path)

    def list(self) -> list[Entry]:
        return self.storage.list(self.path)


AnyPath = str | os.PathLike[str] | Location


def locate(path: AnyPath) -> Location:
    """A local path, `file://…`, or any URI that pyarrow knows (s3://, gs://, hdfs://, …)."""
    if isinstance(path, Location):
        return path
    text = os.fspath(path)
    if "://" not in text:
        if not text or "\0" in text:
            raise CheckpointError(f"{text!r} is not a path")
        return Location(LocalStorage(), os.path.abspath(os.path.expanduser(text)))
    filesystem, inner = open_filesystem(text, CheckpointError)
    if isinstance(filesystem, fs.LocalFileSystem):
        return Location(LocalStorage(), os.path.abspath(inner))
    parts = urlsplit(text)
    return Location(
        ArrowStorage(filesystem), inner.rstrip("/"), urlunsplit(parts._replace(path=parts.path.rstrip("/")))
    )
