"""Raw Criteo text, read in blocks of whole lines and checked.

A row is a label, 13 numbers and 26 categories, tab separated. Ordinary rows are checked all at once with
NumPy. Whatever looks unusual is looked at singly by `row_fault`, which alone decides whether a row is bad and
says why.

Legend: L lines of a block, K of them good.
"""

from __future__ import annotations

import gzip
import os
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sparsefleet.core.errors import BadRowError, DataError
from sparsefleet.data.files import list_files
from sparsefleet.data.formats.base import BadRows

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

INTEGER_COLUMNS, CATEGORY_COLUMNS = 13, 26
FIELDS = 1 + INTEGER_COLUMNS + CATEGORY_COLUMNS
MAX_LINE = 1 << 16
"""Bytes; a longer line is no row."""
READ_BYTES = 1 << 23

_TAB, _NEWLINE, _MINUS, _ZERO = 9, 10, 45, 48
_NUMBER = re.compile(rb"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_LARGEST = float(np.finfo(np.float32).max)
_FAST_DIGITS = 15
"""Longer numbers go the slow way: up to here int64 and float64 are exact."""


@dataclass(frozen=True, slots=True)
class Lines:
    """Whole lines of one file, each ended by a newline."""

    file: str
    first: int
    """Number of the first line in the file, from 1."""
    text: bytes
    position: int
    """Bytes of the file (as it lies on disk) read so far."""


@dataclass(frozen=True, slots=True)
class GoodRows:
    """The good rows of some lines. Row k is `text[starts[k]:ends[k]]`, its newline included."""

    text: bytes
    starts: I64
    ends: I64
    numbers: F64
    """[13, K]; NaN where blank."""

    def __len__(self) -> int:
        return len(self.starts)


def raw_files(raw: str | Path) -> list[Path]:
    """The file itself, empty or not, or a folder's files as `list_files` finds them."""
    return [Path(file) for file in ([raw] if os.path.isfile(raw) else list_files(raw))]


def read_lines(path: Path) -> Iterator[Lines]:
    """The file in blocks; `.gz` is unpacked. An over-long line comes cut short, but still over-long."""
    try:
        with path.open("rb") as on_disk:
            source = gzip.GzipFile(fileobj=on_disk) if path.suffix == ".gz" else on_disk
            line, rest, cutting = 1, b"", False
            while True:
                read = source.read(READ_BYTES)
                if cutting and read:
                    end = read.find(b"\n")
                    if end < 0:
                        continue
                    read, cutting = read[end:], False
                rest += read
                if not read and rest:
                    rest += b"\n"
                end = rest.rfind(b"\n") + 1
                text, rest = rest[:end], rest[end:]
                if len(rest) > MAX_LINE:
                    rest, cutting = rest[: MAX_LINE + 1], True
                if text:
                    if b"\r" in text:
                        text = text.replace(b"\r\n", b"\n")
                    yield Lines(str(path), line, text, on_disk.tell())
                    line += text.count(b"\n")
                if not read:
                    return
    except EOFError as error:
        raise DataError(f"{path}: the .gz file is cut off after line {line - 1}; fetch it again") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path}: damaged or no .gz file ({error})") from error
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error


