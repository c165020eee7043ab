"""Storage: the few things a checkpoint needs of a filesystem, and how its errors read."""

from __future__ import annotations

import errno
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from sparsefleet.core.errors import CheckpointError

NO_SPACE = {
    errno.ENOSPC: "disk full",
    errno.EDQUOT: "disk full (quota exceeded)",
    errno.EFBIG: "disk full (file size limit reached)",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One name in a directory."""

    name: str
    is_dir: bool


class Output(Protocol):
    """A file being written; it is durable once `close` returns."""

    def write(self, data: bytes, /) -> Any: ...
    def close(self) -> None: ...


class Storage(ABC):
    @abstractmethod
    def open_output(self, path: str) -> Output:
        """A new file; its directory is made where it is missing."""

    @abstractmethod
    def open_input(self, path: str) -> Any:
        """A seekable `pyarrow.NativeFile`."""

    @abstractmethod
    def size(self, path: str) -> int | None:
        """Bytes of a regular file; None where there is no such file."""

    @abstractmethod
    def list(self, path: str) -> list[Entry]:
        """What is in a directory, in order of names; nothing where it does not exist."""

    @abstractmethod
    def make_dir(self, path: str) -> None:
        """Make a directory and those above it; one that exists is fine."""

    @abstractmethod
    def delete_dir(self, path: str) -> None:
        """Remove a directory with all that is in it; one that does not exist is fine."""

    @abstractmethod
    def delete_file(self, path: str) -> None:
        """Remove a file; one that does not exist is fine."""

    @abstractmethod
    def replace_file(self, path: str, data: bytes) -> None:
        """Put a small file in one go: readers see the old content or the new, where the filesystem allows."""

    def outside(self, path: str, root: str) -> bool:
        """True when `path` leads out of `root`, by a symbolic link for one."""
        return False


@contextmanager
def writing(where: object) -> Iterator[None]:
    """Turn a filesystem's refusal into an error that says what to do."""
    try:
        yield
    except OSError as error:
        reason = NO_SPACE.get(error.errno or 0)
        if reason:
            raise CheckpointError(
                f"{reason} while saving {where}: {error.strerror or error}; this save is given up, the "
                "previous checkpoint is whole: free some space or save elsewhere"
            ) from error
        raise CheckpointError(f"cannot write {where}: {error}") from error


@contextmanager
def reading(where: object) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"cannot read {where}: {error}") from error
