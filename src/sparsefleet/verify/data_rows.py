"""Rows of a data set twice: as training reads them, and raw, as they stand in the log and in a request.

Legend: B rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from sparsefleet.core.batch import Batch
from sparsefleet.core.errors import ConfigError
from sparsefleet.core.schema import Schema
from sparsefleet.data.files import list_files
from sparsefleet.data.formats import format_for
from sparsefleet.data.formats.base import BadRows, Unit
from sparsefleet.data.formats.criteo import CriteoFormat
from sparsefleet.data.formats.parquet import ParquetFormat
from sparsefleet.data.tools.raw_rows import read_lines

RawRow = dict[str, Any]


@dataclass(frozen=True, slots=True)
class DataRows:
    batch: Batch
    """[B] as training's own parser reads them, by the checkpoint's schema."""
    raw: list[RawRow]
    """[B] {field: value} before hashing and normalisation."""
    where: list[str]
    """[B] file and line."""
    is_raw: bool
    """False where the files hold keys and normalised numbers (MultiSlot): then hashing is not put to the test."""


def read_rows(
    data: str,
    schema: Schema,
    count: int,
    *,
    format_name: str = "auto",
    pipe_command: str | None = None,
    labelled: bool = True,
) -> DataRows:
    """The first `count` rows of the files."""
    files = list_files(data)
    format = format_for(format_name, schema, files=files, labelled=labelled, pipe_command=pipe_command)
    batches: list[Batch] = []
    raw: list[RawRow] = []
    where: list[str] = []
    for file in files:
        source: Iterator[RawRow] | None = None
        if isinstance(format, CriteoFormat):
            source = _criteo(file, schema, labelled)
        elif isinstance(format, ParquetFormat):
            source = _parquet(file, schema)
        before = 0
        for chunk in format.read(Unit(file), BadRows()):
            batch = chunk.batch.rows(0, min(len(chunk.batch), count - len(raw)))
            batches.append(batch)
            lines = chunk.lines[: len(batch)].tolist()
            raw += _pick(source, lines, before) if source else _from_batch(batch, schema)
            where += [f"{file}, line {line}" for line in lines]
            before = lines[-1] if lines else before
            if len(raw) >= count:
                break
        if len(raw) >= count:
            break
    if not raw:
        raise ConfigError(f"{data}: there are no rows to score")
    joined = Batch.concat([Batch(b.labels, b.dense, b.keys, b.offsets, b.slots) for b in batches])
    return DataRows(joined, raw, where, isinstance(format, CriteoFormat | ParquetFormat))


def _pick(source: Iterator[RawRow], lines: list[int], before: int) -> list[RawRow]:
    """The raw rows at these line numbers; `before` of the file are taken already."""
    rows = []
    for line in lines:
        rows.append(next(itertools.islice(source, line - before - 1, None)))
        before = line
    return rows


def _criteo(file: str, schema: Schema, labelled: bool) -> Iterator[RawRow]:
    dense, slots = schema.dense_names, schema.slot_names
    for block in read_lines(Path(file)):
        for line in block.text.decode().split("\n")[:-1]:
            fields = line.split("\t")[1 if labelled else 0 :]
            numbers = (text or None for text in fields[: len(dense)])
            yield {
                **dict(zip(dense, numbers, strict=True)),
                **dict(zip(slots, fields[len(dense) :], strict=True)),
            }


def _parquet(file: str, schema: Schema) -> Iterator[RawRow]:
    with pq.ParquetFile(file) as opened:
        for batch in opened.iter_batches(1024, columns=[*schema.dense_names, *schema.slot_names]):
            for row in batch.to_pylist():
                yield {name: _text(value) for name, value in row.items()}


def _text(value: Any) -> Any:
    """As JSON can carry it: bytes as the text they spell."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogatepass")
    return [_text(one) for one in value if one is not None] if isinstance(value, list) else value


def _from_batch(batch: Batch, schema: Schema) -> list[RawRow]:
    """Keys as they are, and the numbers whose normalisation gives what the file holds."""
    width = len(batch.slots)
    rows: list[RawRow] = []
    for index in range(len(batch)):
        row: RawRow = {
            feature.name: float(value) * feature.diff + feature.minimum
            for feature, value in zip(schema.dense, batch.dense[index].tolist(), strict=True)
        }
        ends = batch.offsets[index * width : (index + 1) * width + 1].tolist()
        for slot, (start, stop) in zip(batch.slots, itertools.pairwise(ends), strict=True):
            row[slot] = batch.keys[start:stop].tolist()
        rows.append(row)
    return rows
