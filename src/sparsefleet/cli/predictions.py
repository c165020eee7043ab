"""Files of predictions, one line or row per input row: .csv for people, .parquet for programs."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from sparsefleet.core.batch import F32, Batch
from sparsefleet.core.errors import ConfigError, SparseFleetError

Write = Callable[[Batch, F32], None]
COLUMNS = ("label", "probability")


@contextmanager
def open_predictions(path: Path) -> Iterator[Write]:
    """A function that appends a batch's predictions. The file appears under its name when all are written."""
    writers = {".csv": _csv, ".parquet": _parquet}
    if path.suffix not in writers:
        raise ConfigError(f"--output {path}: the name must end in .csv or .parquet")
    beside = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    try:
        with writers[path.suffix](beside) as write:
            yield write
        os.replace(beside, path)
    except OSError as error:
        raise SparseFleetError(f"cannot write predictions to {path}: {error.strerror or error}") from error
    finally:
        beside.unlink(missing_ok=True)


@contextmanager
def _csv(path: Path) -> Iterator[Write]:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)

        def write(batch: Batch, probabilities: F32) -> None:
            labels = ("" if label != label else int(label) for label in batch.labels.tolist())
            # The shortest text that gives the float32 back.
            writer.writerows(zip(labels, map(str, probabilities), strict=True))

        yield write


@contextmanager
def _parquet(path: Path) -> Iterator[Write]:
    schema = pa.schema([("label", pa.float32()), ("probability", pa.float32())])
    with pq.ParquetWriter(path, schema) as writer:

        def write(batch: Batch, probabilities: F32) -> None:
            columns = [pa.array(batch.labels, from_pandas=True), pa.array(probabilities)]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))

        yield write
