"""Which files there are, and opening them: every failure names the file and says what to do.

A file is a local path, or the URI of one that pyarrow opens (s3://, hdfs://, …; `data/remote.py`). `file://` is a local
path.
"""

from __future__ import annotations

import glob
import io
import os
import re
import stat
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NoReturn
from urllib.parse import unquote, urlsplit

from sparsefleet.core.errors import DataError
from sparsefleet.core.filesystems import is_uri

GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
RANGE_MARK = "#bytes="

Path = str | os.PathLike[str]


def local_name(path: Path) -> str:
    """The name of a file, as all processes call it: `file://` names are plain paths."""
    text = os.fspath(path)
    if not text.startswith("file://"):
        return text
    file, mark, bytes_ = text.partition(RANGE_MARK)
    parts = urlsplit(file)
    if parts.netloc not in ("", "localhost") or not parts.path:
        raise DataError(f"{text}: not a local file; write file:///folder/file, with three slashes")
    return unquote(parts.path) + mark + bytes_


def natural_key(name: str) -> list[tuple[int, int, str]]:
    """Sorts part-2 before part-10."""
    parts = re.split(r"(\d+)", name)
    return [(1, int(part), "") if part.isdecimal() else (0, 0, part) for part in parts]


def list_files(paths: Path | Iterable[Path]) -> list[str]:
    """The files behind a file, a folder, a glob pattern, or several of them, in the order given; also behind URIs.

    A folder stands for the files directly in it, in natural order (part-2 before part-10), without hidden
    ones (names that start with "." or "_") and without `*.json` and `*.toml`, where schemas and reports are kept.
    Folders in it are passed over; links that lead nowhere and what is no regular file are errors.
    """
    several = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not several:
        raise DataError("no input files were given; give a file, a folder or a pattern")
    return [file for path in several for file in _expand(local_name(path))]


def expanded(names: Iterable[Path]) -> list[str]:
    """As `list_files`, of names of which those of files stay as they are, whether there is such a file or not."""
    given = [local_name(name) for name in names]
    several = {name: _several(name) for name in given if not is_uri(name)}
    if uris := [name for name in given if is_uri(name)]:
        with ThreadPoolExecutor(min(16, len(uris)), "sparsefleet-files") as pool:  # each is a question over a network
            several |= zip(uris, pool.map(_several_elsewhere, uris), strict=True)
    return [file for name in given for file in (_expand(name) if several[name] else [name])]


def _several(path: str) -> bool:
    """Whether a local name is that of a folder, or a pattern; that of a trainer's share of a file is neither."""
    return RANGE_MARK not in path and (os.path.isdir(path) or (glob.has_magic(path) and not os.path.lexists(path)))


def _several_elsewhere(uri: str) -> bool:
    from sparsefleet.data import remote

    if RANGE_MARK in uri:
        return False
    try:
        kind = remote.kind_of(uri)
    except (OSError, DataError):
        return False  # whoever reads it says what is wrong
    return kind == "folder" or (kind == "nothing" and glob.has_magic(urlsplit(uri).path))


def _expand(path: str) -> list[str]:
    if RANGE_MARK in path:  # a trainer's share of a file, as data/split.py names it
        check_file(path.partition(RANGE_MARK)[0])
        return [path]
    if is_uri(path):
        return _expand_uri(path)
    if os.path.isdir(path):
        return _files_of(path)
    if not os.path.exists(path) and glob.has_magic(path):
        found = _regular(glob.glob(path))
        if not found:
            raise DataError(f"{path}: no file matches this pattern; check the folder and the wildcards")
        return sorted(found, key=natural_key)
    check_file(path)
    return [path]


def _expand_uri(path: str) -> list[str]:
    from sparsefleet.data import remote

    try:
        kind = remote.kind_of(path)
        if kind == "folder":
            entries = remote.list_remote(path)
            names = {remote.base_name(name): name for name, is_dir in entries if not is_dir}
            files = [names[name] for name in _data_names(names)]
            return files if files else _no_files(path, _data_names([remote.base_name(name) for name, _ in entries]))
        if kind == "nothing" and glob.has_magic(urlsplit(path).path):
            found = remote.expand_remote(path)
            if not found:
                raise DataError(f"{path}: no file matches this pattern; check the folder and the wildcards")
            return sorted(found, key=natural_key)
    except OSError as error:
        raise _refused(path, error) from error
    check_file(path)
    return [path]


def _data_names(names: Iterable[str]) -> list[str]:
    """Names that can be of data, in natural order."""
    chosen = [name for name in names if not name.startswith((".", "_")) and not name.endswith((".json", ".toml"))]
    return sorted(chosen, key=natural_key)


