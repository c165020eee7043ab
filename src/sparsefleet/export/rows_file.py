"""Rows files: header, mapping, lookup. FORMAT.md specifies the bytes; `rows_writer.py` writes them.

Legend: U keys asked for, D values a row.
"""

from __future__ import annotations

import mmap
import os
import stat
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sparsefleet.core.batch import F32, U64
from sparsefleet.core.errors import BundleError
from sparsefleet.export.kernels import bundle_rows as kernels
from sparsefleet.export.kernels.bundle_rows import U8, Found, RowsLayout, RowType
from sparsefleet.export.kernels.mapping_guard import GuardedMap
from sparsefleet.kernels.text import xxh64

MAGIC = b"SFROWS\r\n"
VERSION = 1
HEADER = struct.Struct("<8sIIIIQQIIQQQQ16sQ20s")
HEADER_BYTES = 128
ALIGNMENT = 64
MAX_BITS = 40
KEYS_A_BUCKET = 4
_TYPES = {RowType.FLOAT32: 4, RowType.FLOAT16: 2, RowType.INT8: 1}


def row_stride(dtype: RowType, dim: int) -> int:
    used = dim * _TYPES[dtype] + (4 if dtype is RowType.INT8 else 0)
    return (used + 3) // 4 * 4


def _aligned(offset: int) -> int:
    return (offset + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


@dataclass(frozen=True, slots=True)
class RowsHeader:
    dtype: RowType
    dim: int
    rows: int
    bundle_id: bytes
    """16 bytes."""
    table_hash: int
    seed: int = 0

    @staticmethod
    def of(dtype: RowType, dim: int, rows: int, bundle_id: str, table: str) -> RowsHeader:
        return RowsHeader(dtype, dim, rows, bytes.fromhex(bundle_id), xxh64(table.encode()))

    @property
    def bits(self) -> int:
        return min(MAX_BITS, max(0, (self.rows - 1) // KEYS_A_BUCKET).bit_length())

    @property
    def layout(self) -> RowsLayout:
        directory = _aligned(HEADER_BYTES)
        keys = _aligned(directory + 8 * (2**self.bits + 1))
        values = _aligned(keys + 8 * self.rows)
        stride = row_stride(self.dtype, self.dim)
        return RowsLayout(directory, keys, values, self.rows, self.seed, self.bits, self.dim, stride, self.dtype)

    @property
    def file_bytes(self) -> int:
        layout = self.layout
        return layout.values + layout.rows * layout.stride

    def to_bytes(self) -> bytes:
        at = self.layout
        head = HEADER.pack(
            *(MAGIC, VERSION, self.dtype, self.dim, at.stride, self.rows, self.seed, self.bits, 0),
            *(at.directory, at.keys, at.values, self.file_bytes, self.bundle_id, self.table_hash, bytes(20)),
        )
        return head + struct.pack("<I", zlib.crc32(head))

    @staticmethod
    def from_bytes(raw: bytes, where: str) -> RowsHeader:
        if len(raw) < HEADER_BYTES or raw[:8] != MAGIC:
            raise BundleError(f"{where}: not a rows file: it does not start with the magic bytes")
        (_, version, dtype, dim, stride, rows, seed, bits, zero, *offsets, bundle_id, table_hash, rest) = HEADER.unpack(
            raw[: HEADER.size]
        )
        if version != VERSION:
            raise BundleError(f"{where}: rows file version {version}; this release reads version {VERSION}")
        (crc,) = struct.unpack("<I", raw[HEADER.size : HEADER_BYTES])
        if crc != zlib.crc32(raw[: HEADER.size]):
            raise BundleError(f"{where}: the header is damaged: its checksum does not fit")
        if dtype not in list(RowType) or not 1 <= dim <= 65536 or rows > 2**48:
            raise BundleError(f"{where}: absurd header: dtype {dtype}, dim {dim}, {rows} rows")
        header = RowsHeader(RowType(dtype), dim, rows, bundle_id, table_hash, seed)
        at = header.layout
        # All of these follow from dtype, dim and rows. A header with other numbers was not written by this version.
        if (stride, bits, zero, rest) != (at.stride, at.bits, 0, bytes(20)) or tuple(offsets) != (
            *(at.directory, at.keys, at.values),
            header.file_bytes,
        ):
            raise BundleError(
                f"{where}: the header's parts do not fit {rows} rows of {dim} values: "
                f"stride {stride}, bits {bits}, offsets {offsets}"
            )
        return header


class _Handle:
    """An open file, for questions about the very file that is mapped; its name may lead to another one by now."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.close(self.number)


def _state(found: os.stat_result) -> tuple[int, int]:
    return found.st_size, found.st_mtime_ns


class RowsFile:
    """A mapped rows file. Pages are read when they are needed and shared with every process that maps the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise BundleError(f"cannot open {path}: {error.strerror}") from error
        try:
            found = os.fstat(handle)
            if not stat.S_ISREG(found.st_mode):
                raise BundleError(f"{path}: not a regular file")
            self.header = RowsHeader.from_bytes(os.pread(handle, HEADER_BYTES, 0), str(path))
            if found.st_size != self.header.file_bytes:
                raise BundleError(
                    f"{path}: {found.st_size} bytes where its header says {self.header.file_bytes}: "
                    "cut short or half copied"
                )
            mapping = GuardedMap(handle, 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            os.close(handle)
            raise BundleError(f"cannot map {path}: {error}") from error
        except BaseException:
            os.close(handle)
            raise
        if hasattr(mmap, "MADV_RANDOM"):
            mapping.madvise(mmap.MADV_RANDOM)  # keys that are looked up together are not neighbours in the file
        self._mapping, self._handle = mapping, _Handle(handle)
        self._state = _state(found)
        self.data: U8 = mapping.array()
        self._layout = self.header.layout

    def __len__(self) -> int:
        return self.header.rows

    @property
    def dim(self) -> int:
        return self.header.dim

    @property
    def layout(self) -> RowsLayout:
        return self._layout

    def lookup(self, keys: U64) -> tuple[F32, Found]:
        """Rows [U, D] as float32, zeros where there is none, and which were found [U]."""
        try:
            found = kernels.lookup_rows(self.data, self._layout, keys)
        except BundleError:
            self.check_whole()
            raise
        self.check_whole()
        return found

    def packed(self, keys: U64) -> U8:
        """The bytes of rows [U, stride], for a few keys; a BundleError where one has none."""
        at = self._layout
        directory = self.data[at.directory : at.directory + 8 * (2**at.bits + 1)].view("<u8")
        rows = self.data[at.values : at.values + at.stride * at.rows].reshape(at.rows, at.stride)
        order = kernels.places(keys, at.seed)
        buckets = (order >> np.uint64(64 - at.bits) if at.bits else np.zeros_like(order)).astype(np.int64)
        held, found, stops = self.keys(), directory[buckets].astype(np.int64), directory[buckets + 1].astype(np.int64)
        looking = np.arange(len(keys))
        while len(looking):  # one row of each key's bucket at a time; they are short
            ended = looking[found[looking] >= stops[looking]]
            if len(ended):
                key = keys[ended[0]]
                raise BundleError(f"{self.path}: it has no row for the key {key}, which is said to be a hot one")
            looking = looking[held[found[looking]] != keys[looking]]
            found[looking] += 1
        packed: U8 = rows[found]
        self.check_whole()
        return packed

    def check_whole(self) -> None:
        """BundleError where the file was cut short: what was read from it so far may be zeros. Ask after reading."""
        if self._mapping.lost:
            raise self._cut_short()

    def changed(self) -> str:
        """What has happened to the file since it was mapped; empty where nothing has. Asks the system, reads nothing.

        A file that was replaced (renamed over) is not changed: the mapping is of the old one, which is as it was.
        """
        found = os.fstat(self._handle.number)
        if found.st_size < self.header.file_bytes or self._mapping.lost:
            return f"{self.path}: cut short to {found.st_size} bytes while it was open; it had {self.header.file_bytes}"
        return "" if _state(found) == self._state else f"{self.path}: written to while it was open"

    def settle(self) -> None:
        """The file is found to be right as it is now: `changed` compares with this moment from now on."""
        self._state = _state(os.fstat(self._handle.number))

    def _cut_short(self) -> BundleError:
        return BundleError(
            f"{self.path}: cut short while it was open, so rows are missing; bundles are never changed in place: copy "
            "it anew under another name, and load that"
        )

    def keys(self) -> U64:
        """All keys, in the file's order; a view."""
        at = self._layout
        return self.data[at.keys : at.keys + 8 * at.rows].view("<u8")

    def ordered(self) -> bool:
        """Whether a search finds every key. Reads all of them."""
        return kernels.check_order(self.data, self._layout)

    def checksum(self) -> str:
        """The checksum of the whole file. Reads all of it."""
        crc, step = 0, 16 << 20
        for start in range(0, len(self.data), step):
            crc = zlib.crc32(self.data[start : start + step].data, crc)
        return f"crc32:{crc:08x}"
