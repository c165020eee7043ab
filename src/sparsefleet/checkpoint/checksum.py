"""Sums over whole files: taken as they are written, compared as they are read."""

from __future__ import annotations

import zlib
from contextlib import suppress
from typing import Any

from sparsefleet.checkpoint.storage import Location
from sparsefleet.checkpoint.storage.base import reading, writing

CHUNK = 4 << 20


def text_of(crc: int) -> str:
    return f"crc32:{crc:08x}"


class SummedOutput:
    """A file-like object for Parquet and safetensors writers that counts and sums what passes through.

    Leaving the `with` block by an exception removes the half-written file.
    """

    def __init__(self, location: Location) -> None:
        self.location = location
        self.bytes = 0
        self.closed = False
        self._crc = 0
        self._dead = False
        with writing(location):
            self._output = location.open_output()

    @property
    def checksum(self) -> str:
        return text_of(self._crc)

    def write(self, data: bytes) -> int:
        size = len(data)
        if self._dead:  # a library's clean-up after our failure: there is nothing left to write to
            return size
        self._output.write(data)
        self._crc = zlib.crc32(data, self._crc)
        self.bytes += size
        return size

    def tell(self) -> int:
        return self.bytes

    def flush(self) -> None:
        """Nothing to do: `close` syncs."""

    def close(self) -> None:
        self.closed = True

    def __enter__(self) -> SummedOutput:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        self._dead = self.closed = True
        failed = kind is not None
        try:
            self._output.close()
        except OSError:
            # After a failed write `close` fails likewise; the first error is the one to tell.
            if not failed:
                failed = True
                raise
        finally:
            if failed:
                with suppress(OSError):
                    self.location.storage.delete_file(self.location.path)


def checksum_of(location: Location) -> str:
    """Read a file from end to end."""
    crc = 0
    with reading(location), location.open_input() as source:
        while chunk := source.read(CHUNK):
            crc = zlib.crc32(chunk, crc)
    return text_of(crc)
