"""Parquet files: a column per name of the schema.

- the label: numbers, booleans or decimal text, 0 or 1; a null is a bad sample. With labelled=False the column may be
  absent, and labels that are absent or null are NaN.
- a dense feature: numbers or decimal text, normalised as raw values, (x - minimum) / diff; a null (or empty text) is
  missing, so 0.0.
- a slot: text or bytes, which are hashed as in the text formats; or whole numbers (decimals without a fraction too),
  which are hashed as their decimal text; or lists of either. Where the schema marks the slot as ready-made keys (and in
  schemas of version 1), whole numbers are keys, taken as they are (folded modulo `sparse_feature_dim` unless that is
  0). A null is no value.

A file can be cut between row groups: a unit holds the row groups whose first byte lies in its range. Samples are
streamed, so memory does not grow with the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from sparsefleet.core.batch import Batch, Mark
from sparsefleet.core.errors import BadRowError, DataError
from sparsefleet.core.filesystems import is_uri
from sparsefleet.core.inputs import RAW, Inputs
from sparsefleet.core.schema import Schema
from sparsefleet.data.files import check_file, empty_file, open_file
from sparsefleet.data.formats.base import CHUNK_SAMPLES, BadSamples, Chunk, Format, FormatOptions, Head, Unit
from sparsefleet.data.formats.columns import Refusals, check_types, dense_values, label_values, slot_keys, slot_word
from sparsefleet.data.formats.old_times import OldTimes
from sparsefleet.data.formats.tables import TableAssembler
from sparsefleet.kernels.text_types import Reason


class ParquetFormat(Format):
    looks = "PAR1 and column chunks"

    def __init__(self, schema: Schema, *, labelled: bool = True) -> None:
        self.schema, self.labelled = schema, labelled
        self._old_times = OldTimes(schema.time, schema.time_format)
        self.numbers = False
        """Whether chunks have `Chunk.numbers`."""

    @classmethod
    def create(cls, schema: Schema, options: FormatOptions) -> Self:
        return cls(schema, labelled=options.labelled)

    @classmethod
    def guess(cls, head: Head, schema: Schema) -> bool:
        return head.data.startswith(b"PAR1")

    def inputs(self, files: Sequence[str]) -> Inputs:
        """The schema says what is hashed; by one of version 1 the columns of the first file tell."""
        if self.schema.version != 1:
            return Inputs.raw("parquet", self.schema)
        with open_parquet(files[0]) as opened:
            types = {field.name: field.type for field in opened.schema_arrow}
        slots = {
            slot.name: slot_word(types[slot.name], slot, self.schema)
            for slot in self.schema.slots
            if slot.name in types
        }
        return Inputs("parquet", slots, dict.fromkeys(self.schema.dense_names, RAW))

    def plan(self, files: Sequence[str], pieces: int) -> list[Unit]:
        for file in files:
            check_file(file)
        if len(files) >= pieces:
            return [Unit(file) for file in files]
        starts = []
        for file in files:
            with open_parquet(file) as opened:
                starts.append(_group_starts(opened.metadata))
        total = sum(map(len, starts))
        units: list[Unit] = []
        for file, groups in zip(files, starts, strict=True):
            parts = min(len(groups), -(-pieces * len(groups) // total))
            first = [groups[len(groups) * part // parts] for part in range(parts)]
            cuts = [0, *first[1:]]
            units += [Unit(file, cut, stop) for cut, stop in zip(cuts, [*cuts[1:], None], strict=True)]
        return units

    def read(self, unit: Unit, bad_samples: BadSamples, resume: Mark | None = None) -> Iterator[Chunk]:
        if resume is not None and resume.done:
            return
        check_file(unit.file)
        file = open_parquet(unit.file)
        try:
            chunks = self._chunks(file, unit, bad_samples, 0 if resume is None else resume.samples)
            for chunk in islice(chunks, 1):
                self._old_times.look_at(chunk.batch, unit.file)
                yield chunk
            yield from chunks
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{unit.file}: damaged Parquet file: {error}; fetch or write it again") from error
        finally:
            file.close(force=True)

    def _chunks(self, file: pq.ParquetFile, unit: Unit, bad_samples: BadSamples, consumed: int) -> Iterator[Chunk]:
        assembler: TableAssembler | None = None
        if self.schema.simple and not self.numbers:
            labelled = check_types(file.schema_arrow, self.schema, self.labelled, unit.file)
            names = [*self.schema.dense_names, *self.schema.slot_names]
            names += [self.schema.label] if labelled else []
        else:
            there = file.schema_arrow.names
            assembler = TableAssembler(self.schema, labelled=self.labelled, there=there)
            names = list(assembler.plan.fields)
            missing = [name for name in names if name not in there]
            if missing:
                raise DataError(f"{unit.file}: no column {', '.join(map(repr, missing))}; it has {', '.join(there)}")
            twice = [name for name in names if there.count(name) > 1]
            if twice:
                raise DataError(f"{unit.file}: there are two columns {twice[0]!r}; rename one of them")
        stop = unit.stop
        sample = samples = 0  # before the group: in the file, in the unit
        for group, start in enumerate(_group_starts(file.metadata)):
            size = file.metadata.row_group(group).num_rows
            if start >= unit.start and (stop is None or start < stop):
                if samples + size > consumed:
                    skip = max(0, consumed - samples)
                    for table in _stream(file, group, names, skip):
                        at = samples + skip, sample + skip
                        if assembler is None:
                            yield from self.samples(table, unit.file, bad_samples, *at)
                        else:
                            yield from _assembled(table, assembler, unit.file, bad_samples, *at, self.numbers)
                        skip += len(table)
                samples += size
            sample += size
        if samples < consumed:
            raise DataError(
                f"{unit.file}: cannot go on after sample {consumed}: there are only {samples}; "
                "the file has changed since the position was saved"
            )

    def samples(
        self, table: pa.RecordBatch, file: str, bad_samples: BadSamples, before: int, file_before: int
    ) -> Iterator[Chunk]:
        """One chunk, if a sample is good. `before` samples of the unit precede it, `file_before` of the file."""
        refusals = Refusals(len(table))
        by_name = dict(zip(table.schema.names, table.columns, strict=True))
        labels = label_values(by_name.get(self.schema.label), self.schema.label, len(table), self.labelled, refusals)
        dense = np.empty((len(table), len(self.schema.dense)), np.float32)
        for index, feature in enumerate(self.schema.dense):
            dense[:, index] = dense_values(by_name[feature.name], feature, refusals)
        bags = {slot.name: slot_keys(by_name[slot.name], slot, self.schema, refusals) for slot in self.schema.slots}
        batch = Batch.from_slots(bags, labels=labels, dense=dense)
        lines: npt.NDArray[np.int64] = np.arange(before + 1, before + len(table) + 1)
        good = refusals.good()
        if len(good) == len(table):
            yield Chunk(batch, lines)
            return
        if bad_samples.policy == "error":
            first = refusals.first()
            if first.sample:
                yield Chunk(batch.samples(0, first.sample), lines[: first.sample])
            shown = str(by_name[first.column][first.sample].as_py())
            reason = f"column {first.column!r}: {first.reason}"
            error = BadRowError(file, file_before + first.sample + 1, None, reason, shown[:60])
            error.reason = first.reason
            raise error
        for reason, count in refusals.counts().items():
            bad_samples.add(reason, count)
        if len(good):
            yield Chunk(batch.take(good), lines[good])


def _assembled(
    table: pa.RecordBatch,
    assembler: TableAssembler,
    file: str,
    bad_samples: BadSamples,
    before: int,
    file_before: int,
    numbers: bool,
) -> Iterator[Chunk]:
    """The same by the schema's transforms."""
    columns = dict(zip(table.schema.names, table.columns, strict=True))
    try:
        made = assembler.arrow(columns, len(table), numbers=numbers)
    except DataError as refused:
        raise DataError(f"{file}: {refused}") from None
    lines: npt.NDArray[np.int64] = np.arange(before + 1, before + len(table) + 1)
    bad = made.first_bad
    if bad is not None and bad_samples.policy == "error":
        if bad:
            before_it = None if made.numbers is None else made.numbers[:bad]
            yield Chunk(made.batch.samples(0, bad), lines[:bad], numbers=before_it)
        name, reason = made.column(bad), made.reason(bad).text
        shown = str(columns[name][bad].as_py())[:60]
        error = BadRowError(file, file_before + bad + 1, None, f"column {name!r}: {reason}", shown)
        error.reason = reason
        raise error
    for code, count in zip(*np.unique(made.reasons[made.reasons != 0], return_counts=True), strict=True):
        bad_samples.add(Reason(int(code)).text, int(count))
    if len(made.batch):
        yield Chunk(made.batch, lines[made.good], numbers=made.numbers)


