"""Fields of the schema that JSON lines never have: renamed, or the schema is of other data.

A line says itself which fields it has, and one that it lacks is missing there. So a field that no line has would be
trained on and scored as missing, without a word, where CSV and Parquet say that there is no such column.

Each file is looked at once, from its beginning, whichever part of it is read: all trainers come to the same opinion.
Usually the first line has all fields, and that is all. A field may be rare, so nothing is refused before `ROWS` rows
are without it, and the bytes that follow them too; below that there is a warning.
"""

from __future__ import annotations

import difflib
import json
import logging
import threading
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from sparsefleet.core.errors import DataError
from sparsefleet.data.formats.source import open_source

logger = logging.getLogger("sparsefleet.data")

ROWS = 1000
"""Rows that are looked at one by one, and that a field has to be absent from before it is refused."""
SEARCHED_BYTES = 16 << 20
"""What of a file is searched for a field's name then."""
OTHERS = 4
"""So many other files are searched too, of the first and of the last: what one of them has is rare, and not absent."""
BLOCK_BYTES = 1 << 20
FEW = 50
"""Rows that should have a field, going by another file, where none has it: that is no chance."""


@dataclass(frozen=True, slots=True)
class Look:
    """The first rows of a file."""

    rows: int
    having: Counter[str]
    """In how many of them each field occurs."""


class AbsentFields:
    """One for the files that a format reads."""

    def __init__(self, features: Collection[str], beside: Collection[str], max_line: int) -> None:
        """`features`: the fields that must occur; `beside`: the group, which must as well."""
        self._features, self._wanted = tuple(features), (*features, *(name for name in beside if name not in features))
        self._max_line = max_line
        self._files: Sequence[str] = ()
        self._guard = threading.Lock()
        self._fine: set[str] = set()
        self._first: dict[str, str] = {}
        """Of each field, a file that has it."""
        self._without: Counter[str] = Counter()
        """Rows looked at without it, as long as no file has it."""
        self._warned: set[str] = set()

    def beside(self, files: Sequence[str]) -> None:
        """The files that are read together: what one of them has is not absent."""
        self._files = files

    def require(self, file: str) -> None:
        """DataError where the file is of other data."""
        if not self._wanted or file in self._fine:
            return
        with self._guard:
            if file not in self._fine:
                self._look_at(file)
                self._fine.add(file)

    def _look_at(self, file: str) -> None:
        look = first_rows(file, self._wanted, self._max_line)
        if not look.rows:  # an empty file, or lines that are no objects: the parser says so
            return
        for name in look.having:
            self._first.setdefault(name, file)
        absent = [name for name in self._wanted if not look.having[name]]
        if len(self._features) > 1 and all(name in absent for name in self._features):
            raise self._refusal(file, list(self._features), look)
        rare = [name for name in absent if self._is_rare(name, file, look)]
        never = [name for name in absent if name not in rare]
        if never:
            raise self._refusal(file, never, look)

    def _is_rare(self, name: str, file: str, look: Look) -> bool:
        """Whether the file may be without the field rightly, as far as can be told."""
        if look.rows == ROWS and occurs(name, file):
            self._first.setdefault(name, file)
            return True
        if name not in self._first:
            others = [other for other in self._files if other != file]
            having = (other for other in (*others[:OTHERS], *others[OTHERS:][-OTHERS:]) if occurs(name, other))
            if (found := next(having, None)) is not None:
                self._first[name] = found
        if name in self._first:
            there = first_rows(self._first[name], (), self._max_line)
            return there.having[name] < FEW or look.rows * there.having[name] < FEW * there.rows
        self._without[name] += look.rows
        if self._without[name] >= ROWS:
            return False
        if name not in self._warned:
            self._warned.add(name)
            logger.warning("%s: none of its %d rows has %s", file, look.rows, _described([name], look, self._wanted))
        return True

    def _refusal(self, file: str, names: list[str], look: Look) -> DataError:
        looked = f"{look.rows:,} rows looked at" + (
            f", {SEARCHED_BYTES >> 20} MB searched" if look.rows == ROWS else ""
        )
        return DataError(
            f"{file}: no row has {_described(names, look, self._wanted)} ({looked}). Where a field has another name "
            'here, say so in the schema (column = "…"), or rename it; where it is rightly missing in all rows, write '
            "null for it, or name it under optional in the schema"
        )


def first_rows(file: str, wanted: Iterable[str], max_line: int) -> Look:
    """Until all wanted fields have occurred; with none wanted, ROWS rows."""
    from sparsefleet.data.formats.records import open_text

    missing, having, rows, size = set(wanted), Counter[str](), 0, 0
    any_wanted = bool(missing)
    with open_text(file) as lines:
        while rows < ROWS and size < SEARCHED_BYTES and (missing or not any_wanted):
            line = lines.readline(max_line)
            if not line:
                break
            size += len(line)
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                continue  # the parser says what is wrong
            if isinstance(record, dict):
                rows += 1
                having.update(record.keys())
                missing.difference_update(record)
    return Look(rows, having)


def occurs(name: str, file: str) -> bool:
    """Whether the bytes at the beginning of the file hold this name as JSON writes it. A value counts, too."""
    forms = {json.dumps(name).encode(), json.dumps(name, ensure_ascii=False).encode(errors="replace")}
    overlap = max(map(len, forms)) - 1
    source, block, kept, left = open_source(file), bytearray(BLOCK_BYTES), b"", SEARCHED_BYTES
    try:
        while left > 0 and (count := source.readinto(memoryview(block))):
            found = kept + block[:count]
            if any(form in found for form in forms):
                return True
            kept, left = found[-overlap:], left - count
    finally:
        source.close()
    return False


def _described(names: Sequence[str], look: Look, wanted: Collection[str]) -> str:
    """The fields with those that look like them, and what there is."""
    surplus = [name for name in look.having if name not in wanted]
    told = []
    for name in names[:5]:
        near = difflib.get_close_matches(name, surplus, n=2)
        told.append(repr(name) + (f" (but {' and '.join(map(repr, near))})" if near else ""))
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    there = list(look.having)
    has = ", ".join(there[:12]) + (f" and {len(there) - 12} more" if len(there) > 12 else "") or "no fields"
    return f"{' or '.join(told)}{more}; they have {has}"
