"""The first rows of files as raw columns, before any schema is known: what `inspect` looks at."""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sparsefleet.core.errors import ConfigError, DataError
from sparsefleet.core.schema import CsvDialect
from sparsefleet.data.formats.base import HEAD_BYTES, Head, beginning
from sparsefleet.data.formats.csv import GUESSED_DELIMITERS
from sparsefleet.data.formats.libffm import VALUE, LibffmFormat
from sparsefleet.data.formats.libsvm import FEATURES, QID, Entry, LibsvmFormat, entries, looks_like
from sparsefleet.data.formats.records import BOM, is_object, open_text

FORMATS = ("csv", "jsonl", "libsvm", "libffm", "multislot", "parquet")
MOST_HEAD = 1 << 24
"""Bytes of a file's first lines."""
ARRAY = re.compile(rb"(\xef\xbb\xbf)?\s*\[\s*\{")
MOST_NUMBERS = 1000
"""Features of libsvm whose values are numbers."""


@dataclass(frozen=True, slots=True)
class RawTable:
    format: str
    columns: dict[str, list[Any]]
    """Values as they stand in the file: text in CSV; None where missing."""
    rows: int
    whole: bool
    """All rows of all files are here."""
    dialect: CsvDialect | None
    ragged: int = 0
    """Lines that were passed over, and that readers refuse: of CSV with another number of fields than the header, of
    MultiSlot with another number of slots than the first."""
    slots: tuple[str, ...] = ()
    """Of MultiSlot: what the slots of a line are called, in order."""