def open_parquet(path: str) -> pq.ParquetFile:
    opened = open_file(path)  # its errors say what to do
    try:
        if is_uri(path):
            # Column chunks are fetched together, and through our own file: a read that fails is tried again.
            file = pq.ParquetFile(pa.PythonFile(opened, mode="r"), pre_buffer=True)
        else:
            opened.close()
            file = pq.ParquetFile(path, memory_map=False, pre_buffer=False)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: not a Parquet file, or a damaged one: {error}") from error
    if file.metadata.num_rows == 0:
        file.close(force=True)
        raise empty_file(path)
    return file


def _group_starts(metadata: pq.FileMetaData) -> list[int]:
    """Offset of the first byte of each row group."""
    starts = []
    for index in range(metadata.num_row_groups):
        column = metadata.row_group(index).column(0)
        starts.append(min(column.dictionary_page_offset or column.data_page_offset, column.data_page_offset))
    return starts


def _stream(file: pq.ParquetFile, group: int, names: list[str], skip: int) -> Iterator[pa.RecordBatch]:
    """The group's samples after the first `skip`, a chunk at a time."""
    for table in file.iter_batches(CHUNK_SAMPLES, row_groups=[group], columns=names, use_threads=False):
        if skip >= len(table):
            skip -= len(table)
        else:
            yield table.slice(skip)
            skip = 0
