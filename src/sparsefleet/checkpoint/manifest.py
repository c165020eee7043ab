"""The manifest: what a checkpoint says of itself. FORMAT.md describes every field.

These are plain values; `parse.py` turns JSON of unknown origin into them, and checks everything on the way.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import sparsefleet
from sparsefleet.core.errors import CheckpointError

if TYPE_CHECKING:
    from sparsefleet.optim.base import UpdateRule
    from sparsefleet.table.spec import TableSpec

FORMAT = "sparsefleet-checkpoint"
VERSION = 3
DELTA_VERSION = 4
"""Of a checkpoint that is a delta: who knows whole ones only must refuse it. Whole ones are of `VERSION`."""
MAX_DELTAS = 64
"""Deltas that a reader follows down to a whole checkpoint."""
OLDEST = 1
"""Versions from here on are read. Version 1 had no `touched` of rows, no `shard` of files and no `partition`; neither
1 nor 2 had `inputs`.
"""
FILE_NAME = "manifest.json"
MAX_BYTES = 64 << 20

Layout = tuple[tuple[str, tuple[int, ...]], ...]
"""Parameters of a dense block in order: (name, shape)."""


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file of a checkpoint. `rows` and `shard` are set for sparse files, `start` and `stop` for dense ones."""

    path: str
    bytes: int
    checksum: str
    kind: str
    """sparse, dense or buffers."""
    of: str | None = None
    """The table or block it belongs to."""
    rows: int | None = None
    shard: int | None = None
    """Which process wrote it; None in files of version 1."""
    start: int | None = None
    stop: int | None = None

    def to_dict(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, slots=True)
class TableInfo:
    """A sparse table as saved."""

    name: str
    dim: int
    rule: Mapping[str, Any]
    """`UpdateRule.to_dict()`."""
    state_width: int
    """Floats of state a row in the files: what the rule needs, or 0 where state was dropped."""
    initializer: Mapping[str, Any]
    seed: int = 0
    step: int = 0
    """Updates the table has applied."""

    @staticmethod
    def of(spec: TableSpec, step: int, *, drop_state: bool = False) -> TableInfo:
        return TableInfo(
            name=spec.name,
            dim=spec.dim,
            rule=spec.rule.to_dict(),
            state_width=0 if drop_state else spec.rule.state_width(spec.dim),
            initializer={"name": type(spec.initializer).__name__, **asdict(spec.initializer)},
            seed=spec.seed,
            step=step,
        )


@dataclass(frozen=True, slots=True)
class BlockInfo:
    """A dense block as saved: parameters flattened one after the other."""

    name: str
    size: int
    layout: Layout
    rule: Mapping[str, Any]
    state_width: int
    """Floats of state per value."""
    step: int = 0

    @staticmethod
    def of(
        name: str,
        layout: Iterable[tuple[str, Iterable[int]]],
        rule: UpdateRule,
        step: int,
        *,
        drop_state: bool = False,
    ) -> BlockInfo:
        shapes = tuple((parameter, tuple(int(n) for n in shape)) for parameter, shape in layout)
        size = sum(math.prod(shape) for _, shape in shapes)
        dense_rule = rule.for_dense()
        return BlockInfo(
            name=name,
            size=size,
            layout=shapes,
            rule=dense_rule.to_dict(),
            # A rule's state on one long row is a whole number of floats per value; ask it of a single value.
            state_width=0 if drop_state else dense_rule.state_width(1),
            step=step,
        )

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "layout": [[parameter, list(shape)] for parameter, shape in self.layout]}


@dataclass(frozen=True, slots=True)
class Partition:
    """How rows were spread over the shards of a checkpoint: shard i holds the keys that server i of so many owns."""

    name: str
    """The function from key to server (`store/partition.py`)."""
    servers: int


@dataclass(frozen=True, slots=True)
class Base:
    """Of a delta: the checkpoint beside it that has the rows which this one has not."""

    name: str
    """Of its directory, in the same folder."""
    checksum: str
    """Of its manifest.json, so that no other can take its place unnoticed."""
    rows: Mapping[str, int]
    """By table, how many rows there are in all, those of the base that stand included."""


@dataclass(frozen=True, slots=True)
class Manifest:
    step: int
    tables: tuple[TableInfo, ...] = ()
    blocks: tuple[BlockInfo, ...] = ()
    files: tuple[FileEntry, ...] = ()
    schema: Mapping[str, Any] | None = None
    inputs: Mapping[str, Any] | None = None
    """How samples were read (`core/inputs.py`)."""
    model: Mapping[str, Any] = field(default_factory=dict)
    positions: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    partition: Partition | None = None
    """None where one process wrote all, or where nothing is known of it."""
    base: Base | None = None
    """What this checkpoint is a delta of; None: it is whole. Deltas are of `DELTA_VERSION`."""
    version: int = VERSION
    created: str = field(default_factory=now)
    sparsefleet: str = sparsefleet.__version__

    def table(self, name: str) -> TableInfo:
        for table in self.tables:
            if table.name == name:
                return table
        names = ", ".join(table.name for table in self.tables) or "none"
        raise CheckpointError(f"the checkpoint has no table {name!r}; it has {names}")

    def block(self, name: str) -> BlockInfo:
        for block in self.blocks:
            if block.name == name:
                return block
        names = ", ".join(block.name for block in self.blocks) or "none"
        raise CheckpointError(f"the checkpoint has no dense block {name!r}; it has {names}")

    def files_of(self, kind: str, name: str | None = None) -> tuple[FileEntry, ...]:
        return tuple(entry for entry in self.files if entry.kind == kind and (name is None or entry.of == name))

    def to_dict(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "version": self.version,
            "sparsefleet": self.sparsefleet,
            "created": self.created,
            "step": self.step,
            "schema": self.schema,
            **({"inputs": self.inputs} if self.version > 2 else {}),
            "model": self.model,
            "tables": [asdict(table) for table in self.tables],
            "blocks": [block.to_dict() for block in self.blocks],
            "files": [entry.to_dict() for entry in self.files],
            "positions": self.positions,
            "extra": self.extra,
            "partition": asdict(self.partition) if self.partition else None,
            **({"base": asdict(self.base)} if self.base else {}),
        }

    def to_json(self) -> bytes:
        """The bytes of manifest.json."""
        try:
            return (json.dumps(self.to_dict(), indent=1, allow_nan=False, ensure_ascii=False) + "\n").encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise CheckpointError(
                f"schema, model, positions and extra must be plain JSON data without NaN: {error}"
            ) from error
