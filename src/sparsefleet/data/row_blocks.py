"""RowBlocks: many rows held in memory as a few large blocks, and gathered from them in any order.

Legend: B rows of a block, S slots.

A block keeps the number of values per bag in the smallest type that holds them, and one start per row,
instead of an offset per bag: with 26 slots of one value that is 298 bytes a row instead of 472.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsefleet.core.batch import F32, I64, U64, Batch
from sparsefleet.core.errors import ConfigError

BLOCK_ROWS = 262_144
"""Rows of a block: joining a block's chunks holds them twice for a moment, so it must stay small beside the
whole.
"""

Order = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Block:
    labels: F32
    dense: F32
    keys: U64
    bag_sizes: npt.NDArray[Any]
    """[B, S] unsigned, of the smallest type that holds them."""
    starts: I64
    """[B+1] where a row's keys start."""

    @staticmethod
    def of(batches: Sequence[Batch]) -> Block:
        batch = Batch.concat(batches)
        width = len(batch.slots)
        sizes = np.diff(batch.offsets)
        kind = np.min_scalar_type(int(sizes.max(initial=0)))
        starts = batch.offsets[::width] if width else np.zeros(len(batch) + 1, np.int64)
        # Copies, always: a lone chunk may be a view of a buffer that is larger or will be used again.
        return Block(
            labels=np.array(batch.labels),
            dense=np.array(batch.dense),
            keys=np.array(batch.keys),
            bag_sizes=sizes.astype(kind).reshape(len(batch), width),
            starts=np.array(starts),
        )

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in (self.labels, self.dense, self.keys, self.bag_sizes, self.starts))

    def __len__(self) -> int:
        return len(self.labels)


class RowBlocks:
    """Rows in a fixed order, each known by its number."""

    def __init__(self, slots: tuple[str, ...], dense_width: int, blocks: Iterable[Block] = ()) -> None:
        self.slots, self.dense_width = slots, dense_width
        self._blocks = list(blocks)
        self._ends = np.cumsum([len(block) for block in self._blocks]).astype(np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1]) if self._blocks else 0

    @property
    def nbytes(self) -> int:
        return sum(block.nbytes for block in self._blocks)

    def gather(self, order: Order) -> Batch:
        """The rows with these numbers, in this order, as a batch of its own memory."""
        count, width = len(order), len(self.slots)
        order = order.astype(np.int64)
        home = np.searchsorted(self._ends, order, side="right")
        by_block = np.argsort(home, kind="stable")
        cuts = np.searchsorted(home[by_block], np.arange(len(self._blocks) + 1))
        parts: list[tuple[Block, I64, I64]] = []
        for index, block in enumerate(self._blocks):
            places = by_block[cuts[index] : cuts[index + 1]]
            if len(places):
                parts.append((block, places, order[places] - (int(self._ends[index]) - len(block))))

        labels = np.empty(count, np.float32)
        dense = np.empty((count, self.dense_width), np.float32)
        sizes = np.empty((count, width), np.int64)
        for block, places, local in parts:
            labels[places] = block.labels[local]
            dense[places] = block.dense[local]
            sizes[places] = block.bag_sizes[local]
        offsets = np.zeros(count * width + 1, np.int64)
        np.cumsum(sizes.ravel(), out=offsets[1:])
        keys = np.empty(offsets[-1], np.uint64)
        if width and len(keys):
            starts = offsets[::width]
            for block, places, local in parts:
                _copy_runs(
                    block.keys, block.starts[local], keys, starts[places], starts[places + 1] - starts[places]
                )
        return Batch(labels, dense, keys, offsets, self.slots)

    def export(self, order: Order | None = None, rows_at_a_time: int = 8192) -> Iterator[Batch]:
        """All rows, or those of the given numbers, as batches of limited size."""
        total = len(self) if order is None else len(order)
        for start in range(0, total, rows_at_a_time):
            stop = min(start + rows_at_a_time, total)
            yield self.gather(np.arange(start, stop) if order is None else order[start:stop])


class BlockBuilder:
    """Collects chunks into blocks as they come, so that no more than one block's chunks are ever held."""

    def __init__(self, slots: tuple[str, ...], dense_width: int, block_rows: int = BLOCK_ROWS) -> None:
        self._slots, self._dense_width, self._block_rows = slots, dense_width, block_rows
        self._waiting: list[Batch] = []
        self._rows = 0
        self.blocks: list[Block] = []

    def add(self, batch: Batch) -> None:
        if batch.slots != self._slots or batch.dense.shape[1] != self._dense_width:
            raise ConfigError(
                f"rows of {len(batch.slots)} slots and {batch.dense.shape[1]} dense features do not fit "
                f"among rows of {len(self._slots)} slots and {self._dense_width} dense features"
            )
        if len(batch):
            self._waiting.append(batch)
            self._rows += len(batch)
        if self._rows >= self._block_rows:
            self._close_block()

    def finish(self) -> list[Block]:
        if self._waiting:
            self._close_block()
        return self.blocks

    def _close_block(self) -> None:
        self.blocks.append(Block.of(self._waiting))
        self._waiting, self._rows = [], 0


def _copy_runs(source: U64, from_: I64, target: U64, to: I64, sizes: I64) -> None:
    """target[to[i] : to[i]+sizes[i]] = source[from_[i] : from_[i]+sizes[i]] for all i."""
    size = int(sizes[0])
    if (sizes == size).all():
        within = np.arange(size)
        target[to[:, None] + within] = source[from_[:, None] + within]
        return
    total = int(sizes.sum())
    within = np.arange(total) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    target[np.repeat(to, sizes) + within] = source[np.repeat(from_, sizes) + within]


def join_small(blocks: list[Block], block_rows: int = BLOCK_ROWS) -> list[Block]:
    """Fewer blocks in the same order: runs of small ones (many small files) become one each.

    Empties the given list as it goes, so that the joined rows are not held twice.
    """
    joined: list[Block] = []
    blocks.reverse()
    while blocks:
        run = [blocks.pop()]
        rows = len(run[0])
        while blocks and rows + len(blocks[-1]) <= block_rows:
            rows += len(blocks[-1])
            run.append(blocks.pop())
        joined.append(run[0] if len(run) == 1 else _joined(run))
    return joined


def _joined(run: list[Block]) -> Block:
    kind = max((block.bag_sizes.dtype for block in run), key=lambda dtype: dtype.itemsize)
    ends = np.cumsum([0] + [len(block.keys) for block in run])
    starts = [block.starts[1:] + end for block, end in zip(run, ends, strict=False)]
    return Block(
        labels=np.concatenate([block.labels for block in run]),
        dense=np.concatenate([block.dense for block in run]),
        keys=np.concatenate([block.keys for block in run]),
        bag_sizes=np.concatenate([block.bag_sizes.astype(kind, copy=False) for block in run]),
        starts=np.concatenate([np.zeros(1, np.int64), *starts]),
    )
