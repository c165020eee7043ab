"""Local paths: everything is synced to disk, directories are renamed."""

from __future__ import annotations

import os
import shutil
import stat
from io import BufferedWriter
from typing import Any

import pyarrow as pa

from sparsefleet.checkpoint.storage.base import Entry, Storage

SETTLE_BYTES = 32 << 20
"""A large file goes to disk piece by piece, and each piece leaves the page cache then."""
_CAN_SETTLE = hasattr(os, "fdatasync") and hasattr(os, "posix_fadvise")  # not on macOS


class SyncedFile:
    """A plain file that is on disk, not just in the page cache, once `close` returns.

    A large one is not in the page cache at all: nobody reads a checkpoint soon, as a rule, and it would drive out the
    data that is trained on. It also costs less: the pages of one piece serve for the next, where each would otherwise
    ask for new memory, which a virtual machine has to get from its host.
    """

    def __init__(self, path: str) -> None:
        self._file: BufferedWriter = open(path, "xb")  # noqa: SIM115  (closed by `close`)
        self._unsettled = 0
        self._large = False

    def write(self, data: bytes) -> int:
        count = self._file.write(data)
        self._unsettled += count
        if self._unsettled >= SETTLE_BYTES and _CAN_SETTLE:
            self._file.flush()
            os.fdatasync(self._file.fileno())
            self._large = True
            self._leave_page_cache()
        return count

    def _leave_page_cache(self) -> None:
        self._unsettled = 0
        os.posix_fadvise(self._file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            if self._large:
                self._leave_page_cache()
        finally:
            # Unsent bytes after a failed flush make `close` fail again; the file is closed all the same.
            self._file.close()


class LocalStorage(Storage):
    def open_output(self, path: str) -> SyncedFile:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        # A retried write starts a file of its own: the first try, should it still run, keeps the old inode.
        self.delete_file(path)
        return SyncedFile(path)

    def open_input(self, path: str) -> Any:
        # Not memory-mapped: a file cut short while it is read would be a SIGBUS instead of an error.
        return pa.OSFile(path, "rb")

    def size(self, path: str) -> int | None:
        try:
            found = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return found.st_size if stat.S_ISREG(found.st_mode) else None

    def list(self, path: str) -> list[Entry]:
        try:
            with os.scandir(path) as entries:
                return sorted((Entry(e.name, e.is_dir()) for e in entries), key=lambda entry: entry.name)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def make_dir(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def delete_dir(self, path: str) -> None:
        if os.path.islink(path):
            os.unlink(path)
            return
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            if os.path.lexists(path):  # something in it went away under us: a second look takes the rest
                shutil.rmtree(path, ignore_errors=True)

    def delete_file(self, path: str) -> None:
        try:
            os.unlink(path)
        except FileNotFoundError:
            return

    def replace_file(self, path: str, data: bytes) -> None:
        beside = f"{path}.tmp-{os.getpid()}"
        self.delete_file(beside)
        output = self.open_output(beside)
        try:
            output.write(data)
        finally:
            output.close()
        os.replace(beside, path)
        self.sync_dir(os.path.dirname(path))

    def outside(self, path: str, root: str) -> bool:
        real_root = os.path.realpath(root)
        return os.path.commonpath([os.path.realpath(path), real_root]) != real_root

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)
        self.sync_dir(os.path.dirname(target))

    def sync_dir(self, path: str) -> None:
        handle = os.open(path or ".", os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def sync_tree(self, path: str) -> None:
        """Sync every directory under `path`: files were synced as they were closed, their names were not."""
        for folder, _, _ in os.walk(path):
            self.sync_dir(folder)
