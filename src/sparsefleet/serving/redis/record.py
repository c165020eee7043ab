"""Names and records of published versions. FORMAT.md describes every field."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from sparsefleet.core.errors import BundleError
from sparsefleet.core.json_fields import CHECKSUM, document, once
from sparsefleet.export.bundle import Bundle
from sparsefleet.export.hot import HOT_KEYS
from sparsefleet.export.kernels.bundle_rows import RowType
from sparsefleet.export.manifest import DTYPES, ID, MAX_DIM, NAME, BundleFields
from sparsefleet.export.rows_file import RowsHeader
from sparsefleet.serving.kernels.redis_rows import BucketPlace

FORMAT = "sparsefleet-rows"
MARK = f"{FORMAT} 1"
"""In the pointer, which is the same in all layouts."""
STRINGS, HASHES, HOT = 1, 2, 3
"""Layouts, which are the versions of the record: buckets as strings of their own, as fields of a hash a table, or these
and hot rows side by side, too."""
STATES = ("writing", "complete", "removing")
BUCKET_BYTES = 200
"""What a bucket holds on average, about, unless a row is longer."""
MAX_ROWS_A_BUCKET = 16
MAX_BITS = 32
HOT_BYTES = 320 << 10
"""The most bytes of hot rows of a table: all of them are read at once, for as many requests as wait together."""


def tag(bundle_id: str) -> str:
    return bundle_id[:12]


@dataclass(frozen=True, slots=True)
class Names:
    """The names that are not rows, under one prefix."""

    prefix: str

    @property
    def pointer(self) -> str:
        return f"{self.prefix}:pointer"

    @property
    def versions(self) -> str:
        return f"{self.prefix}:versions"

    @property
    def lock(self) -> str:
        return f"{self.prefix}:lock"

    def record(self, tag: str) -> str:
        return f"{self.prefix}:{tag}"

    def buckets(self, tag: str, table: int, layout: int) -> BucketPlace:
        """Where the buckets of a table are; `table`: its place in the record."""
        name = f"{self.prefix}:{tag}:{table}".encode()
        return BucketPlace(b"", name + b":") if layout == STRINGS else BucketPlace(name, b"")

    def hot(self, tag: str, table: int) -> bytes:
        """The hash of a table's hot rows."""
        return f"{self.prefix}:{tag}:{table}:hot".encode()


@dataclass(frozen=True, slots=True)
class TableRecord:
    name: str
    dim: int
    dtype: str
    rows: int
    stride: int
    seed: int
    bits: int
    hot: int = 0
    """Rows that lie side by side, too: those of the first keys in the bundle's list of hot ones."""

    @property
    def buckets(self) -> int:
        return int(2**self.bits)

    @property
    def type(self) -> RowType:
        return RowType[self.dtype.upper()]


@dataclass(frozen=True, slots=True)
class VersionRecord:
    id: str
    name: str
    state: str
    created: str
    published: str
    files: Mapping[str, str]
    """Checksums, by path."""
    tables: tuple[TableRecord, ...]
    layout: int = HASHES
    """What this release writes, or `HOT` where there are hot rows; `STRINGS` is what earlier ones wrote."""

    @property
    def tag(self) -> str:
        return tag(self.id)

    def as_state(self, state: str) -> VersionRecord:
        return replace(self, state=state)

    def to_json(self) -> bytes:
        fields = asdict(self)
        if self.layout != HOT:  # as releases that do not know it write and read it
            for table in fields["tables"]:
                del table["hot"]
        return json.dumps({"format": FORMAT, "version": fields.pop("layout"), **fields}).encode()

    @staticmethod
    def of(bundle: Bundle, published: str) -> VersionRecord:
        """What this release would publish of a bundle."""
        manifest = bundle.manifest
        tables = []
        for table in manifest.tables:
            layout = RowsHeader.of(RowType[table.dtype.upper()], table.dim, table.rows, manifest.id, table.name).layout
            bits = bucket_bits(table.rows, layout.stride)
            hot = min(len(bundle.hot.get(table.name, ())), HOT_BYTES // layout.stride)
            about = (table.name, table.dim, table.dtype, table.rows, layout.stride, layout.seed, bits, hot)
            tables.append(TableRecord(*about))
        return VersionRecord(
            id=manifest.id,
            name=manifest.name,
            state="writing",
            created=manifest.created,
            published=published,
            files={entry.path: entry.checksum for entry in manifest.files},
            tables=tuple(tables),
            layout=HOT if any(table.hot for table in tables) else HASHES,
        )

    @staticmethod
    def from_json(data: bytes, where: str) -> VersionRecord:
        fields = BundleFields(document(data, where, BundleError), where)
        layout = fields.header(FORMAT, STRINGS, HOT, "record of rows in Redis")
        files = fields.take("files")
        if not isinstance(files, dict) or not all(
            isinstance(path, str) and isinstance(checksum, str) and CHECKSUM.fullmatch(checksum)
            for path, checksum in files.items()
        ):
            raise fields.fail("files", "must be checksums by path")
        record = VersionRecord(
            id=fields.text("id", ID, "32 hexadecimal digits"),
            name=fields.text("name", NAME, "1 to 200 characters, no control characters"),
            state=fields.choice("state", STATES),
            created=fields.created("created"),
            published=fields.created("published"),
            files=files,
            tables=fields.items("tables", _hot_table if layout == HOT else _table),
            layout=layout,
        )
        fields.end()
        once([table.name for table in record.tables], "table", where, BundleError)
        return record

    def difference(self, bundle: Bundle) -> str:
        """What speaks against reading this bundle's rows here; empty where nothing does."""
        ours = VersionRecord.of(bundle, self.published)
        if self.id != ours.id:
            return f"it holds another bundle ({self.id}) under the same tag"
        if self.state != "complete":
            return {
                "writing": "it is not completely published yet",
                "removing": "it is being removed: later versions have been published",
            }[self.state]
        for path, checksum in ours.files.items():
            if self.files.get(path) != checksum:
                return f"it was published from another {path} ({self.files.get(path)}, here {checksum})"
        for mine in ours.tables:
            # The layout and the numbers of buckets and of hot rows are the publisher's choice; everything else is the
            # bundle's.
            theirs = next((table for table in self.tables if table.name == mine.name), None)
            if theirs is None or replace(theirs, bits=0, hot=0) != replace(mine, bits=0, hot=0):
                return f"table {mine.name!r} differs: {theirs}, here {mine}"
            if theirs.hot > len(bundle.hot.get(mine.name, ())):
                return f"it has {theirs.hot} hot rows of table {mine.name!r}, more than the bundle names"
        return ""


def bucket_bits(rows: int, stride: int) -> int:
    wanted = max(1, min(MAX_ROWS_A_BUCKET, BUCKET_BYTES // (8 + stride)))
    return min(MAX_BITS, max(0, (rows - 1) // wanted).bit_length())


def _hot_table(item: Any, where: str) -> TableRecord:
    return _table(item, where, hot=True)


def _table(item: Any, where: str, hot: bool = False) -> TableRecord:
    fields = BundleFields(item, where)
    table = TableRecord(
        name=fields.text("name"),
        dim=fields.integer("dim", 1, MAX_DIM),
        dtype=fields.choice("dtype", DTYPES),
        rows=fields.integer("rows"),
        stride=fields.integer("stride", 1, 8 * MAX_DIM),
        seed=fields.integer("seed", 0, 2**64 - 1),
        bits=fields.integer("bits", 0, MAX_BITS),
        hot=fields.integer("hot", 0, HOT_KEYS) if hot else 0,
    )
    fields.end()
    return table