def _files_of(folder: str) -> list[str]:
    try:
        names = os.listdir(folder)
    except OSError as error:
        raise _refused(folder, error) from error
    names = _data_names(names)
    files = _regular([os.path.join(folder, name) for name in names])
    return files if files else _no_files(folder, names)


def _no_files(folder: str, names: Sequence[str]) -> NoReturn:
    inside = f"one of the folders in it ({', '.join(names[:3])})"
    advice = f"give {inside}" if names else "put part files there, or give another folder"
    raise DataError(
        f"{folder}: the folder holds no data files (hidden files, *.json and *.toml do not count); {advice}"
    )


def _regular(paths: Sequence[str]) -> list[str]:
    """Those that are files, not folders. Whatever else there is was meant to be read, and cannot be."""
    files = [path for path in paths if not os.path.isdir(path)]
    for file in files:
        try:
            _check_regular(file)
        except OSError as error:
            raise _refused(file, error) from error
    return files


def _refused(path: str, error: OSError) -> DataError:
    if os.path.islink(path) and not os.path.exists(path):
        return DataError(f"{path}: a symbolic link to {os.readlink(path)}, which is not there; mend or remove the link")
    if isinstance(error, FileNotFoundError):
        return DataError(f"{path}: no such file or folder; check the path")
    if isinstance(error, IsADirectoryError):
        return DataError(f"{path}: is a folder, not a file; give its files (list_files lists them)")
    if isinstance(error, PermissionError):
        return DataError(f"{path}: no permission to read it; change its mode or owner, or run as a user who may")
    return DataError(f"{path}: cannot be read: {error.strerror or str(error).strip().partition(chr(10))[0]}")


def open_file(path: str) -> io.RawIOBase:
    """The file, open for reading without a buffer."""
    try:
        if is_uri(path):
            from sparsefleet.data.remote import RemoteFile

            return RemoteFile(path)
        _check_regular(path)
        return io.FileIO(path, "rb")
    except OSError as error:
        raise _refused(path, error) from error


def open_through(path: str, buffer: int = 0) -> io.RawIOBase | io.BufferedReader:
    """The file, to be read from some place on: with a buffer of that size, or one that a remote file needs."""
    file = open_file(path)
    if is_uri(path):
        from sparsefleet.data.remote import BUFFER

        return io.BufferedReader(file, max(buffer, BUFFER))
    return io.BufferedReader(file, buffer) if buffer else file


def file_size(path: str) -> int:
    """Bytes; `DataError` where there is no such file."""
    try:
        if is_uri(path):
            from sparsefleet.data.remote import size_of

            return size_of(path)
        _check_regular(path)
        return os.stat(path).st_size
    except OSError as error:
        raise _refused(path, error) from error


def _check_regular(path: str) -> None:
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        # Opening a named pipe that nobody writes to would wait for ever; looking into it would empty it.
        raise DataError(f"{path}: is not a regular file; write the samples to one, or give a pipe_command")


def check_file(path: str) -> int:
    """The size of a file that exists, can be read and is not empty."""
    if is_uri(path):
        size = file_size(path)
    else:
        with open_file(path) as file:
            size = os.fstat(file.fileno()).st_size
    if size == 0:
        raise empty_file(path)
    return size


class EmptyFileError(DataError):
    """A file without a byte, or a compressed one without content."""


def empty_file(path: str) -> EmptyFileError:
    return EmptyFileError(f"{path}: the file is empty; remove it from the list, or write it again")


def is_gzip(path: str) -> bool:
    """By its first bytes, whatever its name; a name that ends in .gz promises them."""
    return _begins_with(GZIP_MAGIC, path, ".gz", "gzip")


def is_zstd(path: str) -> bool:
    """By its first bytes, whatever its name; a name that ends in .zst promises them."""
    return _begins_with(ZSTD_MAGIC, path, ".zst", "zstd")


def _begins_with(magic: bytes, path: str, suffix: str, packing: str) -> bool:
    with open_file(path) as file:
        try:
            found = file.read(len(magic)) or b""
        except OSError as error:
            raise _refused(path, error) from error
    if found and found != magic and path.endswith(suffix):
        raise DataError(f"{path}: the name ends in {suffix} but the content is not {packing}; rename it or compress it")
    return found == magic


def is_packed(path: str) -> bool:
    """Whether its content has to be unpacked: such a file cannot be cut, and read from its beginning only."""
    return is_gzip(path) or is_zstd(path)
