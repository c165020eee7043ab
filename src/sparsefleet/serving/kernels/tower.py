"""Networks that are plain towers: the dense layers of a served version, and the way to them from keys, in one native
call each.

Legend: B samples, S slots, n dense features.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from sparsefleet.core.batch import F32, I64, U64
from sparsefleet.core.errors import BundleError
from sparsefleet.export.kernels.bundle_rows import DAMAGED, U8, RowsLayout
from sparsefleet.kernels.levels import native as _native
from sparsefleet.serving.kernels.redis_rows import BucketPlace, RowCache
from sparsefleet.serving.kernels.request import PlainRequests


class ServedTower:
    """Dense layers with relu between them, and a click's probability at the end. Threads may share one."""

    def __init__(self, weights: Sequence[F32], biases: Sequence[F32], column: int) -> None:
        """weights[i] [out, in], of two layers at least. The last gives one logit, or a softmax pair (2) whose `column`
        is the click's. All are copied, laid out for the products."""
        self._native = _native.ServedTower(list(weights), list(biases), column)

    def probabilities(self, x: F32) -> F32:
        """[B] from x [B, in]. Columns that all samples share are multiplied once, so the last bits of a sample's
        probability depend on which those are."""
        out = np.empty(len(x), np.float32)
        self._native.probabilities(x, out)
        return out


class PooledColumns(NamedTuple):
    """Pooled slots of a table, as columns of the tower's input."""

    places: list[int]
    """Among the table's slots."""
    mean: bool
    column: int
    """The first of them."""


class MappedTable(NamedTuple):
    data: U8
    """A mapped rows file."""
    layout: RowsLayout
    slots: list[int]
    """Of all slots those that the table is for; empty: all, in their order."""
    embeddings: list[PooledColumns]


class NetworkPlan(NamedTuple):
    """What a network over rows from anywhere is made of: its tower, and what fills the tower's input."""

    tower: ServedTower
    tables: list[tuple[str, list[int], list[PooledColumns]]]
    """Name, slots (as in `MappedTable`) and embeddings of each."""
    slots: int
    dense: int
    dense_column: int


class RedisTable(NamedTuple):
    cache: RowCache
    seed: int
    bits: int
    dim: int
    stride: int
    type: int
    place: BucketPlace
    hot: U64
    """Keys of the rows that lie side by side, in their order; none: []."""
    hot_hash: bytes
    """Where they lie."""


class BodiesScored(NamedTuple):
    """Requests that were scored together."""

    probabilities: list[F32 | None]
    """[B] of each; None: it is not a plain request, or has more samples than it may have, or none."""
    keys: int
    """Distinct ones of all of them."""
    unknown: int
    """Of these, the keys without a row, which count as zeros."""


class RedisScored(NamedTuple):
    """Of `RedisNetwork.score_bodies`."""

    scored: BodiesScored
    """Not to be used where the exchange did not end well."""
    fetched: int
    """Keys that were not cached. 0: nothing was sent."""
    hot_failed: bool
    """What `status` says is of the hot rows, which are in their buckets, too."""
    status: int
    """A `ReplyStatus`. Other than DONE: replies may be on their way, so the connection must be closed."""
    error: int
    """An errno; 0 where the socket has not failed."""
    begin: int
    end: int


class RedisNetwork:
    """From requests' bodies to probabilities, with rows from caches and from Redis. Threads may share one.

    Its twin is the long way: `RedisSource.fetch`, and `Predictor.score` of what that gives.
    """

    def __init__(self, plan: NetworkPlan, tables: Sequence[RedisTable], per_command: int) -> None:
        """`tables`: those of the plan, in its order. `per_command`: the most names in one command."""
        pooled = [(slots, [tuple(one) for one in embeddings]) for _, slots, embeddings in plan.tables]
        places = [(table.cache._native, *table[1:6], *table.place, *table[7:]) for table in tables]
        self._per_command = per_command
        self._native = _native.RedisNetwork(
            plan.tower._native, pooled, plan.slots, plan.dense, plan.dense_column, places
        )

    def score_bodies(
        self,
        requests: PlainRequests,
        bodies: Sequence[bytes],
        most: Sequence[int],
        descriptor: int,
        seconds: float,
        data: U8,
        span: tuple[int, int],
    ) -> RedisScored:
        """As `MappedNetwork.score_bodies`, with one exchange for all of them: it sends to a socket and receives into
        `data`, for so many seconds at most."""
        parsers, out = [requests.lend() for _ in bodies], np.empty(sum(most), np.float32)
        samples, keys, unknown, *exchange = self._native.score_bodies(
            parsers, bodies, most, self._per_command, descriptor, seconds, data, *span, out
        )
        requests.take_back(*parsers)
        return RedisScored(BodiesScored(_parts(out, samples, most), keys, unknown), *exchange)


class MappedNetwork:
    """From keys to probabilities, with rows from mapped files. Threads may share one."""

    def __init__(
        self, tower: ServedTower, tables: Sequence[MappedTable], slots: int, dense: int, dense_column: int
    ) -> None:
        """Embeddings and the n = `dense` features, from `dense_column` on, fill the tower's input."""
        pooled = [(table.slots, [tuple(one) for one in table.embeddings]) for table in tables]
        files = [(table.data, tuple(table.layout)) for table in tables]
        self._native = _native.MappedNetwork(tower._native, pooled, slots, dense, dense_column, files)

    def score(self, keys: U64, offsets: I64, dense: F32) -> tuple[F32, int, int]:
        """Probabilities [B] of bags of keys (offsets [B*S + 1]) and dense features [B, n]; distinct keys, and those of
        them without a row, which count as zeros. BundleError: a rows file is damaged."""
        out = np.empty(len(dense), np.float32)
        asked, missed = self._native.score(keys, offsets, dense, out)
        if asked < 0:
            raise BundleError(DAMAGED)
        return out, asked, missed

    def score_bodies(self, requests: PlainRequests, bodies: Sequence[bytes], most: Sequence[int]) -> BodiesScored:
        """The same of requests' bodies, of at most so many samples each: parsed and scored in one call, so that a
        thread gives the interpreter away once. Each has the scores that it has alone, to the last bit, but keys of
        several are looked up once."""
        parsers, out = [requests.lend() for _ in bodies], np.empty(sum(most), np.float32)
        samples, asked, missed = self._native.score_bodies(parsers, bodies, most, out)
        requests.take_back(*parsers)
        if asked < 0:
            raise BundleError(DAMAGED)
        return BodiesScored(_parts(out, samples, most), asked, missed)


def _parts(out: F32, samples: Sequence[int], most: Sequence[int]) -> list[F32 | None]:
    starts = accumulate(most, initial=0)
    return [out[at : at + count] if count >= 0 else None for at, count in zip(starts, samples, strict=False)]
