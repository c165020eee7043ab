"""One piece of work of `split_table`: read some input, decide where its rows go, and write them to files of its own.

The input is cut into items by the sizes of its files alone, never by the number of workers. An item knows its number
and nothing of the items before it, so items can be done in any order and anywhere, and the result is the same.

    item-3.train-0 …   item-3.test-0 …   item-3.valid-0 …     rows of the item, by part; only where there are some
    item-3.times.npy                                           by time, before the split: when its rows happened
    counts-…                                                   see `value_counts.py`

What is measured of numbers (`measures.py`): moments, which an item's answer holds, and counts as of values.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from itertools import compress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from sparsefleet.core.batch import I64, Batch
from sparsefleet.core.schema import DenseFeature, Schema
from sparsefleet.core.xxh64 import xxh64
from sparsefleet.data.files import file_size, is_packed
from sparsefleet.data.formats import format_for
from sparsefleet.data.formats.base import F64, BadSamples, Unit
from sparsefleet.data.formats.parquet import ParquetFormat, open_parquet
from sparsefleet.data.formats.text import TextFormat
from sparsefleet.datasets.measures import Moments, codes_of
from sparsefleet.datasets.planted import mix64
from sparsefleet.datasets.prepare import HeldOut, PrepareSpec, held_out
from sparsefleet.datasets.value_counts import ValueCounts

Mask = npt.NDArray[np.bool_]
Piece = tuple[str, int, int | None]
"""File, first byte, byte behind the last one; None: to its end."""

ITEM_BYTES = 32 << 20
"""About how much of the input an item has."""


@dataclass(frozen=True, slots=True)
class SplitJob:
    """What every worker has to know. Plain data: workers get it as JSON."""

    items: list[list[Piece]]
    schema: dict[str, Any]
    """The schema by which rows are read: hashes whole, no value rare."""
    format: str
    spec: dict[str, Any]
    split: str
    counted: list[int]
    """Numbers of the slots whose values are counted."""
    scaled: list[int]
    """Numbers of the dense features whose moments are measured."""
    ranged: list[list[int]]
    """Slots whose numbers are counted: the slot, and the dense feature that `counting_schema` made for it."""
    from_time: int | None = None
    """By time: when test rows begin, and validation rows before them, in seconds since 1970."""
    valid_from_time: int | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(data: dict[str, Any]) -> SplitJob:
        items = [[(str(file), int(start), stop) for file, start, stop in item] for item in data["items"]]
        return SplitJob(**{**data, "items": items})


@dataclass(frozen=True, slots=True)
class Done:
    """Of one item."""

    train: int
    test: int
    skipped: dict[str, int]
    moments: Sequence[Sequence[float]] = ()
    """Of the training rows, for each dense feature that is measured: the fields of `Moments`."""
    valid: int = 0
    ungrouped: int = 0
    """By group: rows that have none."""


def cut_into_items(files: Sequence[str], format: Any, item_bytes: int = ITEM_BYTES) -> list[list[Piece]]:
    """Plain text at any byte; other files whole. Small files share an item."""
    items: list[list[Piece]] = [[]]
    room = item_bytes
    for file in files:
        size, start = file_size(file), 0
        whole = isinstance(format, ParquetFormat) or is_packed(file)
        while True:
            if items[-1] and room <= 0:
                items.append([])
                room = item_bytes
            # What is left is not worth an item of its own.
            ends = whole or size - start <= room + item_bytes // 4
            stop = None if ends else start + room
            items[-1].append((file, start, stop))
            room -= size - start if stop is None else room
            if stop is None:
                break
            start = stop
    return items


class Worker:
    """Does items of a job, one after the other. `tag`: its own among all workers of the job."""

    def __init__(self, job: SplitJob, folder: Path, tag: str) -> None:
        self._job, self._folder = job, folder
        self._spec = PrepareSpec(**job.spec)
        schema = Schema.from_dict(job.schema)
        found = format_for(job.format, schema)
        assert isinstance(found, TextFormat | ParquetFormat)
        if isinstance(found, ParquetFormat):
            found.numbers = bool(job.scaled or job.ranged)
        self._no_group = np.uint64(xxh64(b"", schema.hash_seed))  # what readers make of no group, or an empty text
        self._ungrouped = 0
        """Rows of the item."""
        self._format: TextFormat | ParquetFormat = found
        self._counts = ValueCounts(folder, [*job.counted, *(slot for slot, _ in job.ranged)], tag)

    def times(self, item: int) -> Done:
        """When the rows of an item happened, into a file."""
        bad = BadSamples(self._spec.on_bad_row)
        units = [Unit(*piece) for piece in self._job.items[item]]
        chunks = (chunk for unit in units for chunk in self._format.read(unit, bad))
        found = [chunk.batch.times for chunk in chunks if chunk.batch.times is not None]
        np.save(self._folder / f"item-{item}.times.npy", np.concatenate([np.empty(0, np.int64), *found]))
        return Done(0, 0, {})

    def split(self, item: int, tell: Callable[[int], None] = lambda done: None) -> Done:
        """The rows of an item, into files. `tell`: bytes of the item that are read."""
        bad = BadSamples(self._spec.on_bad_row)
        train = _Parts(self._folder / f"item-{item}.train", self._spec.parts)
        test = _Parts(self._folder / f"item-{item}.test", self._spec.test_parts)
        valid = _Parts(self._folder / f"item-{item}.valid", self._spec.valid_parts)
        spec = replace(self._spec, seed=_seed_of(self._spec.seed, item))
        moments = [Moments()] * len(self._job.scaled)
        seen = before = self._ungrouped = 0
        try:
            for piece in self._job.items[item]:
                for batch, rows, done in self._rows(Unit(*piece), bad):
                    held = self._held_out(batch, seen, spec)
                    seen += len(batch)
                    mine = held.train
                    self._count(batch, mine)
                    if rows.numbers is not None:
                        moments = self._measure(rows.numbers[mine], moments)
                    train.deal(rows, mine)
                    test.deal(rows, held.test)
                    valid.deal(rows, held.valid)
                    tell(before + done)
                before += (file_size(piece[0]) if piece[2] is None else piece[2]) - piece[1]
        finally:
            train.close()
            test.close()
            valid.close()
        of_moments = [astuple(one) for one in moments]
        return Done(train.rows, test.rows, dict(bad.counts), of_moments, valid.rows, self._ungrouped)

    def finish(self) -> None:
        """After the last item: what was counted goes to files."""
        self._counts.finish()

    def _count(self, batch: Batch, mine: Mask) -> None:
        if not self._job.counted or not mine.any():
            return
        width = len(batch.slots)
        starts, lengths = batch.offsets[:-1].reshape(-1, width), np.diff(batch.offsets).reshape(-1, width)
        for slot in self._job.counted:
            first, length = starts[mine, slot], lengths[mine, slot]
            if (length == 1).all():
                self._counts.add(slot, batch.keys[first])
                continue
            ends = np.cumsum(length)
            places = np.arange(ends[-1]) - np.repeat(ends - length, length) + np.repeat(first, length)
            self._counts.add(slot, batch.keys[places])

    def _measure(self, numbers: F64, moments: list[Moments]) -> list[Moments]:
        """Moments with those of a chunk's numbers more; the numbers that make buckets are counted."""
        for slot, place in self._job.ranged:
            of_slot = numbers[:, place]
            self._counts.add(slot, codes_of(of_slot[~np.isnan(of_slot)]))
        columns = [numbers[:, place] for place in self._job.scaled]
        return [before.plus(Moments.of(x[~np.isnan(x)])) for before, x in zip(moments, columns, strict=True)]

    def _rows(self, unit: Unit, bad: BadSamples) -> Iterator[tuple[Batch, _Rows, int]]:
        """Batches with their rows, and how many bytes of the unit are read."""
        if isinstance(self._format, ParquetFormat):
            yield from _parquet_rows(unit.file, self._format, bad)
            return
        size = file_size(unit.file) if unit.stop is None else unit.stop
        for chunk in self._format.read_raw_unit(unit, bad):
            assert chunk.text is not None
            done = int(chunk.ends[-1]) - unit.start if chunk.ends is not None else 0
            yield chunk.batch, _Rows(chunk.text, numbers=chunk.numbers), min(done, size - unit.start)

    def _held_out(self, batch: Batch, seen: int, spec: PrepareSpec) -> HeldOut:
        """`spec`: with the item's own seed, by which rows are drawn at random; groups are drawn alike in all items."""
        split = self._job.split
        if split == "time":
            assert batch.times is not None
            return self._by_time(batch.times)
        if split == "group":
            assert batch.groups is not None
            seed = mix64(np.array([self._spec.seed], np.uint64))[0]
            drawn = mix64(batch.groups ^ np.uint64(seed)).astype(np.float64) / 2.0**64
            test = np.asarray(drawn < spec.test_share, np.bool_)
            held = HeldOut(test, np.asarray(drawn < spec.test_share + spec.valid_share, np.bool_) & ~test)
            # Rows without a group are no group, which would be a giant: each of them is drawn by itself.
            without = batch.groups == self._no_group
            if not without.any():
                return held
            self._ungrouped += int(without.sum())
            alone = held_out(np.arange(seen, seen + len(batch)), spec)
            return HeldOut(np.where(without, alone.test, held.test), np.where(without, alone.valid, held.valid))
        return held_out(np.arange(seen, seen + len(batch)), spec)

    def _by_time(self, times: I64) -> HeldOut:
        job = self._job
        test = np.zeros(len(times), np.bool_)
        if job.from_time is not None:
            test = np.asarray(times >= job.from_time, np.bool_)
        if job.valid_from_time is None:
            return HeldOut(test, np.zeros(len(times), np.bool_))
        return HeldOut(test, np.asarray(times >= job.valid_from_time, np.bool_) & ~test)


