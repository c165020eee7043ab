"""Small checkpoints for tests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsefleet.checkpoint import (
    AnyPath,
    BlockInfo,
    Checkpoint,
    DensePiece,
    Location,
    Manifest,
    TableInfo,
    begin,
    commit,
    write_buffers,
    write_dense,
    write_sparse_shard,
)
from sparsefleet.core.table_rows import TableRows

LAYOUT = (("fc1.weight", (4, 3)), ("fc1.bias", (4,)), ("empty", (0, 7)), ("scale", ()))
SIZE = 17
CREATED = "2026-01-31T12:00:00.000000Z"


@dataclass(frozen=True)
class Rule:
    """What checkpoints ask of an update rule, without its arithmetic."""

    name: str = "adam"
    floats: int = 2
    learning_rate: float = 0.1

    def state_width(self, dim: int) -> int:
        return self.floats * dim

    def for_dense(self) -> Rule:
        return self

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "learning_rate": self.learning_rate}


@dataclass(frozen=True)
class Spec:
    name: str = "T"
    dim: int = 3
    rule: Rule = Rule()


def make_rows(count: int, dim: int = 3, state_width: int = 6, seed: int = 0) -> TableRows:
    rng = np.random.default_rng(seed)
    keys = np.unique(rng.integers(0, 2**64 - 1, count + 8, dtype=np.uint64))[:count]
    assert len(keys) == count
    return TableRows(
        rng.permutation(keys),
        rng.standard_normal((count, dim), np.float32),
        rng.standard_normal((count, state_width), np.float32),
        rng.integers(0, 2**32 - 1, count, np.uint32),
        rng.integers(0, 2**32 - 1, count, np.uint32),
    )


def chunked(rows: TableRows, size: int) -> Iterator[TableRows]:
    for start in range(0, len(rows), size):
        yield rows.select(np.arange(start, min(start + size, len(rows))))


def joined(parts: Iterable[TableRows], dim: int = 3, state_width: int = 6) -> TableRows:
    """All rows in order of keys."""
    parts = [make_rows(0, dim, state_width), *parts]
    rows = TableRows(
        np.concatenate([part.keys for part in parts]),
        np.concatenate([part.values for part in parts]),
        np.concatenate([part.state for part in parts]),
        np.concatenate([part.seen for part in parts]),
        np.concatenate([part.touched for part in parts]),
    )
    return rows.select(np.argsort(rows.keys))


def assert_same_rows(a: TableRows, b: TableRows) -> None:
    a, b = a.select(np.argsort(a.keys)), b.select(np.argsort(b.keys))
    for field in ("keys", "values", "state", "seen", "touched"):
        # Bits, not numbers: NaN payloads and signed zeros must survive too.
        assert getattr(a, field).tobytes() == getattr(b, field).tobytes(), field


def dense_values(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal(SIZE, np.float32), rng.standard_normal(2 * SIZE, np.float32)


def save(
    path: AnyPath,
    *,
    step: int = 1,
    rows: TableRows | None = None,
    seed: int = 0,
    shards: int = 1,
    **fields: Any,
) -> Location:
    """One table T (dim 3, Adam), one block `model`, one buffer."""
    rows = make_rows(50, seed=seed) if rows is None else rows
    values, state = dense_values(seed)
    state = state.reshape(2, SIZE)
    cuts = [SIZE * index // shards for index in range(shards + 1)]
    with begin(path) as draft:
        files = []
        for shard in range(shards):
            mine = rows.select(rows.keys % np.uint64(shards) == shard)
            files += write_sparse_shard(
                str(draft.directory) if draft.target.uri else draft.directory,
                "T",
                shard,
                chunked(mine, 7),
                3,
                6,
            )
            start, stop = cuts[shard], cuts[shard + 1]
            piece = DensePiece(
                "model", start, values[start:stop], np.ascontiguousarray(state[:, start:stop]).reshape(-1)
            )
            files += write_dense(draft.directory, shard, [(piece, LAYOUT)])
        files += write_buffers(draft.directory, {"bn.count": np.array(7, np.int64)})
        manifest = Manifest(
            step=step,
            tables=(
                TableInfo("T", 3, Rule().to_dict(), 6, {"name": "Uniform", "low": -0.01, "high": 0.01}, step=step),
            ),
            blocks=(BlockInfo("model", SIZE, LAYOUT, Rule().to_dict(), 2, step),),
            files=tuple(files),
            positions={"0": {"unit": 3, "rows": 120}},
            **fields,
        )
        return commit(draft, manifest)


def assert_whole(path: AnyPath, *, step: int, seed: int = 0) -> None:
    """The checkpoint at `path` is the one that `save(path, step=step, seed=seed)` wrote."""
    checkpoint = Checkpoint.open(path)
    assert checkpoint.manifest.step == step
    checkpoint.verify()
    assert_same_rows(joined(checkpoint.sparse_rows("T")), make_rows(50, seed=seed))
    values, state = dense_values(seed)
    piece = checkpoint.dense_cut("model")
    assert piece.values.tobytes() == values.tobytes()
    assert piece.state.tobytes() == state.tobytes()
