"""LocalStore: all parameters in this process. No server, no socket; every call is done when it returns."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from sparsefleet.checkpoint import Checkpoint, Manifest, begin, commit, latest, write_buffers
from sparsefleet.core.batch import F32, U64, Mark
from sparsefleet.core.errors import StoreError
from sparsefleet.core.keyed_rows import KeyedRows
from sparsefleet.optim.base import UpdateRule
from sparsefleet.store.base import Done, Layout, ParameterStore, RunFacts, StoreCut, differing_layouts
from sparsefleet.store.partial import load_partially
from sparsefleet.store.rates import lower_rates
from sparsefleet.store.shards import HeldBlock, ShardCut, facts_of, load_all, manifest_of
from sparsefleet.table.dense import DenseTable
from sparsefleet.table.sparse import SparseTable
from sparsefleet.table.spec import TableSpec


class LocalCut(StoreCut):
    def __init__(self, shard: ShardCut) -> None:
        self._shard = shard

    def write(self, path: str, facts: RunFacts, *, drop_state: bool = False, since: str | None = None) -> Manifest:
        """Whole, whatever `since` says: jobs of one process do not heal, and take no cuts often."""
        shard = self._shard
        with begin(path) as draft:
            files = shard.write(draft.directory, 0, drop_state=drop_state)
            files += write_buffers(draft.directory, facts.buffers)
            manifest = manifest_of(facts, shard.table_infos(drop_state), shard.block_infos(drop_state), files)
            commit(draft, manifest)
        return manifest

    def close(self) -> None:
        self._shard.close()


class LocalStore(ParameterStore):
    def __init__(self) -> None:
        self._sparse: dict[str, SparseTable] = {}
        self._dense: dict[str, DenseTable] = {}
        self._layouts: dict[str, Layout] = {}
        self._creating = threading.Lock()

    def create_table(self, spec: TableSpec) -> None:
        with self._creating:
            present = self._sparse.get(spec.name)
            if present is None:
                self._sparse[spec.name] = SparseTable(spec)
                return
        present.spec.check_same(spec)

    def create_dense(self, name: str, values: F32, rule: UpdateRule, layout: Layout) -> None:
        with self._creating:
            present = self._dense.get(name)
            if present is None:
                self._dense[name] = DenseTable(name, values, rule)
                self._layouts[name] = layout
                return
        if present.rule != rule.for_dense():
            raise StoreError(f"dense block {name!r} exists with another rule: {present.rule} there, {rule} here")
        if differing := differing_layouts(self._layouts[name], layout):
            raise StoreError(f"dense block {name!r} exists with another layout: {differing}")
        self.pull_dense(name, values)
        present.values = values  # adopted in place of the array before: whoever bound last sees updates at once

    def pull(self, table: str, keys: U64, *, create: bool = True) -> Done[F32]:
        return Done(self._sparse_table(table).pull(keys, create))

    def pull_dense(self, name: str, out: F32) -> Done[None]:
        block = self._dense_table(name)
        if not isinstance(out, np.ndarray) or out.dtype != np.float32 or out.shape != block.values.shape:
            came = f"{out.dtype} of shape {list(out.shape)}" if isinstance(out, np.ndarray) else type(out)
            raise StoreError(
                f"dense block {name!r} has {len(block)} values: out must be float32 of shape [{len(block)}]; got {came}"
            )
        if out is not block.values:
            np.copyto(out, block.values)
        return Done(None)

    def push_step(
        self,
        sparse: Mapping[str, KeyedRows],
        dense: Mapping[str, F32] | None = None,
        *,
        steps: int = 0,
        marks: Sequence[Mark] = (),
        fresh: Mapping[str, F32] | None = None,
    ) -> Done[None]:
        for table, rows in sparse.items():
            self._sparse_table(table).push(rows.keys, rows.rows, rows.counts)
        for name, grads in (dense or {}).items():
            self._dense_table(name).push(grads)
        for name, out in (fresh or {}).items():
            self.pull_dense(name, out)
        return Done(None)

    def cut(self) -> LocalCut:
        return LocalCut(ShardCut(self._sparse.copy().values(), self._held_blocks()))

    def load(self, path: str, *, values_only: bool = False, partial: bool = False) -> RunFacts:
        checkpoint = Checkpoint.open(latest(path))
        if partial:
            load_partially(checkpoint, list(self._sparse.values()), self._held_blocks(), values_only=values_only)
            return facts_of(checkpoint)
        load_all(checkpoint, list(self._sparse.values()), self._held_blocks(), values_only=values_only)
        return facts_of(checkpoint)

    def lower_rates(self, factor: float) -> None:
        lower_rates(self._sparse.copy().values(), self._dense.copy().values(), factor)

    def stats(self) -> dict[str, Any]:
        return {
            "tables": {name: table.stats() for name, table in self._sparse.copy().items()},
            "dense": {
                name: {"values": len(block), "memory_bytes": block.memory_bytes, "step": block.step}
                for name, block in self._dense.copy().items()
            },
        }

    def sparse_tables(self) -> Mapping[str, SparseTable]:
        return MappingProxyType(self._sparse)

    def dense_tables(self) -> Mapping[str, DenseTable]:
        return MappingProxyType(self._dense)

    def _held_blocks(self) -> list[HeldBlock]:
        return [HeldBlock(block, self._layouts[name]) for name, block in self._dense.copy().items()]

    def _sparse_table(self, name: str) -> SparseTable:
        try:
            return self._sparse[name]
        except KeyError:
            raise StoreError(
                f"there is no table {name!r}; there are: {', '.join(self._sparse) or 'none'} (create_table makes one)"
            ) from None

    def _dense_table(self, name: str) -> DenseTable:
        try:
            return self._dense[name]
        except KeyError:
            raise StoreError(
                f"there is no dense block {name!r}; there are: {', '.join(self._dense) or 'none'} "
                "(create_dense makes one)"
            ) from None
