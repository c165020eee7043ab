"""Data files behind URIs: listing them, their sizes, and reading any range of one, over again where a read fails.

A file is named by its URI with all that the user gave (`s3://bucket/part-0?region=eu-west-1`), so a name alone is
enough to open it, in any process.
"""

from __future__ import annotations

import fnmatch
import glob
import io
import logging
import posixpath
import time
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import quote, unquote, urlsplit, urlunsplit

import pyarrow as pa
from pyarrow import fs

from sparsefleet.core.errors import DataError
from sparsefleet.core.filesystems import open_filesystem

logger = logging.getLogger("sparsefleet.data")

BUFFER = 4 << 20
"""Bytes asked for at a time where a file is read through: a request has its price, however little it fetches."""
WAITS = (0.2, 1.0, 4.0)
"""Seconds before a read that failed is tried again. After the last, the error is the caller's."""
FINAL = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)

T = TypeVar("T")


def with_name(uri: str, path: str) -> str:
    """The URI with another path: the same place, with the same options."""
    return urlunsplit(urlsplit(uri)._replace(path=quote(path)))


def list_remote(uri: str) -> list[tuple[str, bool]]:
    """(URI, whether it is a folder) of all that is directly in a folder; nothing where there is no such folder."""
    filesystem, inner = open_filesystem(uri, DataError)
    path = urlsplit(uri).path
    found = _tried(
        uri, lambda: filesystem.get_file_info(fs.FileSelector(inner.rstrip("/") or inner, allow_not_found=True))
    )
    folder = fs.FileType.Directory
    return [(with_name(uri, posixpath.join(unquote(path), info.base_name)), info.type == folder) for info in found]


def expand_remote(uri: str) -> list[str]:
    """The files that a pattern stands for: `*` and `[…]` in any part of its path."""
    path = unquote(urlsplit(uri).path)
    parts = path.split("/")
    first = next(place for place, part in enumerate(parts) if glob.has_magic(part))
    folders = [with_name(uri, "/".join(parts[:first]) or "/")]
    for place, part in enumerate(parts[first:], first):
        last = place == len(parts) - 1
        entries = [entry for folder in folders for entry in list_remote(folder)]
        named = [(name, is_dir) for name, is_dir in entries if fnmatch.fnmatchcase(base_name(name), part)]
        folders = [name for name, is_dir in named if is_dir != last]
    return folders


def base_name(uri: str) -> str:
    return posixpath.basename(unquote(urlsplit(uri).path).rstrip("/"))


def kind_of(uri: str) -> str:
    """file, folder or nothing."""
    info = _info(uri)
    return {fs.FileType.File: "file", fs.FileType.Directory: "folder"}.get(info.type, "nothing")


def size_of(uri: str) -> int:
    """Bytes; an OSError of the usual kinds where there is no such file."""
    info = _info(uri)
    if info.type == fs.FileType.NotFound:
        raise FileNotFoundError(f"there is no {uri}")
    if info.type == fs.FileType.Directory:
        raise IsADirectoryError(f"{uri} is a folder")
    return int(info.size)


def _info(uri: str) -> Any:
    filesystem, inner = open_filesystem(uri, DataError)
    return _tried(uri, lambda: filesystem.get_file_info(inner.rstrip("/") or inner))


class RemoteFile(io.RawIOBase):
    """A file behind a URI, open for reading at any place. A read that fails is tried again on a fresh connection."""

    def __init__(self, uri: str) -> None:
        super().__init__()
        self._uri, self._at = uri, 0
        self._filesystem, self._inner = open_filesystem(uri, DataError)
        self._file: Any = None
        self.size: int = _tried(uri, self._open)

    def _open(self) -> int:
        self._close_file()
        self._file = self._filesystem.open_input_file(self._inner)
        return int(self._file.size())

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}[whence]
        if base + offset < 0:
            raise ValueError(f"seek to {base + offset}")
        self._at = base + offset
        return self._at

    def readinto(self, target: Any) -> int:
        view = memoryview(target).cast("B")
        wanted = min(len(view), self.size - self._at)
        if wanted <= 0:
            return 0

        def read() -> bytes:
            if self._file is None:
                self._open()
            data: bytes = self._file.read_at(wanted, self._at)
            if not data:
                raise OSError(f"nothing came at byte {self._at} of {self.size}")
            return data

        data = _tried(self._uri, read, self._close_file)
        view[: len(data)] = data
        self._at += len(data)
        return len(data)

    def close(self) -> None:
        self._close_file()
        super().close()

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except (OSError, pa.ArrowException):
                return


def _tried(uri: str, call: Callable[[], T], before_next: Callable[[], None] = lambda: None) -> T:
    for wait in WAITS:
        try:
            return call()
        except FINAL:
            raise
        except (OSError, pa.ArrowException) as error:
            logger.warning("%s: %s; trying again in %g s", uri, first_line(error), wait)
            before_next()
            time.sleep(wait)
    return call()


def first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