def good_rows(lines: Lines, bad_rows: BadRows) -> GoodRows:
    """Check all rows; bad ones raise or are counted, as `bad_rows` says."""
    text = lines.text
    data = np.frombuffer(text, np.uint8)
    ends = np.flatnonzero(data == _NEWLINE) + 1
    starts = np.concatenate([[0], ends[:-1]])
    tabs = np.flatnonzero(data == _TAB)
    tabs_before = np.searchsorted(tabs, ends)
    tab_counts = np.diff(tabs_before, prepend=0)

    usual = (tab_counts == FIELDS - 1) & (ends - starts <= MAX_LINE)
    if not text.isascii() or b"\0" in text:
        usual &= ~_unusual_bytes(data, starts)
    tabs_39 = tabs[np.repeat(usual, tab_counts)].reshape(-1, FIELDS - 1)
    row_start = starts[usual]
    fine = (tabs_39[:, 0] - row_start == 1) & (data[row_start] - np.uint8(_ZERO) <= 1)
    numbers = np.full((INTEGER_COLUMNS, len(starts)), np.nan)
    for column in range(INTEGER_COLUMNS):
        values, ordinary = _whole_numbers(data, tabs_39[:, column] + 1, tabs_39[:, column + 1])
        numbers[column, usual] = values
        fine &= ordinary
    good = np.zeros(len(starts), np.bool_)
    good[usual] = fine

    for index in np.flatnonzero(~good):
        row = text[starts[index] : ends[index] - 1]
        fault = row_fault(row)
        if fault is None:
            good[index] = True
            fields = row.split(b"\t", INTEGER_COLUMNS + 1)[1 : INTEGER_COLUMNS + 1]
            numbers[:, index] = [float(field) if field else np.nan for field in fields]
        else:
            bad_rows.refuse(BadRowError(lines.file, lines.first + int(index), *fault))
    return GoodRows(text, starts[good], ends[good], numbers[:, good])


def row_fault(row: bytes) -> tuple[int | None, str, str] | None:
    """None for a good row; otherwise the column (from 1), the reason, and the text that gave it."""
    if len(row) >= MAX_LINE:
        return None, f"line longer than {MAX_LINE} bytes", _shown(row)
    fields = row.split(b"\t")
    for column, field in enumerate(fields, 1):
        if b"\0" in field:
            return column, "NUL byte", _shown(field)
        try:
            field.decode()
        except UnicodeDecodeError:
            return column, "invalid UTF-8", _shown(field)
    if len(fields) != FIELDS:
        hint = ", as in a file without labels" if len(fields) == FIELDS - 1 else ""
        wanted = "label, 13 integers, 26 categories, tab separated"
        count = f"{len(fields)} field{'s' if len(fields) != 1 else ''}"
        reason = f"{count} instead of {FIELDS} ({wanted}){hint}"
        return None, reason, _shown(row)
    if fields[0] not in (b"0", b"1"):
        return 1, "label is not 0 or 1", _shown(fields[0])
    for column, field in enumerate(fields[1 : INTEGER_COLUMNS + 1], 2):
        if field and not _NUMBER.fullmatch(field):
            return column, f"I{column - 1} is not a number", _shown(field)
        if field and abs(float(field)) > _LARGEST:
            return column, f"I{column - 1} is too large for float32", _shown(field)
    return None


def _shown(text: bytes, most: int = 60) -> str:
    shown = text[:most].decode(errors="backslashreplace")
    return shown + "…" if len(text) > most else shown


def _unusual_bytes(data: npt.NDArray[np.uint8], starts: I64) -> Mask:
    """Per line: does it hold a NUL or anything beyond ASCII?"""
    return np.asarray(np.logical_or.reduceat((data == 0) | (data > 127), starts), np.bool_)


def _whole_numbers(data: npt.NDArray[np.uint8], starts: I64, ends: I64) -> tuple[F64, Mask]:
    """Numbers of the fields, NaN for blanks; and which fields are blank or plain whole numbers at all."""
    negative = (data[starts] == _MINUS) & (ends > starts)
    starts = starts + negative
    lengths = ends - starts
    ordinary = (lengths <= _FAST_DIGITS) & ~(negative & (lengths == 0))
    values = np.zeros(len(starts), np.int64)
    for place in range(int(min(lengths.max(initial=0), _FAST_DIGITS))):
        inside = lengths > place
        digits = data[np.where(inside, starts + place, 0)] - np.uint8(_ZERO)
        ordinary &= ~inside | (digits <= 9)
        values = np.where(inside, values * 10 + digits, values)
    signed = np.where(negative, -values, values).astype(np.float64)
    return np.where(lengths == 0, np.nan, signed), ordinary
