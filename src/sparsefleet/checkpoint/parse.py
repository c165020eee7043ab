"""From bytes of unknown origin to a `Manifest`, or an error that says which field is wrong and why."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from sparsefleet.checkpoint.manifest import (
    FORMAT,
    MAX_BYTES,
    VERSION,
    BlockInfo,
    FileEntry,
    Layout,
    Manifest,
    TableInfo,
)
from sparsefleet.core.errors import CheckpointError

T = TypeVar("T")

MAX_COUNT = 2**62  # of rows, bytes, steps: above it something is damaged
MAX_FLOATS = 2**40  # of a dense block: 4 TiB
MAX_DIM = 65536
MAX_STATE = 64 * MAX_DIM
MAX_AXES = 64
CHECKSUM = re.compile(r"crc32:[0-9a-f]{8}")
CREATED = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
CONTROL = re.compile(r"[\x00-\x1f\x7f\\]")


class _Fields:
    """A JSON object being taken apart: every field is asked for once, and what is left over is an error."""

    def __init__(self, data: Any, where: str) -> None:
        if not isinstance(data, Mapping):
            raise CheckpointError(f"{where}: must be a JSON object, not {_kind(data)}")
        self.data, self.where, self.asked = data, where, set[str]()

    def fail(self, name: str, reason: str) -> CheckpointError:
        return CheckpointError(f"{self.where}: field {name!r} {reason}")

    def take(self, name: str) -> Any:
        self.asked.add(name)
        if name not in self.data:
            raise self.fail(name, "is missing")
        return self.data[name]

    def integer(self, name: str, low: int = 0, high: int = MAX_COUNT) -> int:
        value = self.take(name)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.fail(name, f"must be a whole number, not {_kind(value)}")
        if not low <= value <= high:
            raise self.fail(name, f"is {_short(value)}; allowed are {low} to {high}")
        return value

    def text(self, name: str, limit: int = 1000) -> str:
        value = self.take(name)
        if not isinstance(value, str):
            raise self.fail(name, f"must be text, not {_kind(value)}")
        if len(value) > limit:
            raise self.fail(name, f"has {len(value)} characters; {limit} are allowed")
        return value

    def mapping(self, name: str) -> Mapping[str, Any]:
        value = self.take(name)
        if not isinstance(value, Mapping):
            raise self.fail(name, f"must be a JSON object, not {_kind(value)}")
        return value

    def items(self, name: str, parse: Callable[[Any, str], T]) -> tuple[T, ...]:
        value = self.take(name)
        if not isinstance(value, list):
            raise self.fail(name, f"must be a list, not {_kind(value)}")
        return tuple(parse(item, f"{self.where}: {name}[{index}]") for index, item in enumerate(value))

    def name(self, name: str) -> str:
        value = self.text(name)
        problem = name_problem(value)
        if problem:
            raise self.fail(name, f"is {_short(value)}: {problem}")
        return value

    def end(self) -> None:
        unknown = sorted(set(self.data) - self.asked)
        if unknown:
            raise CheckpointError(f"{self.where}: unknown fields {', '.join(map(_short, unknown[:5]))}")


def manifest(data: bytes, where: str) -> Manifest:
    if len(data) > MAX_BYTES:
        raise CheckpointError(f"{where}: {len(data)} bytes; a manifest has at most {MAX_BYTES}")
    try:
        document = json.loads(data, object_pairs_hook=_no_key_twice, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{where}: not a JSON document: {error}") from error
    fields = _Fields(document, where)
    if fields.take("format") != FORMAT:
        raise CheckpointError(f"{where}: format is {_short(document['format'])}, not {FORMAT!r}: no checkpoint of ours")
    if fields.take("version") != VERSION or isinstance(document["version"], bool):
        raise CheckpointError(
            f"{where}: checkpoint version {_short(document['version'])}; this release reads version "
            f"{VERSION}: load it with the release that wrote it"
        )
    schema = fields.take("schema")
    if schema is not None and not isinstance(schema, Mapping):
        raise fields.fail("schema", f"must be a JSON object or null, not {_kind(schema)}")
    created = fields.text("created")
    if not CREATED.fullmatch(created):
        raise fields.fail("created", f"is {_short(created)}; wanted is a UTC time such as 2026-01-31T12:00:00Z")
    result = Manifest(
        step=fields.integer("step"),
        tables=fields.items("tables", _table),
        blocks=fields.items("blocks", _block),
        files=fields.items("files", file_entry),
        schema=schema,
        model=fields.mapping("model"),
        positions=fields.mapping("positions"),
        extra=fields.mapping("extra"),
        created=created,
        sparsefleet=fields.text("sparsefleet"),
    )
    fields.end()
    _check_together(result, where)
    return result


def file_entry(data: Any, where: str) -> FileEntry:
    fields = _Fields(data, where)
    path = fields.text("path")
    problem = path_problem(path)
    if problem:
        raise fields.fail("path", f"is {_short(path)}: {problem}")
    checksum = fields.text("checksum")
    if not CHECKSUM.fullmatch(checksum):
        raise fields.fail("checksum", f"is {_short(checksum)}; wanted is 'crc32:' and 8 hexadecimal digits")
    kind = fields.text("kind")
    size = fields.integer("bytes")
    if kind == "sparse":
        entry = FileEntry(path, size, checksum, kind, of=fields.name("of"), rows=fields.integer("rows"))
    elif kind == "dense":
        start, stop = fields.integer("start", 0, MAX_FLOATS), fields.integer("stop", 0, MAX_FLOATS)
        entry = FileEntry(path, size, checksum, kind, of=fields.name("of"), start=start, stop=stop)
    elif kind == "buffers":
        entry = FileEntry(path, size, checksum, kind)
    else:
        raise fields.fail("kind", f"is {_short(kind)}; allowed are sparse, dense and buffers")
    fields.end()
    return entry


def path_problem(path: str) -> str | None:
    """Why a file name in a manifest is refused; None when it is fine."""
    parts = path.split("/")
    if path.startswith("/") or ".." in parts:
        return "it leads out of the checkpoint's directory"
    if "" in parts or "." in parts or CONTROL.search(path) or not _encodes(path):
        return "it is not a plain relative path"
    if path == "manifest.json":
        return "the manifest cannot list itself"
    return None


def name_problem(name: str) -> str | None:
    """Why a table or block cannot be called so: its name names files."""
    if not name or name.startswith(".") or "/" in name or CONTROL.search(name) or not _encodes(name):
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
            f"{where}: the layout's parameters have {_short(total)} values in all, size says {block.size}"
        )
    return block


def _layout(fields: _Fields) -> Layout:
    def parameter(item: Any, where: str) -> tuple[str, tuple[int, ...]]:
        if not (isinstance(item, list) and len(item) == 2 and isinstance(item[0], str) and isinstance(item[1], list)):
            raise CheckpointError(f"{where}: wanted is [name, shape], got {_short(item)}")
        name, shape = item
        numbers = all(isinstance(n, int) and not isinstance(n, bool) and 0 <= n <= MAX_FLOATS for n in shape)
        if not numbers or len(shape) > MAX_AXES:
            raise CheckpointError(f"{where}: {_short(shape)} is not the shape of a parameter")
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
    for what, names in (
        ("table", [table.name for table in manifest.tables]),
        ("block", [block.name for block in manifest.blocks]),
        ("file", [entry.path for entry in manifest.files]),
    ):
        seen: set[str] = set()
        for name in names:
            if name in seen:
                raise CheckpointError(f"{where}: {what} {_short(name)} is listed twice")
            seen.add(name)
    tables = {table.name for table in manifest.tables}
    pieces: dict[str, list[FileEntry]] = {block.name: [] for block in manifest.blocks}
    for entry in manifest.files:
        if entry.kind == "sparse" and entry.of not in tables:
            raise CheckpointError(
                f"{where}: file {entry.path} belongs to table {_short(entry.of)}, which is not listed"
            )
        if entry.kind == "dense":
            if entry.of not in pieces:
                raise CheckpointError(
                    f"{where}: file {entry.path} belongs to block {_short(entry.of)}, which is not listed"
                )
            pieces[str(entry.of)].append(entry)
    for block in manifest.blocks:
        _check_cover(block, pieces[block.name], where)


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


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return result


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _kind(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", str: "text", bool: "a truth value", type(None): "null"}
    return kinds.get(type(value), "a number")


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # an int too long to print
        return "a huge number"
    return text if len(text) <= 80 else text[:77] + "..."
