"""Holdings: the tables and cuts of dense blocks that this server has.

`bind` checks a message's parts against them; what is bound can be applied without failing half-way.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsefleet.checkpoint import Checkpoint, latest
from sparsefleet.core.batch import F32, U64
from sparsefleet.core.errors import Disagreement, StoreError
from sparsefleet.optim.base import UpdateRule
from sparsefleet.server.cut import SLICE, OnWait
from sparsefleet.store.base import Layout, differing_layouts
from sparsefleet.store.partition import dense_cut, server_of
from sparsefleet.store.saving import HeldBlock, load_block, load_blocks, load_table, load_tables
from sparsefleet.store.wire import Part, WireError
from sparsefleet.store.wire.parts import ROWS
from sparsefleet.table.dense import DenseTable
from sparsefleet.table.sparse import SparseTable
from sparsefleet.table.spec import TableSpec


@dataclass(frozen=True, slots=True)
class BoundRows:
    table: SparseTable
    keys: U64
    values: F32
    """[U, D], or empty where the message only asks."""

    @property
    def name(self) -> str:
        return self.table.spec.name


@dataclass(frozen=True, slots=True)
class BoundDense:
    block: HeldBlock
    values: F32

    @property
    def name(self) -> str:
        return self.block.table.name


Bound = BoundRows | BoundDense


class Holdings:
    def __init__(self, index: int, load_from: str | None = None) -> None:
        self._index = index
        self._tables: dict[str, SparseTable] = {}
        self._blocks: dict[str, HeldBlock] = {}
        self._changed = threading.Condition()
        self._checkpoint = Checkpoint.open(latest(load_from)) if load_from else None
        self.loaded = load_from is not None
        """Whether anything here came from a checkpoint."""
        self._filling: SparseTable | None = None
        """A table that is being made from the checkpoint."""

    def create_table(self, spec: TableSpec, servers: int) -> None:
        """Make the table, from the checkpoint that the server starts from where it has one: that may take long."""
        with self._changed:
            present = self._tables.get(spec.name)
            if present is None:
                table = SparseTable(spec)
                if self._checkpoint is not None and self._saved(spec.name, "tables"):
                    self._filling = table
                    try:
                        load_table(self._checkpoint, table, keep=self._mine(servers))
                    finally:
                        self._filling = None
                self._tables[spec.name] = table
                return
        present.spec.check_same(spec)

    def create_dense(
        self,
        name: str,
        size: int,
        values: F32,
        rule: UpdateRule,
        layout: Layout,
        servers: int,
        may_create: bool,
        seconds: float,
        on_wait: OnWait,
    ) -> tuple[HeldBlock, bool]:
        """This server's cut of the block, and whether it is new. Without `may_create`, wait for another to make it."""
        start, stop = dense_cut(size, self._index, servers)
        if len(values) != stop - start:
            raise WireError(
                f"dense block {name!r} of {size}: server {self._index} holds {stop - start} values; got {len(values)}"
            )
        deadline = time.monotonic() + seconds
        while True:
            if not self._changed.acquire(timeout=SLICE):
                on_wait("a checkpoint is being loaded")
                continue
            try:
                block = self._blocks.get(name)
                if block is None and may_create:
                    block = HeldBlock(DenseTable(name, np.array(values, np.float32), rule), layout, start)
                    if self._checkpoint is not None and self._saved(name, "blocks"):
                        load_block(self._checkpoint, block)
                    self._blocks[name] = block
                    self._changed.notify_all()
                    return block, True
                if block is not None:
                    break
                self._changed.wait(SLICE)
            finally:
                self._changed.release()
            if time.monotonic() > deadline:
                raise StoreError(f"dense block {name!r}: the trainer that made it on server 0 did not make it here")
            on_wait(f"dense block {name!r} is being made")
        if block.table.rule != rule.for_dense():
            raise Disagreement(f"dense block {name!r} exists with another rule: {block.table.rule} there, {rule} here")
        if differing := differing_layouts(block.layout, layout):
            raise Disagreement(f"dense block {name!r} exists with another layout: {differing}")
        return block, False

    def table(self, name: str) -> SparseTable:
        try:
            return self._tables[name]
        except KeyError:
            known = ", ".join(self._tables) or "none"
            raise StoreError(f"there is no table {name!r}; there are: {known} (create_table makes one)") from None

    def block(self, name: str) -> HeldBlock:
        try:
            return self._blocks[name]
        except KeyError:
            known = ", ".join(self._blocks) or "none"
            raise StoreError(f"there is no dense block {name!r}; there are: {known} (create_dense makes one)") from None

    def tables(self) -> list[SparseTable]:
        return list(self._tables.values())

    def blocks(self) -> list[HeldBlock]:
        return list(self._blocks.values())

    def bind(self, parts: Sequence[Part], *, with_values: bool) -> list[Bound]:
        """The parts with their tables, shapes checked."""
        bound: list[Bound] = []
        for part in parts:
            if part.kind == ROWS:
                table = self.table(part.name)
                if not with_values and len(part.floats):
                    raise WireError(f"table {part.name!r}: a pull carries keys only; got {len(part.floats)} floats")
                bound.append(BoundRows(table, part.keys, part.rows(table.spec.dim) if with_values else part.floats))
            else:
                block = self.block(part.name)
                wanted = len(block.table) if with_values else 0
                if len(part.floats) != wanted:
                    raise WireError(f"dense block {part.name!r}: {wanted} floats belong here; got {len(part.floats)}")
                bound.append(BoundDense(block, part.floats))
        return bound

    def load(self, path: str, servers: int, values_only: bool) -> None:
        checkpoint = Checkpoint.open(path)
        with self._changed:
            self.loaded = True
            load_blocks(checkpoint, self.blocks(), values_only=values_only)
            load_tables(checkpoint, self.tables(), keep=self._mine(servers), values_only=values_only)

    def rows(self) -> int:
        """Rows that are here, those of a table that is still being filled too: grows while something is loaded."""
        filling = self._filling
        return sum(len(table) for table in [*self.tables(), *([filling] if filling else [])])

    def start_buffers(self) -> dict[str, npt.NDArray[Any]]:
        """What the checkpoint that this server starts from holds besides tables and blocks; nothing without one."""
        return dict(self._checkpoint.buffers()) if self._checkpoint is not None else {}

    def stats(self) -> dict[str, Any]:
        return {
            "loaded": self.loaded,
            "tables": {table.spec.name: dict(table.stats()) for table in self.tables()},
            "dense": {
                block.table.name: {
                    "values": len(block.table),
                    "memory_bytes": block.table.memory_bytes,
                    "step": block.table.step,
                }
                for block in self.blocks()
            },
        }

    def _mine(self, servers: int) -> Any:
        def keep(keys: U64) -> npt.NDArray[np.bool_]:
            return np.asarray(server_of(keys, servers) == self._index)

        return keep if servers > 1 else None

    def _saved(self, name: str, kind: str) -> bool:
        assert self._checkpoint is not None
        return any(info.name == name for info in getattr(self._checkpoint.manifest, kind))


def apply_push(bound: Bound) -> None:
    """One step of the rule."""
    if isinstance(bound, BoundRows):
        bound.table.push(bound.keys, bound.values)
    else:
        bound.block.table.push(bound.values)
