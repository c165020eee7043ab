"""Show how a file is read: its rows in MultiSlot form, one line a row.

    13 0.05 0.0066334992 … 1 715353 1 817085 … 1 0

The dense values first (their number, then the values), then each slot (its number of keys, then the keys),
then the label, or each of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, pairwise
from pathlib import Path

import numpy as np

from sparsefleet.core.batch import Batch
from sparsefleet.core.errors import ConfigError, DataError
from sparsefleet.core.filesystems import is_uri
from sparsefleet.core.schema import Schema
from sparsefleet.data.beside import schema_beside
from sparsefleet.data.files import check_file, local_name
from sparsefleet.data.formats import file_formats, format_for, format_help
from sparsefleet.data.formats.base import BadSamples, Unit


def show(
    file: str | Path,
    *,
    format: str = "auto",
    rows: int | None = None,
    pipe_command: str | None = None,
    schema: Schema | None = None,
    sparse_feature_dim: int | None = None,
    bad_samples: BadSamples | None = None,
) -> Iterator[str]:
    """Lines for the first `rows` rows of the file (None: all).

    The schema is, unless given, that of `schema.json` beside the file or one folder up, as the tools write
    it, else Criteo's.
    """
    if format not in file_formats():
        raise ConfigError(f"--format {format!r} is not a format; choose {format_help().rstrip('.')}")
    if rows is not None and rows < 0:
        raise ConfigError(f"--rows {rows} must be 0 or above")
    path = local_name(file)
    if is_uri(path):
        check_file(path)
    elif Path(path).is_dir():
        raise ConfigError(f"{path} is a folder; give one file, such as {Path(path) / 'part-0'}")
    elif not Path(path).exists():
        raise DataError(f"there is no file {path}")
    schema = schema or schema_beside(path)
    if sparse_feature_dim is not None:
        schema = schema.folded(sparse_feature_dim)
    if pipe_command is not None:
        if format not in ("auto", "multislot"):
            raise ConfigError(
                f"a pipe command prints MultiSlot text; --format {format} does not go with --pipe-command"
            )
        format = "pipe"
    reader = format_for(format, schema, files=[path], pipe_command=pipe_command)
    chunks = reader.read(Unit(path), bad_samples or BadSamples())
    return islice((line for chunk in chunks for line in multislot_lines(chunk.batch)), rows)


def multislot_lines(batch: Batch) -> Iterator[str]:
    """Each row as one line without a newline. A slot without values prints `0`, and so does a missing label.

    Numbers have as many digits as it takes to read the same float32 again.
    """
    width = len(batch.slots)
    dense_width = batch.dense.shape[1]
    for row in range(len(batch)):
        words: list[str] = []
        if dense_width:
            words += [str(dense_width), *(_number(value) for value in batch.dense[row])]
        borders = batch.offsets[row * width : (row + 1) * width + 1].tolist()
        for start, stop in pairwise(borders):
            words += [str(stop - start), *map(str, batch.keys[start:stop].tolist())]
        for label in np.atleast_1d(batch.labels[row]):
            words += ["0"] if np.isnan(label) else ["1", str(int(label)) if label == int(label) else _number(label)]
        yield " ".join(words)


def _number(value: np.float32) -> str:
    return str(np.float32(value))
