"""CSV and TSV: a record a line, columns by the names of the header, or of the schema where there is no header.

CSV has nothing but text. So an empty field is a missing value, quoted or not, and numbers in a slot are hashed as they
stand. Columns that the schema does not use are passed over. Files may differ in the order of their columns.

Quotes as RFC 4180 has them, and Python's csv module: a field that begins with a quote ends with one, and a quote within
is doubled. Such a field may hold delimiters, and, where the schema says `multiline`, line ends; a file of those is read
by one process and one thread, because nobody can tell from its middle where a record begins.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np

from sparsefleet.core.batch import Mark
from sparsefleet.core.errors import DataError
from sparsefleet.core.schema import CsvDialect, Schema
from sparsefleet.data.files import check_file
from sparsefleet.data.formats.base import BadSamples, Chunk, Head, Unit
from sparsefleet.data.formats.records import BOM, RecordFormat, is_object, open_text
from sparsefleet.data.formats.source import ByteSource, open_source
from sparsefleet.kernels.record_types import MAX_RECORD, RecordColumns
from sparsefleet.kernels.records import CsvParser
from sparsefleet.kernels.text_types import Parsed, Reason

GUESSED_DELIMITERS = (",", "\t", ";", "|")


@dataclass(frozen=True, slots=True)
class Header:
    """What the beginning of a file says."""

    names: tuple[str, ...]
    dialect: CsvDialect
    size: int
    """Bytes before the first sample."""
    lines: int


class CsvFormat(RecordFormat):
    looks = "a header, or columns, that the schema knows"
    name = "csv"
    text_keys = True

    def __init__(self, schema: Schema, *, labelled: bool = True, max_line: int = MAX_RECORD) -> None:
        super().__init__(schema, labelled=labelled, max_line=max_line)
        self._headers: dict[str, Header] = {}

    @classmethod
    def guess(cls, head: Head, schema: Schema) -> bool:
        if not head.is_text or is_object(head) or head.data.startswith(b"PAR1") or schema.version == 1:
            return False
        if schema.csv is not None:
            return True
        line = head.data.removeprefix(BOM).split(b"\n", 1)[0]
        if best_delimiter(line, schema.fields) is not None:
            return True
        # A header all the same, where only some columns are missing: reading the file says which.
        return any(best_delimiter(line, (schema.label, name)) is not None for name in schema.fields)

    def plan(self, files: Sequence[str], pieces: int) -> list[Unit]:
        if self._multiline:
            for file in files:
                check_file(file)
            return [Unit(file) for file in files]
        return super().plan(files, pieces)

    @property
    def _multiline(self) -> bool:
        return self.schema.csv is not None and self.schema.csv.multiline

    def header(self, file: str) -> Header:
        found = self._headers.get(file)
        if found is None:
            found = read_header(file, self.schema.csv, self.schema.fields)
            self._headers[file] = found
        return found

    def preamble(self, file: str) -> tuple[int, int]:
        header = self.header(file)
        return header.size, header.lines

    def parser_of(self, file: str) -> CsvParser:
        header = self.header(file)
        plan = self.record_plan(header.names)
        missing = [name for name in plan.fields if name not in header.names]
        if missing:
            hint = (
                "; labelled=False (--unlabelled) reads samples without a label"
                if missing == [self.schema.label]
                else ""
            )
            raise DataError(
                f"{file}: no column {', '.join(map(repr, missing[:5]))}; the file has {_some(header.names)}{hint}"
            )
        twice = [name for name in plan.fields if header.names.count(name) > 1]
        if twice:
            raise DataError(f"{file}: column {twice[0]!r} stands twice in the header; rename one of them")
        places = {name: place for place, name in enumerate(header.names)}
        dialect = header.dialect
        return CsvParser(
            plan,
            [places[name] for name in plan.fields],
            len(header.names),
            dialect.delimiter,
            dialect.quote,
            dialect.multiline,
            self.max_line,
        )

    def columns_of(self, file: str) -> RecordColumns:
        return self.columns_for(self.record_plan(self.header(file).names))

    def read(self, unit: Unit, bad_samples: BadSamples, resume: Mark | None = None) -> Iterator[Chunk]:
        if not self._multiline:
            yield from super().read(unit, bad_samples, resume)
            return
        if unit.start or unit.stop is not None:
            raise DataError(
                f"{unit.file}: it was to be cut, but its quoted fields may hold line ends (csv.multiline): "
                "give at least as many files as there are processes, or write it without such fields"
            )
        if resume is None or resume.offset >= 0 or resume.done:
            yield from super().read(unit, bad_samples, resume)
            return
        # A packed file: records can be counted only by reading them.
        seen = BadSamples(bad_samples.policy)
        for chunk in super().read(unit, seen):
            rest = chunk.lines > resume.samples
            if rest.any():
                first = int(np.argmax(rest))
                size = len(chunk.batch)
                yield replace(chunk, batch=chunk.batch.samples(first, size), lines=chunk.lines[first:])

    def raw_samples(self, file: str) -> Iterator[dict[str, Any]]:
        header = self.header(file)
        places = {name: place for place, name in enumerate(header.names)}
        keys = {slot.source: slot for slot in self.schema.slots if slot.keys}
        with open_text(file) as text:
            reader = csv.reader(text, delimiter=header.dialect.delimiter, **_marks(header.dialect.quote))
            for cells in islice(reader, header.lines, None):
                sample: dict[str, Any] = {name: cells[places[name]] or None for name in self.schema.fields}
                for name, slot in keys.items():  # in JSON a key is a number
                    cell = sample[name]
                    if cell is not None:
                        sample[name] = (
                            [int(part) for part in cell.split(slot.split) if part] if slot.split else int(cell)
                        )
                yield sample

    def explain(self, reason: Reason, done: Parsed) -> str:
        # All of CSV is text, and text that reads true or false is no truth value.
        return reason.text if reason == Reason.LABEL else super().explain(reason, done)

    def explain_in(self, file: str, reason: Reason, done: Parsed) -> str:
        said = self.explain(reason, done)
        names = self.header(file).names
        if reason == Reason.FIELD_COUNT:
            return f"{said}: {done.found} where the {_origin(self.header(file))} {len(names)}"
        if reason == Reason.OPEN_QUOTE and not self._multiline:
            said += "; where fields hold line ends, say multiline = true under csv in the schema"
        at_all = reason not in (Reason.EMPTY_LINE, Reason.LONG_LINE)
        return f"column {names[done.column - 1]!r}: {said}" if at_all and 0 < done.column <= len(names) else said


def _origin(header: Header) -> str:
    return "header has" if header.dialect.header else "schema's csv.columns have"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")


def split_line(line: str, delimiter: str, quote: str = '"') -> list[str]:
    """One line into fields, as Python's csv module does."""
    return next(csv.reader(io.StringIO(line, newline=""), delimiter=delimiter, strict=True, **_marks(quote)), [])