def _seed_of(seed: int, item: int) -> int:
    """Items draw differently; a small input, which is one item, draws by the seed itself."""
    if item == 0:
        return seed
    return int(mix64(np.array([seed], np.uint64) ^ mix64(np.array([item], np.uint64)))[0]) >> 1


class _Rows:
    """Rows as they stand in a file: lines, or a table; and their numbers, where they are wanted (`Chunk.numbers`)."""

    def __init__(self, lines: Sequence[bytes] = (), table: Any = None, numbers: F64 | None = None) -> None:
        self.lines, self.table, self.numbers = lines, table, numbers


def _parquet_rows(file: str, format: ParquetFormat, bad: BadSamples) -> Iterator[tuple[Batch, _Rows, int]]:
    with open_parquet(file) as opened:
        count, size, read = opened.metadata.num_rows, os.path.getsize(file) if os.path.exists(file) else 0, 0
        tables = opened.iter_batches(8192)
        waiting: list[pa.RecordBatch] = []
        start = 0
        for chunk in format.read(Unit(file), bad):
            last = int(chunk.lines[-1])
            while start + sum(map(len, waiting)) < last:
                waiting.append(next(tables))
            table = pa.Table.from_batches(waiting)
            taken = table.take(pa.array(chunk.lines - 1 - start))
            read = last
            keep = table.slice(last - start)
            waiting, start = keep.to_batches(), last
            yield chunk.batch, _Rows(table=taken, numbers=chunk.numbers), size * read // max(count, 1)


