"""Holdings: the tables and cuts of dense blocks that this server has.

`bind` checks a message's parts against them, so that a record of several parts is applied whole. Tables and blocks are
made and loaded as records (`server/ledger.py`): none appears while a cut is named.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsefleet.checkpoint import Checkpoint, latest
from sparsefleet.core.batch import F32, U64
from sparsefleet.core.errors import CheckpointError, Disagreement, Rejoin, StoreError
from sparsefleet.core.keyed_rows import U32
from sparsefleet.optim.base import UpdateRule
from sparsefleet.server.gate import SLICE, OnWait
from sparsefleet.server.ledger import CREATE, LOAD, RATES, Ledger, Record
from sparsefleet.store.base import Layout, differing_layouts
from sparsefleet.store.partial import load_partially, plan_held
from sparsefleet.store.partition import Share, dense_cut
from sparsefleet.store.rates import lower_rates
from sparsefleet.store.shards import HeldBlock, ShardCut, check_fits, load_all, load_block, load_table
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
    counts: U32 | None = None
    """[U] how often each key occurs in what the values are gradients of; None: once each."""

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
    def __init__(self, index: int, ledger: Ledger, load_from: str | None = None, *, from_cut: bool = False) -> None:
        """from_cut: what it starts from is a cut of a job that heals, which can go back to an earlier one."""
        self._from_cut = from_cut
        self._index, self._ledger = index, ledger
        self._tables: dict[str, SparseTable] = {}
        self._blocks: dict[str, HeldBlock] = {}
        self._making = threading.Lock()
        """One table or block is made at a time; that may take long where it comes from a checkpoint."""
        self._made = threading.Condition()
        self._checkpoint = Checkpoint.open(latest(load_from)) if load_from else None
        self.loaded = load_from is not None
        """Whether anything here came from a checkpoint."""
        self.loads = 0
        """How often everything was replaced by a checkpoint's."""
        self.used_before = False
        """Whether rows may hold what a former job, or a former life of a trainer, has learnt."""
        self._filling: SparseTable | None = None
        """A table that is being made from the checkpoint."""
        self.unreadable: str | None = None
        """Why the cut that this server starts from could not be read, where that was found out on the way."""

    def create_table(self, spec: TableSpec, servers: int, on_wait: OnWait = lambda reason: None) -> None:
        """Make the table, from the checkpoint that the server starts from where it has one: that may take long."""
        with self._making:
            present = self._tables.get(spec.name)
            if present is None:
                table = SparseTable(spec)
                if self._checkpoint is not None and self._saved(spec.name, "tables"):
                    self._filling = table
                    try:
                        with self._noting_damage():
                            load_table(self._checkpoint, table, share=Share(self._index, servers))
                    finally:
                        self._filling = None

                def enter() -> None:
                    self._tables[spec.name] = table

                self._ledger.apply(Record(CREATE, parts=[spec]), enter, on_wait)
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
        """This server's cut of the block, and whether it is new. Without `may_create`, wait for another to make it.

        The trainer that made it on server 0 may have died on its way here: after so many `seconds`, one that waits
        makes it. Whoever comes later, the first maker too, takes the values that are here.
        """
        start, stop = dense_cut(size, self._index, servers)
        if len(values) != stop - start:
            raise WireError(
                f"dense block {name!r} of {size}: server {self._index} holds {stop - start} values; got {len(values)}"
            )
        deadline = time.monotonic() + seconds
        while (block := self._blocks.get(name)) is None:
            if may_create or time.monotonic() > deadline:
                made = self._make_dense(name, values, rule, layout, start, on_wait)
                if made is not None:
                    return made, True
                continue
            with self._made:
                self._made.wait_for(lambda: name in self._blocks, SLICE)
            if name not in self._blocks:
                on_wait(f"dense block {name!r} is being made")
        if block.table.rule != rule.for_dense():
            raise Disagreement(f"dense block {name!r} exists with another rule: {block.table.rule} there, {rule} here")
        if differing := differing_layouts(block.layout, layout):
            raise Disagreement(f"dense block {name!r} exists with another layout: {differing}")
        return block, False

    def _make_dense(
        self, name: str, values: F32, rule: UpdateRule, layout: Layout, start: int, on_wait: OnWait
    ) -> HeldBlock | None:
        """The new block, or None where another has made it meanwhile."""
        while not self._making.acquire(timeout=SLICE):
            on_wait("a checkpoint is being loaded")
        try:
            if name in self._blocks:
                return None
            block = HeldBlock(DenseTable(name, np.array(values, np.float32), rule), layout, start)
            if self._checkpoint is not None and self._saved(name, "blocks"):
                with self._noting_damage():
                    load_block(self._checkpoint, block)

            def enter() -> None:
                self._blocks[name] = block

            self._ledger.apply(Record(CREATE, parts=[block.table]), enter, on_wait)
        finally:
            self._making.release()
        with self._made:
            self._made.notify_all()
        return block

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

    def cut(self) -> ShardCut:
        """Everything as it is now; nobody changes it while this is called."""
        tables = sorted(self.tables(), key=lambda table: table.spec.name)
        return ShardCut(tables, sorted(self.blocks(), key=lambda held: held.table.name))

    def bind(self, parts: Sequence[Part], *, with_values: bool) -> list[Bound]:
        """The parts with their tables, shapes checked."""
        bound: list[Bound] = []
        for part in parts:
            if part.kind == ROWS:
                table = self.table(part.name)
                if not with_values and (len(part.floats) or part.counts is not None):
                    raise WireError(f"table {part.name!r}: a pull carries keys only; got {len(part.floats)} floats")
                values = part.rows(table.spec.dim) if with_values else part.floats
                bound.append(BoundRows(table, part.keys, values, part.counts))
            else:
                block = self.block(part.name)
                wanted = len(block.table) if with_values else 0
                if len(part.floats) != wanted:
                    raise WireError(f"dense block {part.name!r}: {wanted} floats belong here; got {len(part.floats)}")
                bound.append(BoundDense(block, part.floats))
        return bound

    def load(
        self, path: str, servers: int, values_only: bool, owner: str, patience: float, *, partial: bool = False
    ) -> None:
        """Replace everything by a checkpoint's, in the name of `owner`; `partial`: all that fits."""
        checkpoint = Checkpoint.open(path)
        with self._making:
            tables, blocks = self.tables(), self.blocks()

            def check() -> None:
                """What does not fit, or a cut that is being written, is found before anything is touched."""
                if partial:
                    plan_held(checkpoint, tables, blocks, values_only=values_only)
                else:
                    check_fits(checkpoint, tables, blocks, values_only=values_only)

            def fill() -> None:
                self.loaded, self.loads = True, self.loads + 1
                share = Share(self._index, servers)
                if partial:
                    load_partially(checkpoint, tables, blocks, share=share, values_only=values_only)
                else:
                    load_all(checkpoint, tables, blocks, share=share, values_only=values_only)

            record = Record(LOAD, parts=[*(table.spec for table in tables), *(block.table for block in blocks)])
            self._ledger.apply_alone(record, check, fill, owner, patience)

    def lower_rates(self, factor: float) -> None:
        """From the next step on; see `store/rates.py`. Waits while a cut is named, which holds the old rates or the new
        ones in all tables."""
        blocks = [block.table for block in self.blocks()]
        record = Record(RATES, parts=[*(table.spec for table in self.tables()), *blocks])
        self._ledger.apply(record, lambda: lower_rates(self.tables(), blocks, factor), lambda reason: None)

    def let_go(self) -> None:
        """Nothing is held any more: what a message under way has its hands on goes when that is done."""
        self._tables, self._blocks, self._checkpoint = {}, {}, None

    def rows(self) -> int:
        """Rows that are here, those of a table that is still being filled too: grows while something is loaded."""
        filling = self._filling
        return sum(len(table) for table in [*self.tables(), *([filling] if filling else [])])

    def start_buffers(self) -> dict[str, npt.NDArray[Any]]:
        """What the checkpoint that this server starts from holds besides tables and blocks; nothing without one."""
        with self._noting_damage():
            return dict(self._checkpoint.buffers()) if self._checkpoint is not None else {}

    def start_samples(self) -> tuple[Mapping[str, Any] | None, Mapping[str, Any] | None]:
        """How the samples were read that this checkpoint was trained on, and their schema; None: it is not known."""
        manifest = None if self._checkpoint is None else self._checkpoint.manifest
        return (None, None) if manifest is None else (manifest.inputs, manifest.schema)

    def stats(self) -> dict[str, Any]:
        return {
            "loaded": self.loaded,
            "loads": self.loads,
            "used_before": self.used_before,
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

    @contextmanager
    def _noting_damage(self) -> Iterator[None]:
        try:
            yield
        except CheckpointError as error:
            if not self._from_cut:
                raise
            self.unreadable = self.unreadable or str(error)
            raise Rejoin(f"the cut that this attempt began from cannot be read: {error}") from error

    def _saved(self, name: str, kind: str) -> bool:
        assert self._checkpoint is not None
        return any(info.name == name for info in getattr(self._checkpoint.manifest, kind))


def apply_all(parts: Sequence[Bound]) -> None:
    """One step of each part's rule."""
    for part in parts:
        if isinstance(part, BoundRows):
            part.table.push(part.keys, part.values, part.counts)
        else:
            part.block.table.push(part.values)
