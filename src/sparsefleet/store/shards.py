"""Tables and dense blocks to and from checkpoints: what a store in one process and every server share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sparsefleet.checkpoint import (
    Base,
    BlockInfo,
    Checkpoint,
    DensePiece,
    FileEntry,
    Location,
    Manifest,
    Partition,
    TableInfo,
    write_dense,
    write_sparse_shard,
)
from sparsefleet.checkpoint.manifest import DELTA_VERSION, VERSION
from sparsefleet.checkpoint.sparse import group_rows
from sparsefleet.core.errors import CheckpointError
from sparsefleet.core.table_rows import TableRows
from sparsefleet.store.base import Layout, RunFacts
from sparsefleet.store.partition import PARTITION, Share
from sparsefleet.store.rates import with_saved_drops
from sparsefleet.table.dense import DenseCut, DenseTable
from sparsefleet.table.sparse import SparseTable, TableCut


@dataclass(frozen=True)
class HeldBlock:
    """A dense block as one process holds it: all of it, or the cut that starts at `start`."""

    table: DenseTable
    layout: Layout
    """Of the whole block."""
    start: int = 0

    def begin_cut(self) -> BlockCut:
        return BlockCut(self.table.begin_cut(), self.layout, self.start)


@dataclass(frozen=True)
class BlockCut:
    """A held block at one moment."""

    block: DenseCut
    layout: Layout
    start: int

    def info(self, drop_state: bool = False) -> BlockInfo:
        block = self.block
        return BlockInfo.of(block.name, self.layout, block.rule, block.step, drop_state=drop_state)


class ShardCut:
    """All that this process holds at one moment, to be written while pushes go on.

    Nobody pushes while it is made: whoever makes it holds pushes off, for an instant whatever the tables' size. Close
    it, whether it was written or not: until then rows that change are kept aside.
    """

    def __init__(self, tables: Iterable[SparseTable], blocks: Iterable[HeldBlock]) -> None:
        self.tables: list[TableCut] = []
        self.blocks: list[BlockCut] = []
        try:
            for table in tables:
                self.tables.append(table.begin_cut())
            for block in blocks:
                self.blocks.append(block.begin_cut())
        except BaseException:
            self.close()
            raise

    def write(
        self,
        directory: Location,
        shard: int,
        *,
        drop_state: bool = False,
        since: Mapping[str, int] | None = None,
    ) -> list[FileEntry]:
        """Write the files of this process into a draft's directory; once, for tables are read once.

        since: the `clocks` of an earlier cut; then only rows that changed after it are written. Of a table that was not
        there yet all are, and of an exact one: there each step changes every row.
        """
        files: list[FileEntry] = []
        for table in self.tables:
            spec, state_width = table.spec, 0 if drop_state else table.state_width
            clock = None if since is None or table.exact else since.get(spec.name)
            rows = table.scan(group_rows(spec.dim, state_width), since=clock)
            # Who writes deltas writes them often, and only loads read them; whole ones are for other programs too.
            packed = since is not None
            files += write_sparse_shard(directory, spec.name, shard, rows, spec.dim, state_width, packed=packed)
            table.close()
        pieces = []
        for held in self.blocks:
            block = held.block
            if len(block):
                state = block.state[:0] if drop_state else block.state
                pieces.append((DensePiece(block.name, held.start, block.values, state), held.info().layout))
        return files + write_dense(directory, shard, pieces)

    def clocks(self) -> dict[str, int]:
        """By table, its clock at this cut: every row that changes afterwards is touched later."""
        return {table.spec.name: table.step for table in self.tables}

    def rows(self) -> dict[str, int]:
        """By table, how many rows the cut has."""
        return {table.spec.name: table.rows for table in self.tables}

    def table_infos(self, drop_state: bool = False) -> list[TableInfo]:
        return [TableInfo.of(table.spec, table.step, drop_state=drop_state) for table in self.tables]

    def block_infos(self, drop_state: bool = False) -> list[BlockInfo]:
        return [block.info(drop_state) for block in self.blocks]

    def close(self) -> None:
        """Let go of what is kept aside; closing twice does nothing."""
        for table in self.tables:
            table.close()

    def __enter__(self) -> ShardCut:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def manifest_of(
    facts: RunFacts,
    tables: Iterable[TableInfo],
    blocks: Iterable[BlockInfo],
    files: Sequence[FileEntry],
    *,
    servers: int | None = None,
    base: Base | None = None,
) -> Manifest:
    """servers: how many wrote their shares of the rows; None: one process wrote all. base: what it is a delta of."""
    return Manifest(
        step=facts.step,
        tables=tuple(tables),
        blocks=tuple(blocks),
        files=tuple(files),
        schema=facts.schema,
        inputs=facts.inputs,
        model=facts.model,
        positions=facts.positions,
        extra=facts.extra,
        partition=Partition(PARTITION, servers) if servers else None,
        base=base,
        version=VERSION if base is None else DELTA_VERSION,
    )


def facts_of(checkpoint: Checkpoint) -> RunFacts:
    manifest = checkpoint.manifest
    return RunFacts(
        step=manifest.step,
        schema=manifest.schema,
        inputs=manifest.inputs,
        model=manifest.model,
        positions=manifest.positions,
        extra=manifest.extra,
        buffers=checkpoint.buffers(),
    )


def load_all(
    checkpoint: Checkpoint,
    tables: Sequence[SparseTable],
    blocks: Sequence[HeldBlock],
    *,
    share: Share | None = None,
    values_only: bool = False,
) -> None:
    """Replace all that this process holds by the checkpoint's. Everything is checked before anything is touched."""
    check_fits(checkpoint, tables, blocks, values_only=values_only)
    for block in blocks:
        load_block(checkpoint, block, values_only=values_only)
    for table in tables:
        _fill_table(checkpoint, table, share, values_only)


