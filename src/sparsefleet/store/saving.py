"""Tables and dense blocks to and from checkpoints: what a store in one process and every server share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from sparsefleet.checkpoint import (
    BlockInfo,
    Checkpoint,
    DensePiece,
    FileEntry,
    Location,
    Manifest,
    TableInfo,
    write_dense,
    write_sparse_shard,
)
from sparsefleet.checkpoint.sparse import KeepKeys
from sparsefleet.core.errors import CheckpointError
from sparsefleet.core.table_rows import TableRows
from sparsefleet.store.base import Layout, RunFacts
from sparsefleet.table.dense import DenseTable
from sparsefleet.table.sparse import SparseTable


@dataclass(frozen=True)
class HeldBlock:
    """A dense block as one process holds it: all of it, or the cut that starts at `start`."""

    table: DenseTable
    layout: Layout
    """Of the whole block."""
    start: int = 0

    def info(self, drop_state: bool = False) -> BlockInfo:
        table = self.table
        return BlockInfo.of(table.name, self.layout, table.rule, table.step, drop_state=drop_state)


def write_shards(
    directory: Location,
    shard: int,
    tables: Iterable[SparseTable],
    blocks: Iterable[HeldBlock],
    *,
    drop_state: bool = False,
) -> list[FileEntry]:
    """Write what this process holds into a draft's directory; nobody pushes meanwhile."""
    files: list[FileEntry] = []
    for table in tables:
        spec, state_width = table.spec, 0 if drop_state else table.state_width
        files += write_sparse_shard(directory, spec.name, shard, table.scan(), spec.dim, state_width)
    pieces = []
    for block in blocks:
        if len(block.table):
            state = block.table.state[:0] if drop_state else block.table.state
            piece = DensePiece(block.table.name, block.start, block.table.values, state)
            pieces.append((piece, block.info().layout))
    return files + write_dense(directory, shard, pieces)


def manifest_of(
    facts: RunFacts, tables: Iterable[TableInfo], blocks: Iterable[BlockInfo], files: Sequence[FileEntry]
) -> Manifest:
    return Manifest(
        step=facts.step,
        tables=tuple(tables),
        blocks=tuple(blocks),
        files=tuple(files),
        schema=facts.schema,
        model=facts.model,
        positions=facts.positions,
        extra=facts.extra,
    )


def facts_of(checkpoint: Checkpoint) -> RunFacts:
    manifest = checkpoint.manifest
    return RunFacts(
        step=manifest.step,
        schema=manifest.schema,
        model=manifest.model,
        positions=manifest.positions,
        extra=manifest.extra,
        buffers=checkpoint.buffers(),
    )


def load_tables(
    checkpoint: Checkpoint, tables: Sequence[SparseTable], *, keep: KeepKeys | None = None, values_only: bool = False
) -> None:
    """Replace the tables' rows by the checkpoint's. Everything is checked before the first row is touched."""
    surplus = {info.name for info in checkpoint.manifest.tables} - {table.spec.name for table in tables}
    if surplus:
        raise CheckpointError(f"{checkpoint.location} has tables that the model has not: {', '.join(sorted(surplus))}")
    for table in tables:
        checkpoint.check_table(table.spec, reset_optimizer=values_only)
    for table in tables:
        _fill_table(checkpoint, table, keep, values_only)


def load_table(
    checkpoint: Checkpoint, table: SparseTable, *, keep: KeepKeys | None = None, values_only: bool = False
) -> None:
    """Replace one table's rows by the checkpoint's, whatever else the checkpoint holds."""
    checkpoint.check_table(table.spec, reset_optimizer=values_only)
    _fill_table(checkpoint, table, keep, values_only)


def _fill_table(checkpoint: Checkpoint, table: SparseTable, keep: KeepKeys | None, values_only: bool) -> None:
    table.clear()
    for rows in checkpoint.sparse_rows(table.spec.name, keep, read_state=not values_only):
        table.insert(_with_fresh_state(rows, table) if values_only else rows)
    table.step = 0 if values_only else checkpoint.manifest.table(table.spec.name).step


def load_blocks(checkpoint: Checkpoint, blocks: Sequence[HeldBlock], *, values_only: bool = False) -> None:
    """Replace the blocks' values and state by the checkpoint's."""
    for block in blocks:
        checkpoint.check_block(block.table.name, block.layout, block.table.rule, reset_optimizer=values_only)
    for block in blocks:
        load_block(checkpoint, block, values_only=values_only)


def load_block(checkpoint: Checkpoint, block: HeldBlock, *, values_only: bool = False) -> None:
    """Replace one block's values and state by the checkpoint's."""
    table = block.table
    checkpoint.check_block(table.name, block.layout, table.rule, reset_optimizer=values_only)
    piece = checkpoint.dense_cut(table.name, block.start, block.start + len(table), read_state=not values_only)
    table.values[:] = piece.values
    table.state[:] = table.rule.initial_state() if values_only else piece.state
    table.step = 0 if values_only else checkpoint.manifest.block(table.name).step


def _with_fresh_state(rows: TableRows, table: SparseTable) -> TableRows:
    state = np.full((len(rows), table.state_width), table.spec.rule.initial_state(), np.float32)
    return TableRows(rows.keys, rows.values, state, rows.seen)
