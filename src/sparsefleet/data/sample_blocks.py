"""SampleBlocks: many samples held in memory as a few large blocks, and gathered from them in any order.

Legend: B samples of a block, S slots.

A block whose bags all have the same number of values (raw Criteo lines: one) needs no offsets. Any other keeps
the number of values per bag in the smallest type that holds them, and one start per sample. With 26 slots of one
value and 13 dense features a sample takes 264 bytes, or 298, where a batch takes 472.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsefleet.core.batch import COLUMNS, I64, U64, Batch, Layout
from sparsefleet.core.errors import ConfigError

BLOCK_SAMPLES = 262_144
"""Samples of a block: joining a block's chunks holds them twice for a moment, so it must stay small beside the
whole.
"""

Order = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Block:
    columns: Mapping[str, Any]
    """Labels, dense values and whatever else the batches had per sample, as `Batch.columns` names them."""
    keys: U64
    bag_size: int | None
    """Values of every bag, where all have the same number; the two arrays below are empty then."""
    bag_sizes: npt.NDArray[Any]
    """[B, S] unsigned, of the smallest type that holds them."""
    starts: I64
    """[B+1] where a sample's keys start."""

    @staticmethod
    def of(batches: Sequence[Batch]) -> Block:
        """The samples of all batches, copied: a batch may be a view of a larger buffer, or of one used again."""
        width = len(batches[0].slots)
        sizes = [np.diff(batch.offsets) for batch in batches]
        least = min(int(each.min(initial=np.iinfo(np.int64).max)) for each in sizes)
        most = max(int(each.max(initial=0)) for each in sizes)
        ends = np.cumsum([0] + [len(batch.keys) for batch in batches])
        bag_size = most if least >= most else None
        if bag_size is None:
            kind = np.min_scalar_type(most)
            bag_sizes = np.concatenate([each.astype(kind).reshape(-1, width) for each in sizes])
            all_ends = [batch.offsets[width::width] + end for batch, end in zip(batches, ends, strict=False)]
            starts = np.concatenate([np.zeros(1, np.int64), *all_ends])
        else:
            bag_sizes, starts = np.empty((0, width), np.uint8), np.empty(0, np.int64)
        all_columns = [batch.columns() for batch in batches]
        return Block(
            columns={name: np.concatenate([columns[name] for columns in all_columns]) for name in all_columns[0]},
            keys=np.concatenate([batch.keys for batch in batches]),
            bag_size=bag_size,
            bag_sizes=bag_sizes,
            starts=starts,
        )

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in (*self.columns.values(), self.keys, self.bag_sizes, self.starts))

    def __len__(self) -> int:
        return len(self.columns["labels"])

    def starts_of(self, local: I64, width: int) -> I64:
        """Where the keys of these samples start."""
        return self.starts[local] if self.bag_size is None else local * (self.bag_size * width)

    def as_batch(self, slots: tuple[str, ...]) -> Batch:
        bags = len(self) * len(slots)
        if self.bag_size is None:
            offsets = np.zeros(bags + 1, np.int64)
            np.cumsum(self.bag_sizes.ravel(), dtype=np.int64, out=offsets[1:])
        else:
            offsets = np.arange(bags + 1, dtype=np.int64) * self.bag_size
        return Batch.trusted(keys=self.keys, offsets=offsets, slots=slots, **self.columns)


Part = tuple[Block, I64, I64]
"""A block, places in the output, and the numbers of the block's samples that go there."""


