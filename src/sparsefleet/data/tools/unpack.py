"""Unpack archives that may be hostile: plain files and folders only, and none outside of the out folder."""

from __future__ import annotations

import gzip
import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

from sparsefleet.core.errors import ConfigError, DataError
from sparsefleet.data.tools.progress import OnProgress, ignore_progress
from sparsefleet.data.tools.staging import STAGING_PREFIX, check_space

COPY_BYTES = 1 << 20
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
    """Unpack into `out`; the names that are new there. All or nothing. Progress is in bytes of the archive.

    Owners, times and special permissions of the archive are not taken over.
    """
    archive, out = Path(archive), Path(out)
    if not is_archive(archive):
        raise ConfigError(f"{archive} is no archive; .tar, .tar.gz, .tgz, .zip and .gz can be unpacked")
    name = archive.name.lower()
    stage = out / f"{STAGING_PREFIX}{archive.name}"
    shutil.rmtree(stage, ignore_errors=True)
    try:
        with _damage_explained(archive):
            stage.mkdir(parents=True)
            on_progress(0, archive.stat().st_size)
            if name.endswith(TAR_SUFFIXES):
                _untar(archive, stage, on_progress)
            elif name.endswith(".zip"):
                _unzip(archive, stage, on_progress)
            else:
                _gunzip(archive, stage, on_progress)
        return _put_in_place(stage, out, archive, overwrite)
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _untar(archive: Path, stage: Path, on_progress: OnProgress) -> None:
    size = archive.stat().st_size
    with archive.open("rb") as on_disk, tarfile.open(fileobj=on_disk, mode="r:*") as tar:
        for member in tar:
            target = _inside(stage, member.name, archive)
            if member.isdir():
                target.mkdir(parents=True, exist_ok=True)
            elif member.isreg():
                source = tar.extractfile(member)
                assert source is not None
                check_space(stage, member.size)
                _copy(source, target, lambda: on_progress(on_disk.tell(), size))
            else:
                kind = "a link" if member.issym() or member.islnk() else "a device or pipe"
                raise _hostile(archive, member.name, f"is {kind}")


def _unzip(archive: Path, stage: Path, on_progress: OnProgress) -> None:
    size = archive.stat().st_size
    done = 0
    with zipfile.ZipFile(archive) as packed:
        for member in packed.infolist():
            kind = stat.S_IFMT(member.external_attr >> 16)
            target = _inside(stage, member.filename, archive)
            if member.is_dir():
                target.mkdir(parents=True, exist_ok=True)
            elif kind not in (0, stat.S_IFREG):
                raise _hostile(archive, member.filename, "is a link" if kind == stat.S_IFLNK else "is a device or pipe")
            elif member.flag_bits & 1:
                raise DataError(f"{archive}: {member.filename!r} is encrypted; unpack it by hand")
            else:
                check_space(stage, member.file_size)
                with packed.open(member) as source:
                    _copy(source, target, lambda: None)
            done += member.compress_size
            on_progress(done, size)


def _gunzip(archive: Path, stage: Path, on_progress: OnProgress) -> None:
    size = archive.stat().st_size
    with archive.open("rb") as on_disk, gzip.open(on_disk) as source:
        _copy(source, stage / archive.name[: -len(".gz")], lambda: on_progress(on_disk.tell(), size))


def _inside(stage: Path, name: str, archive: Path) -> Path:
    """Where the member goes. The stage holds no links, so looking at the name is enough."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name or ":" in name.split("/")[0]:
        raise _hostile(archive, name, "points outside of the folder")
    return stage / path


def _hostile(archive: Path, name: str, what: str) -> DataError:
    return DataError(f"{archive}: refused to unpack: the member {name!r} {what}; nothing was unpacked")


def _copy(source: IO[bytes] | gzip.GzipFile, target: Path, after_piece: Callable[[], None]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as file:
        while piece := source.read(COPY_BYTES):
            file.write(piece)
            after_piece()


@contextmanager
def _damage_explained(archive: Path) -> Iterator[None]:
    try:
        yield
    except (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise DataError(f"{archive}: damaged or cut off ({error}); --overwrite fetches it again") from error
    except (NotImplementedError, UnicodeError) as error:
        raise DataError(f"{archive}: cannot be unpacked ({error})") from error


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
