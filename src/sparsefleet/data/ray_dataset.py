"""A Ray dataset as a reader: `open_reader(ray.data.read_parquet(…), schema)`.

Its columns mean what those of a Parquet file do (`data/formats/parquet.py`). A position counts samples, so the order is
kept (`preserve_order`): a dataset that is read again has to give the same samples. Each trainer reads the dataset that
it is given: give each its own share, as with files.

Nothing here imports Ray: a dataset that somebody has made brings it along.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, TypeGuard

import pyarrow as pa

from sparsefleet.core.batch import Batch
from sparsefleet.core.errors import ConfigError, DataError
from sparsefleet.core.inputs import RAW, Inputs
from sparsefleet.core.schema import Schema
from sparsefleet.data.feeder import Feeder
from sparsefleet.data.formats.base import CHUNK_SAMPLES, BadSamples, Chunk
from sparsefleet.data.formats.columns import check_types, slot_word
from sparsefleet.data.formats.parquet import ParquetFormat
from sparsefleet.data.py_reader import PyReader

NAME = "the Ray dataset"


class RayDataset(Protocol):
    """What of a `ray.data.Dataset` is used here."""

    def iter_batches(self, *, batch_size: int | None, batch_format: str | None) -> Any: ...

    def schema(self) -> Any: ...


def is_ray_dataset(given: object) -> TypeGuard[RayDataset]:
    return any(kind.__module__.split(".")[:2] == ["ray", "data"] for kind in type(given).__mro__)


def ray_reader(
    dataset: RayDataset,
    schema: Schema,
    *,
    kind: str,
    batch_size: int,
    on_bad_row: str,
    threads: int,
    labelled: bool,
) -> Feeder:
    if kind not in ("queue", "pyreader", "feeder"):
        raise ConfigError(
            f"reader={kind!r} does not read Ray datasets; choose queue or pyreader (both read ahead) or feeder, and "
            f"dataset.materialize() to have it in memory"
        )
    if not schema.simple:
        raise ConfigError(
            "a Ray dataset is read by a schema of one label and plain features; this one has transforms, further "
            "labels, weight, group or time: make them in Ray (dataset.map_batches), or write Parquet files and "
            "read those"
        )
    source = _Samples(dataset, ParquetFormat(schema, labelled=labelled), on_bad_row)
    if kind == "feeder":
        return Feeder(schema, source, batch_size)
    return PyReader(schema, source, batch_size, threads=threads)


class _Samples:
    """The samples of a dataset, in its order; every epoch runs over it once more."""

    def __init__(self, dataset: RayDataset, format: ParquetFormat, on_bad_row: str) -> None:
        self._dataset, self._format = dataset, format
        self._bad_samples = BadSamples(on_bad_row)

    def __call__(self) -> Iterator[Batch]:
        self._bad_samples = BadSamples(self._bad_samples.policy)  # counted anew in each epoch
        return self._batches()

    def _batches(self) -> Iterator[Batch]:
        # Ray may give blocks as they come; a position would then mean other samples each time.
        context = getattr(self._dataset, "context", None)
        if context is not None:
            context.execution_options.preserve_order = True
        before, checked = 0, False
        for table in self._dataset.iter_batches(batch_size=CHUNK_SAMPLES, batch_format="pyarrow"):
            if not checked:
                check_types(table.schema, self._format.schema, self._format.labelled, NAME)
                checked = True
            for part in table.combine_chunks().to_batches():
                for chunk in self._chunks(part, before):
                    yield chunk.batch
                before += len(part)

    def _chunks(self, part: pa.RecordBatch, before: int) -> Iterator[Chunk]:
        return self._format.samples(part, NAME, self._bad_samples, before, before)

    def inputs(self) -> Inputs:
        """As of a Parquet file with the same columns."""
        found = self._dataset.schema()
        if found is None:
            raise DataError(f"{NAME} has no columns: it is empty")
        arrow = getattr(found, "base_schema", found)
        if not isinstance(arrow, pa.Schema):
            arrow = pa.schema(list(zip(found.names, found.types, strict=True)))
        schema = self._format.schema
        check_types(arrow, schema, self._format.labelled, NAME)
        slots = {slot.name: slot_word(arrow.field(slot.name).type, slot, schema) for slot in schema.slots}
        return Inputs("parquet", slots, dict.fromkeys(schema.dense_names, RAW))

    def skipped(self) -> dict[str, int]:
        return dict(self._bad_samples.counts)
