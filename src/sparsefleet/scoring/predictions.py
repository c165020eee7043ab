"""Files of predictions, one line or row per input row: .csv for people, .parquet for programs."""

from __future__ import annotations

import csv
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from sparsefleet.core.batch import F32, Batch
from sparsefleet.core.errors import ConfigError, SparseFleetError

Write = Callable[[Batch, F32], None]
COLUMNS = ("label", "probability")
_SCHEMA = pa.schema([(column, pa.float32()) for column in COLUMNS])


@contextmanager
def open_predictions(path: Path) -> Iterator[Write]:
    """A function that appends a batch's predictions. The file appears under its name when all are written."""
    check_name(path)
    with _beside(path) as beside, (_csv if path.suffix == ".csv" else _parquet)(beside) as write:
        yield write


def join_predictions(parts: Sequence[Path], path: Path) -> None:
    """The predictions of all parts, in their order, as one file of the same kind."""
    with _beside(path) as beside:
        if path.suffix == ".csv":
            _join_csv(parts, beside)
        else:
            with pq.ParquetWriter(beside, _SCHEMA) as writer:
                for part in parts:
                    with pq.ParquetFile(part) as file:
                        for batch in file.iter_batches():
                            writer.write_batch(batch)


def check_name(path: Path) -> None:
    if path.suffix not in (".csv", ".parquet"):
        raise ConfigError(f"--output {path}: the name must end in .csv or .parquet")


@contextmanager
def _beside(path: Path) -> Iterator[Path]:
    """A name to write to; what is there at the end gets the right name."""
    beside = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    try:
        yield beside
        os.replace(beside, path)
    except OSError as error:
        raise SparseFleetError(f"cannot write predictions to {path}: {error.strerror or error}") from error
    finally:
        beside.unlink(missing_ok=True)


def _join_csv(parts: Sequence[Path], path: Path) -> None:
    with path.open("wb") as joined:
        for number, part in enumerate(parts):
            with part.open("rb") as file:
                header = file.readline()
                if number == 0:
                    joined.write(header)
                shutil.copyfileobj(file, joined)


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
    with pq.ParquetWriter(path, _SCHEMA) as writer:

        def write(batch: Batch, probabilities: F32) -> None:
            columns = [pa.array(batch.labels, from_pandas=True), pa.array(probabilities)]
            writer.write_table(pa.Table.from_arrays(columns, schema=_SCHEMA))

        yield write
