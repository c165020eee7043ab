"""Split any table of events into training and test parts: at random, by time, or by group.

    out/train/part-0.csv …   out/test/part-0.csv …   out/schema.toml   out/prepare.json

Rows are read and checked by the parser that training uses, so the two agree on what a good row is. They are written as
they came; CSV parts get the header of their file. Rows are dealt to the parts in turn, in the order of the input.

- random: of every ten rows (for a test share of 0.1), one at a random place;
- time: the latest rows. This reads the files twice;
- group: whole groups (all rows of a user), drawn by a hash of the group.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from itertools import compress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from sparsefleet.core.batch import Batch
from sparsefleet.core.errors import ConfigError, DataError
from sparsefleet.core.schema import TOML_NAME, Schema
from sparsefleet.core.schema_text import schema_text
from sparsefleet.data.files import file_size, list_files
from sparsefleet.data.formats import format_for
from sparsefleet.data.formats.base import BadSamples, Unit
from sparsefleet.data.formats.csv import CsvFormat
from sparsefleet.data.formats.parquet import ParquetFormat, open_parquet
from sparsefleet.data.formats.records import RecordFormat
from sparsefleet.data.formats.source import open_source
from sparsefleet.datasets.planted import mix64
from sparsefleet.datasets.prepare import PREPARE_FILE, PrepareSpec, is_test_sample
from sparsefleet.datasets.progress import OnProgress, ignore_progress
from sparsefleet.datasets.staging import check_space, staged

SPLITS = ("random", "time", "group")
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class SplitReport:
    """What prepare.json holds."""

    files: int
    train_rows: int
    test_rows: int
    split: str
    seed: int
    from_time: int | None = None
    """By time: test rows begin here, in seconds since 1970."""
    skipped: dict[str, int] = field(default_factory=dict)


def split_table(
    raw: str | Path | Sequence[str],
    out: str | Path,
    schema: Schema,
    spec: PrepareSpec,
    *,
    split: str = "random",
    format_name: str = "auto",
    schema_file: str | Path | None = None,
    overwrite: bool = False,
    on_progress: OnProgress = ignore_progress,
) -> SplitReport:
    """`schema_file`: where the schema stands; TOML is copied as it is, with its comments. Progress is in bytes."""
    if split not in SPLITS:
        raise ConfigError(f"--split {split} is not a way to split; choose {', '.join(SPLITS)}")
    for way, column in (("time", schema.time), ("group", schema.group)):
        if split == way and column is None:
            raise ConfigError(f"--split {way} needs a column: say {way} = NAME in the schema")
    files = list_files(raw)
    format = format_for(format_name, schema, files=files)
    if not isinstance(format, RecordFormat | ParquetFormat):
        raise ConfigError("with --schema, data prepare splits CSV, JSON lines and Parquet; without it, Criteo's lines")
    if schema.csv is not None and schema.csv.multiline:
        raise ConfigError("data prepare cannot split CSV whose fields hold line ends (csv.multiline); write it without")
    sizes = [file_size(file) for file in files]
    passes = 2 if split == "time" else 1
    total = passes * sum(sizes)
    check_space(out, sum(sizes))
    before = 0
    from_time: int | None = None
    on_progress(0, total)
    if split == "time":
        times = []
        for file, size in zip(files, sizes, strict=True):
            times += [chunk.batch.times for chunk in format.read(Unit(file), BadSamples(spec.on_bad_row))]
            before += size
            on_progress(before, total)
        joined = np.sort(np.concatenate([each for each in times if each is not None]))
        place = min(len(joined) - 1, round((1 - spec.test_share) * len(joined)))
        from_time = int(joined[place])
    bad_samples = BadSamples(spec.on_bad_row)
    seen = 0
    with staged(out, ("train", "test", PREPARE_FILE, TOML_NAME), overwrite=overwrite) as stage:
        with ExitStack() as stack:
            train = _Parts(stage / "train", spec.parts, stack)
            test = _Parts(stage / "test", spec.test_parts, stack)
            for file, size in zip(files, sizes, strict=True):
                for batch, rows, done in _rows(file, format, bad_samples):
                    held = _held_out(batch, seen, spec, split, from_time)
                    seen += len(batch)
                    train.deal(rows, ~held)
                    test.deal(rows, held)
                    on_progress(before + min(done, size), total)
                before += size
                on_progress(before, total)
        if not seen:
            raise DataError(f"{files[0]}: no usable rows ({bad_samples.counts})")
        if not train.rows:
            raise DataError("all rows went to the test set; ask for a smaller --test-share")
        counts = train.rows, test.rows, split, spec.seed, from_time
        report = SplitReport(len(files), *counts, dict(bad_samples.counts))
        (stage / PREPARE_FILE).write_text(json.dumps(asdict(report), indent=1) + "\n")
        edited = schema_file is not None and str(schema_file).endswith(".toml")
        text = Path(str(schema_file)).read_text() if edited else schema_text(schema, toml=True)
        (stage / TOML_NAME).write_text(text)
    return report


class _Rows:
    """Rows as they stand in a file: lines behind a head, or a table."""

    def __init__(self, suffix: str, lines: Sequence[bytes] = (), head: bytes = b"", table: Any = None) -> None:
        self.suffix, self.lines, self.head, self.table = suffix, lines, head, table


def _rows(file: str, format: Any, bad_samples: BadSamples) -> Iterator[tuple[Batch, _Rows, int]]:
    """Batches with their rows, and how many bytes of the file are read."""
    if isinstance(format, ParquetFormat):
        yield from _parquet_rows(file, format, bad_samples)
        return
    head = b""
    if isinstance(format, CsvFormat):
        size, lines = format.preamble(file)
        with_head = open_source(file)
        try:
            head = bytes(_read(with_head, size)).removeprefix(b"\xef\xbb\xbf") if lines else b""
        finally:
            with_head.close()
    source = open_source(file)
    for chunk in format.read_raw(source, bad_samples, file):
        assert chunk.text is not None
        yield (
            chunk.batch,
            _Rows(".csv" if head or isinstance(format, CsvFormat) else ".jsonl", chunk.text, head),
            source.on_disk,
        )


def _read(source: Any, size: int) -> bytearray:
    data, filled = bytearray(size), 0
    while filled < size and (count := source.readinto(memoryview(data)[filled:])):
        filled += count
    return data


def _parquet_rows(file: str, format: ParquetFormat, bad_samples: BadSamples) -> Iterator[tuple[Batch, _Rows, int]]:
    with open_parquet(file) as opened:
        count, size, read = opened.metadata.num_rows, os.path.getsize(file) if os.path.exists(file) else 0, 0
        tables = opened.iter_batches(8192)
        waiting: list[pa.RecordBatch] = []
        start = 0
        for chunk in format.read(Unit(file), bad_samples):
            last = int(chunk.lines[-1])
            while start + sum(map(len, waiting)) < last:
                waiting.append(next(tables))
            table = pa.Table.from_batches(waiting)
            taken = table.take(pa.array(chunk.lines - 1 - start))
            read = last
            keep = table.slice(last - start)
            waiting, start = keep.to_batches(), last
            yield chunk.batch, _Rows(".parquet", table=taken), size * read // max(count, 1)


def _held_out(batch: Batch, seen: int, spec: PrepareSpec, split: str, from_time: int | None) -> Mask:
    if split == "time":
        assert batch.times is not None
        assert from_time is not None
        return np.asarray(batch.times >= from_time, np.bool_) & (spec.test_share > 0)
    if split == "group":
        assert batch.groups is not None
        drawn = mix64(batch.groups ^ np.uint64(mix64(np.array([spec.seed], np.uint64))[0]))
        return np.asarray(drawn.astype(np.float64) / 2.0**64 < spec.test_share, np.bool_)
    return is_test_sample(np.arange(seen, seen + len(batch)), spec)


class _Parts:
    """Part files of one folder; each is opened when its first row comes, so none is empty."""

    def __init__(self, folder: Path, parts: int, stack: ExitStack) -> None:
        self._folder, self._stack = folder, stack
        self._files: list[BinaryIO | None] = [None] * parts
        self._heads: list[bytes] = [b""] * parts
        self._tables: list[pq.ParquetWriter | None] = [None] * parts
        self.rows = 0

    def deal(self, rows: _Rows, mine: Mask) -> None:
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
                self._file(part, rows).write(b"\n".join([*lines[offset::parts], b""]))
        self.rows += count

    def _file(self, part: int, rows: _Rows) -> BinaryIO:
        file = self._files[part]
        if file is None:
            self._folder.mkdir(exist_ok=True)
            file = self._stack.enter_context((self._folder / f"part-{part}{rows.suffix}").open("wb"))
            file.write(rows.head)
            self._files[part], self._heads[part] = file, rows.head
        elif self._heads[part] != rows.head:
            raise DataError("the files' headers differ; bring the columns of all of them into one order first")
        return file

    def _table(self, part: int, schema: pa.Schema) -> pq.ParquetWriter:
        writer = self._tables[part]
        if writer is None:
            self._folder.mkdir(exist_ok=True)
            writer = self._stack.enter_context(pq.ParquetWriter(self._folder / f"part-{part}.parquet", schema))
            self._tables[part] = writer
        return writer
