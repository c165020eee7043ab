"""From bytes of unknown origin to a `Manifest`, or an error that says which field is wrong and why."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from sparsefleet.checkpoint.manifest import (
    DELTA_VERSION,
    FILE_NAME,
    FORMAT,
    MAX_BYTES,
    OLDEST,
    VERSION,
    Base,
    BlockInfo,
    FileEntry,
    Layout,
    Manifest,
    Partition,
    TableInfo,
)
from sparsefleet.core.errors import CheckpointError
from sparsefleet.core.inputs import Inputs
from sparsefleet.core.json_fields import CONTROL, Fields, document, encodes, kind, once, path_problem, short

MAX_FLOATS = 2**40  # of a dense block: 4 TiB
MAX_DIM = 65536
MAX_STATE = 64 * MAX_DIM
MAX_AXES = 64
MAX_SHARDS = 100_000


class _Fields(Fields):
    error = CheckpointError

    def name(self, name: str) -> str:
        return self.checked(name, name_problem)


def manifest(data: bytes, where: str) -> Manifest:
    if len(data) > MAX_BYTES:
        raise CheckpointError(f"{where}: {len(data)} bytes; a manifest has at most {MAX_BYTES}")
    fields = _Fields(document(data, where, CheckpointError), where)
    found = fields.take("format")
    if found != FORMAT:
        raise CheckpointError(f"{where}: format is {short(found)}, not {FORMAT!r}: no checkpoint of ours")
    version = fields.take("version")
    if version not in range(OLDEST, DELTA_VERSION + 1) or not isinstance(version, int) or isinstance(version, bool):
        raise CheckpointError(
            f"{where}: checkpoint version {short(version)}; this release reads versions {OLDEST} to {DELTA_VERSION}: "
            "load it with the release that wrote it, or a newer one"
        )
    schema = fields.take("schema")
    if schema is not None and not isinstance(schema, Mapping):
        raise fields.fail("schema", f"must be a JSON object or null, not {kind(schema)}")
    result = Manifest(
        step=fields.integer("step"),
        tables=fields.items("tables", _table),
        blocks=fields.items("blocks", _block),
        files=fields.items("files", file_entry if version > 1 else _file_entry_1),
        schema=schema,
        inputs=_inputs(fields, where) if version > 2 else None,
        model=fields.mapping("model"),
        positions=fields.mapping("positions"),
        extra=fields.mapping("extra"),
        partition=_partition(fields) if version > 1 else None,
        base=_base(fields) if version == DELTA_VERSION else None,
        version=version,
        created=fields.created("created"),
        sparsefleet=fields.text("sparsefleet"),
    )
    fields.end()
    _check_together(result, where)
    return result


def _inputs(fields: _Fields, where: str) -> Mapping[str, Any] | None:
    value = fields.take("inputs")
    if value is None:
        return None
    return Inputs.from_dict(value, f"{where}: inputs", CheckpointError).to_dict()


def file_entry(data: Any, where: str, version: int = VERSION) -> FileEntry:
    fields = _Fields(data, where)
    path, checksum = fields.checked("path", file_problem), fields.checksum("checksum")
    kind = fields.text("kind")
    size = fields.integer("bytes")
    if kind == "sparse":
        shard = fields.integer("shard", 0, MAX_SHARDS - 1) if version > 1 else None
        entry = FileEntry(path, size, checksum, kind, of=fields.name("of"), rows=fields.integer("rows"), shard=shard)
    elif kind == "dense":
        start, stop = fields.integer("start", 0, MAX_FLOATS), fields.integer("stop", 0, MAX_FLOATS)
        entry = FileEntry(path, size, checksum, kind, of=fields.name("of"), start=start, stop=stop)
    elif kind == "buffers":
        entry = FileEntry(path, size, checksum, kind)
    else:
        raise fields.fail("kind", f"is {short(kind)}; allowed are sparse, dense and buffers")
    fields.end()
    return entry


def _file_entry_1(data: Any, where: str) -> FileEntry:
    return file_entry(data, where, version=1)


def _partition(fields: _Fields) -> Partition | None:
    if fields.take("partition") is None:
        return None
    inner = fields.child("partition")
    partition = Partition(name=inner.text("name"), servers=inner.integer("servers", 1, MAX_SHARDS))
    inner.end()
    return partition


def _base(fields: _Fields) -> Base:
    inner = fields.child("base")
    rows = inner.child("rows")
    base = Base(
        name=inner.name("name"),
        checksum=inner.checksum("checksum"),
        rows={table: rows.integer(table) for table in inner.mapping("rows")},
    )
    inner.end()
    return base


def file_problem(path: str) -> str | None:
    """Why a file name in a manifest is refused; None when it is fine."""
    return "the manifest cannot list itself" if path == FILE_NAME else path_problem(path, "checkpoint")


def name_problem(name: str) -> str | None:
    """Why a table or block cannot be called so: its name names files."""
    if not name or name.startswith(".") or "/" in name or CONTROL.search(name) or not encodes(name):
        return "it names files, so it must not be empty, start with '.', or hold '/', '\\' or control characters"
    if len(name.encode()) > 200:
        return "it names files, so it must not be longer than 200 bytes"
    return None


def _table(data: Any, where: str) -> TableInfo:
    fields = _Fields(data, where)
    table = TableInfo(
        name=fields.name("name"),
        dim=fields.integer("dim", 1, MAX_DIM),
        rule=_rule(fields),
        state_width=fields.integer("state_width", 0, MAX_STATE),
        initializer=fields.mapping("initializer"),
        seed=fields.integer("seed", -(2**63), 2**64 - 1),
        step=fields.integer("step"),
    )
    fields.end()
    return table


def _block(data: Any, where: str) -> BlockInfo:
    fields = _Fields(data, where)
    block = BlockInfo(
        name=fields.name("name"),
        size=fields.integer("size", 0, MAX_FLOATS),
        layout=_layout(fields),
        rule=_rule(fields),
        state_width=fields.integer("state_width", 0, 64),
        step=fields.integer("step"),
    )
    fields.end()
    total = sum(math.prod(shape) for _, shape in block.layout)
    if total != block.size:
        raise CheckpointError(
            f"{where}: the layout's parameters have {short(total)} values in all, size says {block.size}"
        )
    return block


def _layout(fields: _Fields) -> Layout:
    def parameter(item: Any, where: str) -> tuple[str, tuple[int, ...]]:
        if not (isinstance(item, list) and len(item) == 2 and isinstance(item[0], str) and isinstance(item[1], list)):
            raise CheckpointError(f"{where}: wanted is [name, shape], got {short(item)}")
        name, shape = item
        numbers = all(isinstance(n, int) and not isinstance(n, bool) and 0 <= n <= MAX_FLOATS for n in shape)
        if not numbers or len(shape) > MAX_AXES:
            raise CheckpointError(f"{where}: {short(shape)} is not the shape of a parameter")
        return name, tuple(shape)

    layout = fields.items("layout", parameter)
    names = [name for name, _ in layout]
    if len(set(names)) != len(names):
        raise fields.fail("layout", "names a parameter twice")
    return layout


def _rule(fields: _Fields) -> Mapping[str, Any]:
    rule = fields.mapping("rule")
    if not isinstance(rule.get("name"), str):
        raise fields.fail("rule", "must hold the update rule's name")
    return rule


def _check_together(manifest: Manifest, where: str) -> None:
    """What no field can say alone: names once, files of known owners, ranges that cover their block."""
    once([table.name for table in manifest.tables], "table", where, CheckpointError)
    once([block.name for block in manifest.blocks], "block", where, CheckpointError)
    once([entry.path for entry in manifest.files], "file", where, CheckpointError)
    tables = {table.name for table in manifest.tables}
    pieces: dict[str, list[FileEntry]] = {block.name: [] for block in manifest.blocks}
    for entry in manifest.files:
        if entry.kind == "sparse" and entry.of not in tables:
            raise CheckpointError(f"{where}: file {entry.path} belongs to table {short(entry.of)}, which is not listed")
        if entry.shard and manifest.partition and entry.shard >= manifest.partition.servers:
            raise CheckpointError(
                f"{where}: file {entry.path} is of shard {entry.shard}; the partition says that "
                f"there are {manifest.partition.servers}"
            )
        if entry.kind == "dense":
            if entry.of not in pieces:
                raise CheckpointError(
                    f"{where}: file {entry.path} belongs to block {short(entry.of)}, which is not listed"
                )
            pieces[str(entry.of)].append(entry)
    for block in manifest.blocks:
        _check_cover(block, pieces[block.name], where)
    if manifest.base is not None and manifest.base.rows.keys() != tables:
        raise CheckpointError(
            f"{where}: base.rows must count the rows of the tables {', '.join(sorted(tables)) or '(none)'}; "
            f"it has {', '.join(sorted(manifest.base.rows)) or 'none'}"
        )
    if manifest.partition is not None:
        for table in manifest.tables:
            _check_shards(table.name, manifest.files_of("sparse", table.name), manifest.partition.servers, where)


def _check_shards(table: str, files: Iterable[FileEntry], shards: int, where: str) -> None:
    """A server that reads its own files only must find some: an empty shard is an empty file."""
    there = {entry.shard for entry in files}
    for shard in range(shards):
        if shard not in there:
            raise CheckpointError(
                f"{where}: table {table!r} has no file of shard {shard}; the partition says that there are {shards}"
            )


def _check_cover(block: BlockInfo, pieces: list[FileEntry], where: str) -> None:
    reached = 0
    for entry in sorted(pieces, key=lambda piece: (piece.start or 0, piece.stop or 0)):
        start, stop = entry.start or 0, entry.stop or 0
        if start != reached or not start <= stop <= block.size:
            raise CheckpointError(
                f"{where}: the files of dense block {block.name!r} must cover 0 to {block.size} once; "
                f"{entry.path} holds {start} to {stop} where {reached} should follow"
            )
        needed = 4 * (stop - start) * (1 + block.state_width)
        if entry.bytes < needed:
            raise CheckpointError(
                f"{where}: {entry.path} claims to hold {stop - start} values with {block.state_width} floats "
                f"of state each, {needed} bytes, in a file of {entry.bytes}"
            )
        reached = stop
    if reached != block.size:
        raise CheckpointError(
            f"{where}: the files of dense block {block.name!r} hold {reached} of its {block.size} values"
        )