def read_table(files: Sequence[str], format: str, most: int) -> RawTable:
    head = Head.of(files[0])
    if format == "auto":
        format = _guessed(head)
    if format not in FORMATS:
        raise ConfigError(f"format={format!r}: data inspect reads {', '.join(FORMATS)} (Criteo's lines as csv)")
    dialect = None
    if format == "csv":
        if not head.is_text:
            raise DataError(f"{files[0]}: this is neither text nor Parquet; unpack or convert it first")
        dialect = guess_dialect(_first_lines(head))
    if format in ("libsvm", "libffm"):
        return _svm_table(files, format, most)
    if format == "multislot":
        from sparsefleet.datasets.multislot_table import multislot_table

        return multislot_table(files, most)
    columns: dict[str, list[Any]] = {}
    rows = 0
    whole = True
    share = -(-most // len(files))
    ragged: list[int] = []
    for file in files:
        for taken, record in enumerate(_records(file, format, dialect, ragged)):
            if taken == share or rows == most:
                whole = False
                break
            for name in record:
                if name not in columns:
                    columns[name] = [None] * rows
            for name, column in columns.items():
                column.append(record.get(name))
            rows += 1
    if not rows:
        told = f"; {len(ragged)} lines have another number of fields than the first" if ragged else ""
        raise DataError(f"{files[0]}: there are no rows to look at{told}")
    return RawTable(format, columns, rows, whole, dialect, len(ragged))


def _first_lines(head: Head) -> bytes:
    """The head, or more where lines are long: thousands of columns."""
    size = len(head.data)
    while size >= HEAD_BYTES and head.data.count(b"\n") < 3 and size < MOST_HEAD:
        size *= 4
        head = Head(head.file, beginning(head.file, size))
        if len(head.data) < size:
            break
    return head.data


def _guessed(head: Head) -> str:
    if head.data.startswith(b"PAR1"):
        return "parquet"
    if is_object(head):
        return "jsonl"
    if ARRAY.match(head.data):
        raise DataError(f"{head.file}: this is one JSON array; write an object a line, without brackets and commas")
    for kind in (LibsvmFormat, LibffmFormat):
        if looks_like(kind.line, head):
            return kind.name
    from sparsefleet.datasets.multislot_table import is_multislot

    return "multislot" if is_multislot(head) else "csv"


def _svm_table(files: Sequence[str], format: str, most: int) -> RawTable:
    """Columns as a schema names them: see `data/formats/libsvm.py` and `data/formats/libffm.py`."""
    samples: list[tuple[Any, list[Entry], str | None]] = []
    whole, share = True, -(-most // len(files))
    for file in files:
        with open_text(file) as text:
            for number, line in enumerate(text, 1):
                if number > share or len(samples) == most:
                    whole = False
                    break
                samples.append(_svm_sample(line, file, number, format))
    if not samples:
        raise DataError(f"{files[0]}: there are no rows to look at")
    # Whose values are numbers: features of libsvm, fields of libffm.
    numbers = sorted({at for _, found, _ in samples for at, _, value in found if float(value) not in (0, 1)})
    if len(numbers) > MOST_NUMBERS:
        raise ConfigError(
            f"{files[0]}: {len(numbers):,} features have values other than 0 and 1; up to {MOST_NUMBERS:,} can be "
            "dense features, and a slot holds no weights: this data needs another model, or values made into categories"
        )
    columns: dict[str, list[Any]] = {"label": [label for label, _, _ in samples]}
    if any(query is not None for _, _, query in samples):
        columns[QID] = [query for _, _, query in samples]
    if format == "libsvm":
        taken = set(numbers)
        features = [[at for at, _, value in found if at not in taken and float(value)] for _, found, _ in samples]
        columns[FEATURES] = [each or None for each in features]
        suffix = ""
    else:
        for field in sorted({at for _, found, _ in samples for at, _, _ in found}):
            mine = (
                [feature for at, feature, value in found if at == field and float(value)] for _, found, _ in samples
            )
            columns[str(field)] = [each or None for each in mine]
        suffix = VALUE
    for at in numbers:
        columns[f"{at}{suffix}"] = [next((value for a, _, value in found if a == at), None) for _, found, _ in samples]
    return RawTable(format, columns, len(samples), whole, None)


def _svm_sample(line: str, file: str, number: int, format: str) -> tuple[Any, list[Entry], str | None]:
    try:
        label, found = entries(line)
        assert (format == "libffm") == any(word.count(":") == 2 for word in line.split()) or not found
        query = next((word[4:] for word in line.split() if word.startswith(f"{QID}:")), None)
        return (None if label is None else "0" if float(label) == -1 else f"{float(label):g}"), found, query
    except (ValueError, IndexError, AssertionError):
        raise DataError(f"{file}, line {number}: not a line of {format}: {line[:60]!r}") from None


def _records(file: str, format: str, dialect: CsvDialect | None, ragged: list[int]) -> Iterator[dict[str, Any]]:
    if format == "parquet":
        yield from _parquet(file)
        return
    with open_text(file) as text:
        if format == "jsonl":
            for number, line in enumerate(text, 1):
                if line.strip():
                    yield _object(line, file, number)
            return
        assert dialect is not None
        yield from _csv(text, dialect, file, ragged)


def _object(line: str, file: str, number: int) -> dict[str, Any]:
    try:
        record = json.loads(line, parse_constant=_no_constant)
    except ValueError as error:
        raise DataError(f"{file}, line {number}: not JSON: {error}") from None
    if not isinstance(record, dict):
        raise DataError(f"{file}, line {number}: not a JSON object")
    return record


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON number; write null for a missing one")


def _csv(text: io.TextIOWrapper, dialect: CsvDialect, file: str, ragged: list[int]) -> Iterator[dict[str, Any]]:
    csv.field_size_limit(1 << 24)
    marks: dict[str, Any] = {"quotechar": dialect.quote} if dialect.quote else {"quoting": csv.QUOTE_NONE}
    reader = csv.reader(text, delimiter=dialect.delimiter, **marks)
    names = next(reader, []) if dialect.header else list(dialect.columns or ())
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise DataError(f"{file}: column {twice[0]!r} stands twice in the header; rename one of them")
    for cells in reader:
        if len(cells) == len(names):
            yield {name: cell if cell else None for name, cell in zip(names, cells, strict=True)}
        else:
            ragged.append(reader.line_num)


def _parquet(file: str) -> Iterator[dict[str, Any]]:
    from sparsefleet.data.formats.parquet import open_parquet

    with open_parquet(file) as opened:
        twice = [name for name, count in Counter(opened.schema_arrow.names).items() if count > 1]
        if twice:
            raise DataError(f"{file}: there are two columns {twice[0]!r}; rename one of them")
        for batch in opened.iter_batches(8192):
            yield from batch.to_pylist()


def guess_dialect(head: bytes) -> CsvDialect:
    """The delimiter that cuts the first lines into equally many fields, and whether the first one names columns."""
    text = head.removeprefix(BOM).decode(errors="replace")
    if len(head) >= 1 << 16 and "\n" in text:
        text = text[: text.rindex("\n") + 1]
    best: tuple[float, int, str, list[list[str]]] | None = None
    for delimiter in GUESSED_DELIMITERS:
        try:
            rows = [row for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter) if row][:200]
        except csv.Error:
            continue
        if not rows:
            continue
        width, count = Counter(map(len, rows)).most_common(1)[0]
        score = (count / len(rows) if width > 1 else 0.0, width, delimiter, rows)
        if best is None or score[:2] > best[:2]:
            best = score
    if not text.strip():
        raise DataError("there are only blank lines at the beginning; take them out, or write the file again")
    if best is None:
        raise DataError("the first lines cannot be read as CSV, with none of comma, tab, semicolon and bar")
    _, _, delimiter, rows = best
    multiline = any("\n" in cell for row in rows for cell in row)
    first = rows[0]
    names = all(cell.strip() and not is_number(cell) for cell in first)
    if names and len(set(first)) < len(first):
        below = [[row[i] for row in rows[1:] if i < len(row)] for i in range(len(first))]
        if any(cells and all(map(is_number, cells)) for cells in below):  # numbers below text: it is a header
            twice = next(name for name, count in Counter(first).items() if count > 1)
            raise DataError(f"column {twice!r} stands twice in the header; rename one of them")
        names = False
    if (
        names
        and len(rows) > 1
        and any(cell in {row[i] for row in rows[1:] if i < len(row)} for i, cell in enumerate(first))
    ):
        names = False  # what stands below cannot be a name
    if names:
        return CsvDialect(delimiter, multiline=multiline)
    return CsvDialect(delimiter, False, tuple(f"c{index + 1}" for index in range(len(first))), multiline=multiline)


def is_number(text: str) -> bool:
    try:
        return float(text) - float(text) == 0 and text.isascii() and "_" not in text and text.strip() == text
    except ValueError:
        return False
