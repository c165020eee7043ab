"""ByteSource: the bytes of one unit of text, wherever they come from; here from plain, gzip and zstd files."""

from __future__ import annotations

import gzip
import zlib
from abc import ABC, abstractmethod

from sparsefleet.core.errors import BadRowError, DataError
from sparsefleet.data.files import check_file, is_gzip, is_zstd, open_file, open_through

_COUNT_BLOCK = 1 << 20


class ByteSource(ABC):
    offset: int = 0
    """Where the next byte stands: in the file where `seekable`, else in the stream."""
    seekable: bool = False
    """A sample's offset leads back to it."""

    @property
    def on_disk(self) -> int:
        """How many bytes of the file, as it lies on the disk, are read: for progress."""
        return self.offset

    @abstractmethod
    def readinto(self, view: memoryview) -> int:
        """Fill a part of `view`; 0 at the end. Raises `DataError` where the input is damaged."""

    def line_number(self, offset: int, lines: int) -> int:
        """Number in the file, from 1, of the line at `offset`, `lines` lines after the unit's first."""
        return lines + 1

    def explain(self, error: BadRowError) -> DataError:
        """The error of a bad sample, with all that this source knows about its cause."""
        return error

    @abstractmethod
    def close(self) -> None:
        """Let go of everything; closing twice is fine."""


class PlainSource(ByteSource):
    """A file from `offset` on; `start` is where its unit starts."""

    seekable = True

    def __init__(self, path: str, offset: int = 0, start: int = 0) -> None:
        self.path, self.start, self.offset = path, start, offset
        self._file = open_through(path)
        self._file.seek(offset)

    def readinto(self, view: memoryview) -> int:
        try:
            count = self._file.readinto(view) or 0
        except OSError as error:
            raise DataError(f"{self.path}: reading failed at byte {self.offset}: {error}") from error
        self.offset += count
        return count

    def line_number(self, offset: int, lines: int) -> int:
        if self.start == 0:
            return lines + 1
        # The unit does not know how many lines precede it. Only an error asks, so count now.
        feeds, left = 0, offset
        with open_file(self.path) as file:
            while left > 0 and (block := file.read(min(left, _COUNT_BLOCK))):
                feeds += block.count(b"\n")
                left -= len(block)
        return feeds + 1

    def close(self) -> None:
        self._file.close()


class GzipSource(ByteSource):
    """A compressed file from its beginning; several members one after the other are fine."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._raw = open_through(path, 1 << 18)
        self._file = gzip.GzipFile(fileobj=self._raw, mode="rb")

    @property
    def on_disk(self) -> int:
        return self._raw.tell()

    def readinto(self, view: memoryview) -> int:
        try:
            count = self._file.readinto(view)
        except EOFError as error:
            raise DataError(f"{self._damaged()}; the file is truncated: fetch or write it again") from error
        except (OSError, zlib.error) as error:
            raise DataError(f"{self._damaged()}; {error}: fetch or write it again") from error
        self.offset += count
        return count

    def _damaged(self) -> str:
        return f"{self.path}: damaged gzip file, readable up to byte {self.offset} of its uncompressed content"

    def close(self) -> None:
        self._file.close()
        self._raw.close()


class ZstdSource(ByteSource):
    """A file of zstd frames from its beginning."""

    def __init__(self, path: str) -> None:
        import pyarrow as pa

        self.path = path
        self._raw = open_through(path, 1 << 18)
        self._file = pa.input_stream(pa.PythonFile(self._raw, mode="r"), compression="zstd")

    @property
    def on_disk(self) -> int:
        return self._raw.tell()

    def readinto(self, view: memoryview) -> int:
        try:
            count = int(self._file.readinto(view))
        except OSError as error:  # of Arrow, too
            raise DataError(
                f"{self.path}: damaged zstd file, readable up to byte {self.offset} of its uncompressed content; "
                f"{error}: fetch or write it again"
            ) from error
        self.offset += count
        return count

    def close(self) -> None:
        self._file.close()
        self._raw.close()


def open_source(path: str) -> ByteSource:
    """The whole file, unpacked where it is gzip or zstd."""
    check_file(path)
    return packed_source(path) or PlainSource(path)


def packed_source(path: str) -> ByteSource | None:
    """The unpacked content of a gzip or zstd file; None for any other."""
    return GzipSource(path) if is_gzip(path) else ZstdSource(path) if is_zstd(path) else None