def check_fits(
    checkpoint: Checkpoint, tables: Sequence[SparseTable], blocks: Sequence[HeldBlock], *, values_only: bool = False
) -> None:
    """Raise unless the checkpoint can be loaded into these tables and blocks now."""
    for block in blocks:
        checkpoint.check_block(block.table.name, block.layout, block.table.rule, reset_optimizer=values_only)
    surplus = {info.name for info in checkpoint.manifest.tables} - {table.spec.name for table in tables}
    if surplus:
        raise CheckpointError(f"{checkpoint.location} has tables that the model has not: {', '.join(sorted(surplus))}")
    for table in tables:
        table.check_clearable()
        checkpoint.check_table(table.spec, reset_optimizer=values_only)


def load_table(
    checkpoint: Checkpoint, table: SparseTable, *, share: Share | None = None, values_only: bool = False
) -> None:
    """Replace one table's rows by the checkpoint's, whatever else the checkpoint holds."""
    checkpoint.check_table(table.spec, reset_optimizer=values_only)
    _fill_table(checkpoint, table, share, values_only)


def _fill_table(checkpoint: Checkpoint, table: SparseTable, share: Share | None, values_only: bool) -> None:
    table.clear()
    # State that the table has no place for, because trainers keep it (geo), is left in the files.
    read_state = not values_only and table.state_width > 0
    info = checkpoint.manifest.table(table.spec.name)
    for rows in _rows_of(checkpoint, table.spec.name, share, read_state):
        if values_only:
            rows = _with_fresh_state(rows, table)
        elif table.exact and not info.rule.get("exact"):
            # Rows that were trained lazily: what their steps left out is not made up for, but from here on nothing is.
            now = np.full(len(rows), info.step, np.uint32)
            rows = TableRows(rows.keys, rows.values, rows.state, rows.seen, now)
        table.insert(rows)
    if not values_only:  # before the step: an exact table asks the rule what rates the steps so far had
        table.spec = replace(table.spec, rule=with_saved_drops(table.spec.rule, info.rule))
    table.step = 0 if values_only else info.step


def _rows_of(checkpoint: Checkpoint, table: str, share: Share | None, read_state: bool) -> Iterator[TableRows]:
    """All rows of a table, or one server's: from its own files where rows were spread over servers as they are now.

    Of a delta, rows of those before it first: a key may come again, and its last row is the one that counts.
    """
    for layer in checkpoint.layers():
        if layer.has_table(table):
            yield from _rows_of_layer(layer, table, share, read_state)


def _rows_of_layer(checkpoint: Checkpoint, table: str, share: Share | None, read_state: bool) -> Iterator[TableRows]:
    if share is None or share.servers == 1:
        yield from checkpoint.own_rows(table, read_state=read_state)
    elif checkpoint.manifest.partition != Partition(PARTITION, share.servers):
        yield from checkpoint.own_rows(table, share.mine, read_state=read_state)
    else:
        for rows in checkpoint.own_rows(table, read_state=read_state, shard=share.index):
            strangers = np.count_nonzero(~share.mine(rows.keys))
            if strangers:
                raise CheckpointError(
                    f"{checkpoint.location}: table {table!r}: the files of shard {share.index} hold {strangers} keys "
                    f"that server {share.index} of {share.servers} does not own, though the manifest says they are "
                    "spread so: files were exchanged. Take another checkpoint"
                )
            yield rows


def load_block(checkpoint: Checkpoint, block: HeldBlock, *, values_only: bool = False) -> None:
    """Replace one block's values and state by the checkpoint's."""
    table = block.table
    checkpoint.check_block(table.name, block.layout, table.rule, reset_optimizer=values_only)
    read_state = not values_only and len(table.state) > 0
    piece = checkpoint.dense_cut(table.name, block.start, block.start + len(table), read_state=read_state)
    table.values[:] = piece.values
    table.state[:] = table.rule.initial_state() if values_only else piece.state
    saved = checkpoint.manifest.block(table.name)
    table.step = 0 if values_only else saved.step
    if not values_only:
        table.rule = with_saved_drops(table.rule, saved.rule)


def _with_fresh_state(rows: TableRows, table: SparseTable) -> TableRows:
    state = np.full((len(rows), table.state_width), table.spec.rule.initial_state(), np.float32)
    # Its clock begins anew too: by default rows say that they were never touched.
    return TableRows(rows.keys, rows.values, state, rows.seen)