class _Parts:
    """Part files of one item; each is opened when its first row comes."""

    def __init__(self, stem: Path, parts: int) -> None:
        self._stem = stem
        self._files: list[BinaryIO | None] = [None] * parts
        self._tables: list[pq.ParquetWriter | None] = [None] * parts
        self.rows = 0

    def deal(self, rows: _Rows, mine: Mask) -> None:
        """In turn, in the order of the input."""
        parts = len(self._files)
        count = int(mine.sum())
        if rows.table is not None:
            chosen = rows.table.filter(pa.array(mine))
            for offset in range(min(parts, count)):
                part = (self.rows + offset) % parts
                self._table(part, chosen.schema).write_table(chosen.take(pa.array(range(offset, count, parts))))
        else:
            lines = list(compress(rows.lines, mine.tolist()))
            for offset in range(min(parts, count)):
                part = (self.rows + offset) % parts
                self._file(part).write(b"\n".join([*lines[offset::parts], b""]))
        self.rows += count

    def close(self) -> None:
        for file in (*self._files, *self._tables):
            if file is not None:
                file.close()

    def _path(self, part: int) -> Path:
        return self._stem.with_name(f"{self._stem.name}-{part}")

    def _file(self, part: int) -> BinaryIO:
        file = self._files[part]
        if file is None:
            file = self._files[part] = self._path(part).open("wb")
        return file

    def _table(self, part: int, schema: pa.Schema) -> pq.ParquetWriter:
        writer = self._tables[part]
        if writer is None:
            writer = self._tables[part] = pq.ParquetWriter(self._path(part), schema)
        return writer


def without_numbers(schema: Schema) -> Schema:
    """The schema as it was before anybody counted or measured."""
    slots = tuple(
        replace(slot, kept=None, buckets=slot.buckets if slot.quantiles is None else None) for slot in schema.slots
    )
    dense = tuple(
        feature if feature.measure is None else replace(feature, minimum=0.0, diff=0.0) for feature in schema.dense
    )
    return replace(schema, slots=slots, dense=dense)


def counting_schema(schema: Schema) -> Schema:
    """The schema by which rows are read to count and measure what is not known yet: hashes whole, every number allowed.

    There, no value is rare. Slots of quantiles are of two buckets, so that what is no number is refused; for each there
    is a dense feature more, in their order, which holds its number. What is known stays as it is.
    """
    uncounted, ranged = schema.uncounted, [schema.slots[at].name for at, _ in ranged_slots(schema)]
    slots = []
    for slot in schema.slots:
        if slot.name in uncounted:
            slot = replace(slot, min_count=None, rare=None)
        elif slot.name in ranged:
            slot = replace(slot, quantiles=None, buckets=(0.0,))
        slots.append(slot)
    dense = [feature if feature.measured else _unscaled(feature) for feature in schema.dense]
    taken = {*schema.dense_names, *schema.slot_names, *schema.labels}
    for slot in schema.slots:
        if slot.name in ranged:
            name = f"number of {slot.name}"
            while name in taken:
                name += "'"
            taken.add(name)
            dense.append(_unscaled(DenseFeature(name, column=slot.source)))
    return replace(schema, dense=tuple(dense), slots=tuple(slots), sparse_feature_dim=0)


def _unscaled(feature: DenseFeature) -> DenseFeature:
    """With a scale by which every number fits float32."""
    return replace(feature, minimum=0.0, diff=1e300, measure=None)


def ranged_slots(schema: Schema) -> list[list[int]]:
    """Slots of quantiles without bounds, each with the dense feature that `counting_schema` makes for it."""
    slots = [at for at, slot in enumerate(schema.slots) if slot.quantiles is not None and slot.buckets is None]
    return [[slot, len(schema.dense) + number] for number, slot in enumerate(slots)]
