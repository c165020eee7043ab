"""Samples of a data set, read twice: as training reads them, and raw, as a log or a request holds them.

Legend: B samples.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

from sparsefleet.core.batch import Batch
from sparsefleet.core.errors import ConfigError
from sparsefleet.core.inputs import Inputs
from sparsefleet.core.schema import Schema
from sparsefleet.data.files import list_files
from sparsefleet.data.formats import format_for
from sparsefleet.data.formats.base import BadSamples, Unit
from sparsefleet.data.formats.columns import is_whole
from sparsefleet.data.formats.criteo import CriteoFormat
from sparsefleet.data.formats.parquet import ParquetFormat, open_parquet
from sparsefleet.data.formats.records import RecordFormat
from sparsefleet.data.formats.source import open_source

RawSample = dict[str, Any]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class DataSamples:
    batch: Batch
    """[B] as training's own parser reads them, with the checkpoint's schema."""
    raw: list[RawSample]
    """[B] {field: value} before hashing and normalisation."""
    where: list[str]
    """[B] file and line."""
    inputs: Inputs
    """How the files were read."""
    is_raw: bool
    """False where the files hold keys and normalised numbers (MultiSlot): hashing is not tested then."""


def read_samples(
    data: str,
    schema: Schema,
    count: int,
    *,
    format_name: str = "auto",
    pipe_command: str | None = None,
    labelled: bool = True,
    served: Schema | None = None,
) -> DataSamples:
    """Read the first `count` samples of the files. `served`: the schema of requests; by default the same."""
    files = list_files(data)
    format = format_for(format_name, schema, files=files, labelled=labelled, pipe_command=pipe_command)
    batches: list[Batch] = []
    raw: list[RawSample] = []
    where: list[str] = []
    for file in files:
        source = _parquet(file, schema) if isinstance(format, ParquetFormat) else None
        if isinstance(format, RecordFormat):
            source = format.raw_samples(file)
        before = 0
        bad, unit = BadSamples(), Unit(file)
        if isinstance(format, CriteoFormat):
            chunks = format.read_raw(open_source(file), bad, file)
        else:
            chunks = format.read(unit, bad)
        for chunk in chunks:
            batch = chunk.batch.samples(0, min(len(chunk.batch), count - len(raw)))
            batches.append(batch)
            lines = chunk.lines[: len(batch)].tolist()
            if chunk.text is not None:
                raw += [_criteo(line, schema, labelled) for line in chunk.text[: len(batch)]]
            else:
                raw += _pick(source, lines, before) if source else _from_batch(batch, served or schema)
            where += [f"{file}, line {line}" for line in lines]
            before = lines[-1] if lines else before
            if len(raw) >= count:
                break
        if len(raw) >= count:
            break
    if not raw:
        raise ConfigError(f"{data}: there are no samples to score")
    joined = Batch.concat([Batch(b.labels, b.dense, b.keys, b.offsets, b.slots) for b in batches])
    return DataSamples(
        joined, raw, where, format.inputs(files), isinstance(format, CriteoFormat | ParquetFormat | RecordFormat)
    )


def _pick(source: Iterator[RawSample], lines: list[int], before: int) -> list[RawSample]:
    """The raw samples at these line numbers; the first `before` lines of the file have been taken already."""
    picked = []
    for line in lines:
        picked.append(next(itertools.islice(source, line - before - 1, None)))
        before = line
    return picked


def _criteo(line: bytes, schema: Schema, labelled: bool) -> RawSample:
    """The fields of a line that training's parser has taken."""
    fields = line.decode().split("\t")[1 if labelled else 0 :]
    numbers = [text or None for text in fields[: len(schema.dense)]]
    return dict(zip((*schema.dense_names, *schema.slot_names), [*numbers, *fields[len(numbers) :]], strict=True))


def _parquet(file: str, schema: Schema) -> Iterator[RawSample]:
    milliseconds = schema.time_format == "milliseconds"
    with open_parquet(file) as opened:
        for batch in opened.iter_batches(1024, columns=list(schema.fields)):
            columns = [_as_read(column) for column in batch.columns]
            for sample in pa.RecordBatch.from_arrays(columns, batch.schema.names).to_pylist():
                yield {name: _plain(value, name, milliseconds) for name, value in sample.items()}


def _as_read(column: pa.Array) -> pa.Array:
    """Decimals with a fraction as the numbers that training makes of them; those without are whole numbers there."""
    kind, types = column.type, pa.types
    lists = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    values = kind.value_type if lists else kind
    if not types.is_decimal(values) or is_whole(values):
        return column
    return column.cast(pa.large_list(pa.float64()) if lists else pa.float64(), safe=False)


def _plain(value: Any, name: str, milliseconds: bool) -> Any:
    """The value as JSON can carry it; a time as the schema's time_format has it."""
    if isinstance(value, list):
        return [_plain(one, name, milliseconds) for one in value if one is not None]
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            raise ConfigError(
                f"column {name!r} holds {value!r:.40}, which is not UTF-8: JSON requests cannot carry it, and so "
                "nothing can be compared; write such values as text, in training too"
            ) from None
    if isinstance(value, Decimal):
        return int(value)
    if isinstance(value, datetime):
        since = value - (EPOCH if value.tzinfo else EPOCH.replace(tzinfo=None))
        return int(since // timedelta(milliseconds=1 if milliseconds else 1000))
    return value.isoformat() if isinstance(value, date) else value


def _from_batch(batch: Batch, schema: Schema) -> list[RawSample]:
    """Raw samples of a batch: keys as they are, and the numbers that normalise to what the file holds."""
    width = len(batch.slots)
    samples: list[RawSample] = []
    for index in range(len(batch)):
        sample: RawSample = {
            feature.name: float(value) * feature.diff + feature.minimum
            for feature, value in zip(schema.dense, batch.dense[index].tolist(), strict=True)
        }
        ends = batch.offsets[index * width : (index + 1) * width + 1].tolist()
        for slot, (start, stop) in zip(batch.slots, itertools.pairwise(ends), strict=True):
            sample[slot] = batch.keys[start:stop].tolist()
        samples.append(sample)
    return samples