def _marks(quote: str) -> dict[str, Any]:
    return {"quotechar": quote} if quote else {"quoting": csv.QUOTE_NONE}


def best_delimiter(line: bytes, needed: Sequence[str]) -> str | None:
    """The delimiter by which a header has all the columns that are needed."""
    text = line.decode(errors="replace").rstrip("\r\n")
    for delimiter in GUESSED_DELIMITERS:
        try:
            if set(needed) <= set(split_line(text, delimiter)):
                return delimiter
        except csv.Error:
            continue
    return None


def read_header(file: str, dialect: CsvDialect | None, needed: Sequence[str]) -> Header:
    check_file(file)
    source = open_source(file)
    try:
        mark = _first_bytes(source, len(BOM)) == BOM
        if dialect is not None and not dialect.header:
            assert dialect.columns is not None
            return Header(dialect.columns, dialect, len(BOM) if mark else 0, 0)
    finally:
        source.close()
    source = open_source(file)
    try:
        line = _first_line(source, file)
    finally:
        source.close()
    body = line.removeprefix(BOM)
    try:
        text = body.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise DataError(f"{file}: the header is not UTF-8: {body[:60]!r}") from None
    if not text.strip():
        raise DataError(
            f"{file}: the first line is blank; the names of the columns should stand there: take blank lines out, or, "
            "where files have no header, say header = false and columns under csv in the schema"
        )
    if dialect is None:
        dialect = CsvDialect(best_delimiter(body, needed) or _most_frequent(text))
    try:
        names = split_line(text, dialect.delimiter, dialect.quote)
    except csv.Error as error:
        raise DataError(f"{file}: the header cannot be read: {error}: {text[:60]!r}") from None
    return Header(tuple(names), dialect, len(line), 1)


def _most_frequent(text: str) -> str:
    return max(GUESSED_DELIMITERS, key=text.count)


def _first_bytes(source: ByteSource, size: int) -> bytes:
    data = bytearray(size)
    filled = 0
    while filled < size and (count := source.readinto(memoryview(data)[filled:])):
        filled += count
    return bytes(data[:filled])


def _first_line(source: ByteSource, file: str) -> bytes:
    found = bytearray()
    block = bytearray(1 << 16)
    while (count := source.readinto(memoryview(block))) and len(found) < 1 << 24:
        found += block[:count]
        end = found.find(b"\n", len(found) - count)
        if end >= 0:
            return bytes(found[: end + 1])
    if len(found) >= 1 << 24:
        raise DataError(f"{file}: the first line is longer than 16 MB: is this text?")
    return bytes(found)