class SampleBlocks:
    """Samples in a fixed order, each known by its number."""

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
        """The samples with these numbers, in this order, as a batch of its own memory."""
        count = len(order)
        order = order.astype(np.int64)
        home = np.searchsorted(self._ends, order, side="right")
        by_block = np.argsort(home, kind="stable")
        cuts = np.searchsorted(home[by_block], np.arange(len(self._blocks) + 1))
        parts: list[Part] = []
        for index, block in enumerate(self._blocks):
            places = by_block[cuts[index] : cuts[index + 1]]
            if len(places):
                parts.append((block, places, order[places] - (int(self._ends[index]) - len(block))))

        shapes: dict[str, tuple[int, ...]] = {"labels": (), "dense": (self.dense_width,)}
        if self._blocks:
            shapes = {name: column.shape[1:] for name, column in self._blocks[0].columns.items()}
        columns: dict[str, Any] = {name: np.empty((count, *shape), COLUMNS[name][0]) for name, shape in shapes.items()}
        for block, places, local in parts:
            for name, column in columns.items():
                column[places] = block.columns[name][local]
        equal = {block.bag_size for block, _, _ in parts}
        if len(equal) == 1 and None not in equal:
            keys, offsets = self._keys_of_equal_bags(parts, count, equal.pop() or 0)
        else:
            keys, offsets = self._keys_of_any_bags(parts, count)
        return Batch.trusted(keys=keys, offsets=offsets, slots=self.slots, **columns)

    def _keys_of_equal_bags(self, parts: list[Part], count: int, bag_size: int) -> tuple[U64, I64]:
        width = len(self.slots)
        keys = np.empty((count, width * bag_size), np.uint64)
        for block, places, local in parts:
            keys[places] = block.keys.reshape(len(block), -1)[local]
        return keys.reshape(-1), np.arange(count * width + 1, dtype=np.int64) * bag_size

    def _keys_of_any_bags(self, parts: list[Part], count: int) -> tuple[U64, I64]:
        width = len(self.slots)
        sizes = np.empty((count, width), np.int64)
        for block, places, local in parts:
            sizes[places] = block.bag_sizes[local] if block.bag_size is None else block.bag_size
        offsets = np.zeros(count * width + 1, np.int64)
        np.cumsum(sizes.ravel(), out=offsets[1:])
        keys = np.empty(offsets[-1], np.uint64)
        starts = offsets[:: width or 1]
        for block, places, local in parts:
            run_sizes = starts[places + 1] - starts[places]
            _copy_runs(block.keys, block.starts_of(local, width), keys, starts[places], run_sizes)
        return keys, offsets

    def with_slots_shuffled(self, slots: Sequence[str], seed: int) -> SampleBlocks:
        """The same samples, but each has the values that another one has of these slots: one permutation of all."""
        chosen = np.isin(np.arange(len(self.slots)), [self.slots.index(name) for name in slots])
        order = np.random.default_rng([seed, len(self)]).permutation(len(self))
        builder = BlockBuilder(self.slots, self.dense_width)
        for own, other in zip(self.export(), self.export(order), strict=True):
            builder.add(_with_slots_of(own, other, chosen))
        return SampleBlocks(self.slots, self.dense_width, join_small(builder.finish(), self.slots))

    def export(self, order: Order | None = None, at_a_time: int = 8192) -> Iterator[Batch]:
        """All samples, or those of the given numbers, as batches of limited size."""
        total = len(self) if order is None else len(order)
        for start in range(0, total, at_a_time):
            stop = min(start + at_a_time, total)
            yield self.gather(np.arange(start, stop) if order is None else order[start:stop])


class BlockBuilder:
    """Collects chunks into blocks as they come, so that no more than one block's chunks are ever held."""

    def __init__(self, slots: tuple[str, ...], dense_width: int, block_samples: int = BLOCK_SAMPLES) -> None:
        self._slots, self._dense_width, self._block_samples = slots, dense_width, block_samples
        self._layout: Layout | None = None
        self._waiting: list[Batch] = []
        self._samples = 0
        self.blocks: list[Block] = []

    def add(self, batch: Batch) -> None:
        if batch.slots != self._slots or batch.dense.shape[1] != self._dense_width:
            raise ConfigError(
                f"samples of {len(batch.slots)} slots and {batch.dense.shape[1]} dense features do not fit "
                f"among samples of {len(self._slots)} slots and {self._dense_width} dense features"
            )
        layout = batch.layout
        if self._layout not in (None, layout):
            raise ConfigError(f"samples of the layout {layout} do not fit among samples of the layout {self._layout}")
        self._layout = layout
        if len(batch):
            self._waiting.append(batch)
            self._samples += len(batch)
        if self._samples >= self._block_samples:
            self._close_block()

    def finish(self) -> list[Block]:
        if self._waiting:
            self._close_block()
        return self.blocks

    def _close_block(self) -> None:
        self.blocks.append(Block.of(self._waiting))
        self._waiting, self._samples = [], 0


def _with_slots_of(own: Batch, other: Batch, chosen: npt.NDArray[np.bool_]) -> Batch:
    """Each sample with the chosen slots of the other batch's sample at the same place."""
    theirs = np.tile(chosen, len(own))
    sizes = np.where(theirs, np.diff(other.offsets), np.diff(own.offsets))
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    keys = np.empty(int(offsets[-1]), np.uint64)
    for batch, bags in ((own, ~theirs), (other, theirs)):
        _copy_runs(batch.keys, batch.offsets[:-1][bags], keys, offsets[:-1][bags], sizes[bags])
    return Batch.trusted(keys=keys, offsets=offsets, slots=own.slots, **own.columns())


def _copy_runs(source: U64, from_: I64, target: U64, to: I64, sizes: I64) -> None:
    """target[to[i] : to[i]+sizes[i]] = source[from_[i] : from_[i]+sizes[i]] for all i."""
    total = int(sizes.sum())
    within = np.arange(total) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    target[np.repeat(to, sizes) + within] = source[np.repeat(from_, sizes) + within]


def join_small(blocks: list[Block], slots: tuple[str, ...], block_samples: int = BLOCK_SAMPLES) -> list[Block]:
    """Fewer blocks in the same order: runs of small ones (many small files) become one each.

    Empties the given list as it goes, so that the joined samples are not held twice.
    """
    joined: list[Block] = []
    blocks.reverse()
    while blocks:
        run = [blocks.pop()]
        samples = len(run[0])
        while blocks and samples + len(blocks[-1]) <= block_samples:
            samples += len(blocks[-1])
            run.append(blocks.pop())
        joined.append(run[0] if len(run) == 1 else Block.of([block.as_batch(slots) for block in run]))
    return joined
