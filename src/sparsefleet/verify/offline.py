"""The offline side: a checkpoint's rows and its network in torch, as trained and as an export should have kept them.

Legend: U keys, D values a row, B samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from torch import nn

from sparsefleet.checkpoint import Checkpoint
from sparsefleet.core.batch import F32, U64, Batch
from sparsefleet.core.table_rows import U32
from sparsefleet.export.kernels.bundle_rows import Found, RowType
from sparsefleet.export.manifest import BundleManifest
from sparsefleet.export.rows_writer import as_kept
from sparsefleet.metrics.base import PROBABILITY
from sparsefleet.nn.objective import label_names
from sparsefleet.serving.source import SourceError, SparseSource
from sparsefleet.store.base import Done
from sparsefleet.train.replica import Scorer
from sparsefleet.verify.http_client import ONLY

SCORED_TOGETHER = 1000


@dataclass(frozen=True, slots=True)
class KnownRows:
    """Some rows of one table; keys ascend."""

    keys: U64
    values: F32
    seen: U32

    def lookup(self, keys: U64) -> tuple[F32, Found]:
        """Rows [U, D], zeros where there is none, and which there are [U]."""
        if not len(self.keys):
            return np.zeros((len(keys), self.values.shape[1]), np.float32), np.zeros(len(keys), np.bool_)
        at = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        found = self.keys[at] == keys
        return np.where(found[:, None], self.values[at], np.float32(0)), found

    def kept(self, dtype: RowType, min_seen: int, table: str) -> KnownRows:
        """As an export with these options keeps them."""
        enough = self.seen >= min_seen
        return KnownRows(self.keys[enough], as_kept(self.values[enough], dtype, table), self.seen[enough])


def rows_for(checkpoint: Checkpoint, keys: U64) -> dict[str, KnownRows]:
    """The rows of these keys in every table. Reads the files once, and keeps only the rows that are wanted."""
    wanted = np.unique(keys)
    found = {}
    for info in checkpoint.manifest.tables:
        parts = list(checkpoint.sparse_rows(info.name, lambda some: np.isin(some, wanted), read_state=False))
        held = np.concatenate([np.empty(0, np.uint64), *(part.keys for part in parts)])
        values = np.concatenate([np.empty((0, info.dim), np.float32), *(part.values for part in parts)])
        seen = np.concatenate([np.empty(0, np.uint32), *(part.seen for part in parts)])
        order = np.argsort(held)
        found[info.name] = KnownRows(held[order], values[order], seen[order])
    return found


def as_exported(rows: Mapping[str, KnownRows], manifest: BundleManifest) -> dict[str, KnownRows]:
    """What the bundle should hold of these rows, according to its own manifest (types, rows left out)."""
    types = {table.name: RowType[table.dtype.upper()] for table in manifest.tables}
    return {name: known.kept(types.get(name, RowType.FLOAT32), manifest.min_seen, name) for name, known in rows.items()}


class OfflineSource(SparseSource):
    """Gives the checkpoint's rows to a bundle's network, so that only the network can differ from torch."""

    def __init__(self, rows: Mapping[str, KnownRows]) -> None:
        self._rows = rows

    def rows(self, table: str, keys: U64) -> tuple[F32, Found]:
        if table not in self._rows:
            raise SourceError(f"the checkpoint has no table {table!r}")
        return self._rows[table].lookup(keys)


def torch_scores(model: nn.Module, rows: Mapping[str, KnownRows], batch: Batch) -> dict[str, F32]:
    """Probabilities [B] of the training network by label, computed as `sparsefleet infer` does."""
    scorer = Scorer(model, lambda table, keys: Done(rows[table].lookup(keys)[0]))
    starts = range(0, len(batch), SCORED_TOGETHER)
    found = [scorer.outputs(batch.samples(at, min(at + SCORED_TOGETHER, len(batch)))) for at in starts]
    labels = None if hasattr(model, "probabilities") else label_names(model)
    named = {ONLY: PROBABILITY} if labels is None else {label: label for label in labels}
    return {label: np.concatenate([part[output] for part in found]) for label, output in named.items()}
