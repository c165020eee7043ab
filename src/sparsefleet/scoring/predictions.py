"""Files of predictions, one line or row per sample: .csv for people, .parquet for programs.

The columns are `label` and `probability`; of a model for several labels `label_NAME` of each, then `probability_NAME`.
"""

from __future__ import annotations

import csv
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from sparsefleet.core.batch import F32, Batch
from sparsefleet.core.errors import ConfigError, SparseFleetError
from sparsefleet.metrics.base import PROBABILITY, Outputs

Write = Callable[[Batch, Outputs], None]


class _Columns:
    """The columns of a file, and what a batch has in them."""

    def __init__(self, labels: Sequence[str] | None) -> None:
        self._outputs = list(labels or [PROBABILITY])
        ends = [""] if labels is None else [f"_{label}" for label in labels]
        self.names = [f"{kind}{end}" for kind in ("label", "probability") for end in ends]
        self.schema = pa.schema([(name, pa.float32()) for name in self.names])

    def labels(self, batch: Batch) -> list[F32]:
        return [batch.labels] if batch.labels.ndim == 1 else list(batch.labels.T)

    def probabilities(self, outputs: Outputs) -> list[F32]:
        return [outputs[name] for name in self._outputs]


@contextmanager
def open_predictions(path: Path, labels: Sequence[str] | None = None) -> Iterator[Write]:
    """A function that appends a batch's predictions. The file appears under its name when all are written.

    labels: those of a model for several.
    """
    check_name(path)
    columns = _Columns(labels)
    with _beside(path) as beside, (_csv if path.suffix == ".csv" else _parquet)(beside, columns) as write:
        yield write


def join_predictions(parts: Sequence[Path], path: Path) -> None:
    """The predictions of all parts, in their order, as one file of the same kind."""
    with _beside(path) as beside:
        if path.suffix == ".csv":
            _join_csv(parts, beside)
        else:
            with pq.ParquetWriter(beside, pq.read_schema(parts[0])) as writer:
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
        with suppress(OSError):  # of a folder that is none, too: what is wrong with it was raised above
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
def _csv(path: Path, columns: _Columns) -> Iterator[Write]:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns.names)

        def write(batch: Batch, outputs: Outputs) -> None:
            labels = (
                ["" if label != label else int(label) for label in each.tolist()] for each in columns.labels(batch)
            )
            # The shortest text that gives the float32 back.
            probabilities = (map(str, each) for each in columns.probabilities(outputs))
            writer.writerows(zip(*labels, *probabilities, strict=True))

        yield write


@contextmanager
def _parquet(path: Path, columns: _Columns) -> Iterator[Write]:
    with pq.ParquetWriter(path, columns.schema) as writer:

        def write(batch: Batch, outputs: Outputs) -> None:
            labels = [pa.array(each, from_pandas=True) for each in columns.labels(batch)]
            probabilities = [pa.array(each) for each in columns.probabilities(outputs)]
            writer.write_table(pa.Table.from_arrays([*labels, *probabilities], schema=columns.schema))

        yield write
