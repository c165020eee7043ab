"""A place behind URIs without a network: a local folder under `test://place/`, which can be told to fail."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyarrow import fs

from sparsefleet.core import filesystems

URI = "test://place"


class Place:
    """What our code asks of a pyarrow filesystem. `failures`: how many of the next calls fail."""

    def __init__(self, folder: Path) -> None:
        self._inner = fs.SubTreeFileSystem(str(folder), fs.LocalFileSystem())
        self.failures = 0
        self.calls: list[str] = []

    def _called(self, what: str) -> None:
        self.calls.append(what)
        if self.failures:
            self.failures -= 1
            raise OSError(f"connection reset during {what}\nwith a second line")

    def get_file_info(self, asked: Any) -> Any:
        self._called("info")
        return self._inner.get_file_info(asked)

    def open_input_file(self, path: str) -> Any:
        self._called("open")
        return _File(self, self._inner.open_input_file(path))


class _File:
    def __init__(self, place: Place, inner: Any) -> None:
        self._place, self._inner = place, inner

    def size(self) -> int:
        return int(self._inner.size())

    def read_at(self, count: int, offset: int) -> bytes:
        self._place._called("read")
        return bytes(self._inner.read_at(count, offset))

    def close(self) -> None:
        self._inner.close()


@contextlib.contextmanager
def place(folder: Path) -> Iterator[Place]:
    made = Place(folder)
    key = ("test", "place", "")
    filesystems._known[key] = made, ""
    try:
        yield made
    finally:
        del filesystems._known[key]
