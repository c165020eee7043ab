"""Unpack archives that may be hostile: plain files and folders only, and none outside of the out folder.

The standard library keeps members inside: tarfile's data filter refuses them, zipfile strips what leads outside.
"""

from __future__ import annotations

import gzip
import io
import os
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sparsefleet.core.errors import ConfigError, DataError
from sparsefleet.datasets.progress import OnProgress, ignore_progress
from sparsefleet.datasets.staging import STAGING_PREFIX, check_space

READ_BYTES = 1 << 20
TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz")


def is_archive(file: Path) -> bool:
    return file.name.lower().endswith((*TAR_SUFFIXES, ".zip", ".gz"))


def unpack(
    archive: str | Path,
    out: str | Path,
    *,
    overwrite: bool = False,
    on_progress: OnProgress = ignore_progress,
) -> list[str]:
    """Unpack into `out`; the names that are new there. All or nothing. Progress is in bytes of the archive."""
    archive, out = Path(archive), Path(out)
    if not is_archive(archive):
        raise ConfigError(f"{archive} is no archive; .tar, .tar.gz, .tgz, .zip and .gz can be unpacked")
    name = archive.name.lower()
    if name.endswith(TAR_SUFFIXES) and not hasattr(tarfile, "data_filter"):
        raise ConfigError(f"{archive}: unpacking it safely takes Python 3.11.4 or later; unpack it by hand")
    stage = out / f"{STAGING_PREFIX}{archive.name}"
    shutil.rmtree(stage, ignore_errors=True)
    try:
        with _explained(archive), io.BufferedReader(_Watched(archive, on_progress), READ_BYTES) as file:
            stage.mkdir(parents=True)
            if name.endswith(TAR_SUFFIXES):
                with tarfile.open(fileobj=file, mode="r:*") as tar:
                    for member in tar:
                        check_space(stage, member.size)
                        tar.extract(member, stage, filter=_plain_members)
            elif name.endswith(".zip"):
                with zipfile.ZipFile(file) as packed:
                    check_space(stage, sum(member.file_size for member in packed.infolist()))
                    packed.extractall(stage)
            else:
                with gzip.open(file) as source, (stage / archive.name[: -len(".gz")]).open("wb") as target:
                    shutil.copyfileobj(source, target, READ_BYTES)
        return _put_in_place(stage, out, archive, overwrite)
    finally:
        shutil.rmtree(stage, ignore_errors=True)


class _Watched(io.FileIO):
    """A file that tells how much of it has been read."""

    def __init__(self, path: Path, on_progress: OnProgress) -> None:
        super().__init__(path)
        self._on_progress, self._read, self._size = on_progress, 0, path.stat().st_size
        on_progress(0, self._size)

    def readinto(self, buffer: Any) -> int:
        count = super().readinto(buffer) or 0
        self._read = min(self._size, self._read + count)
        self._on_progress(self._read, self._size)
        return count


def _plain_members(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo | None:
    # The data filter lets links within the folder pass. Data sets need none, and links have been used to get around it.
    if member.issym() or member.islnk():
        raise tarfile.FilterError(f"{member.name!r} is a link")
    return tarfile.data_filter(member, folder)


@contextmanager
def _explained(archive: Path) -> Iterator[None]:
    try:
        yield
    except tarfile.FilterError as error:
        raise DataError(f"{archive}: refused to unpack: {error}; nothing was unpacked") from error
    except (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise DataError(f"{archive}: damaged or cut off ({error}); --overwrite fetches it again") from error
    except (NotImplementedError, RuntimeError, UnicodeError) as error:  # encrypted, or packed in a way of its own
        raise DataError(f"{archive}: cannot be unpacked ({error}); unpack it by hand") from error


def _put_in_place(stage: Path, out: Path, archive: Path, overwrite: bool) -> list[str]:
    names = sorted(entry.name for entry in stage.iterdir())
    taken = [name for name in names if (out / name).exists() or (out / name).is_symlink()]
    if archive.parent == out and archive.name in names:
        raise DataError(f"{archive}: holds a member of its own name; unpack it by hand")
    if taken and not overwrite:
        shown = ", ".join(taken[:3]) + (", …" if len(taken) > 3 else "")
        raise ConfigError(
            f"{archive}: not unpacked, for {out} already has {shown}; move that away, or give --overwrite to replace it"
        )
    for name in names:
        old = out / name
        if old.is_dir() and not old.is_symlink():
            shutil.rmtree(old)
        os.replace(stage / name, old)
    return names
