"""Rows from Python: any iterable of dicts {name: value or list}, or of ready batches.

A text or bytes value of a slot is hashed as in the text formats; a whole number is a key already, taken as it
is (folded modulo `sparse_feature_dim` unless that is 0); a list holds several values; None or no entry is no
value. Dense values are normalised as raw values, a missing one is 0.0. Batches pass through as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from numbers import Integral, Real
from typing import Any

import numpy as np

from sparsefleet.core.batch import Batch, Mark
from sparsefleet.core.errors import BadRowError, ConfigError, DataError
from sparsefleet.core.schema import Schema
from sparsefleet.data.formats.base import CHUNK_ROWS, BadRows, Chunk, Format, Unit
from sparsefleet.kernels.rowtypes import Reason
from sparsefleet.kernels.text import feature_key

Row = Mapping[str, Any]
Source = Iterable[Row | Batch] | Callable[[], Iterable[Row | Batch]]

NAME = "<rows>"
"""Stands for the file's name in units and errors."""


class _Refused(Exception):
    def __init__(self, name: str, reason: str, value: object) -> None:
        super().__init__(reason)
        self.name, self.reason, self.value = name, reason, value


class RowsFormat(Format):
    def __init__(self, schema: Schema, source: Source, *, labelled: bool = True, name: str = NAME) -> None:
        """`source` is an iterable, or a function that returns one (to read generators more than once)."""
        if not callable(source) and not isinstance(source, Iterable):
            raise ConfigError(f"rows must be an iterable, or a function that returns one; got {type(source)}")
        self.schema, self.labelled, self.name = schema, labelled, name
        self._source = source
        self._started = False

    def plan(self, files: Sequence[str], pieces: int) -> list[Unit]:
        return [Unit(self.name)]

    def read(self, unit: Unit, bad_rows: BadRows, resume: Mark | None = None) -> Iterator[Chunk]:
        if resume is not None and resume.done:
            return
        items = iter(self._iterable())
        try:
            yield from self._chunks(items, bad_rows, 0 if resume is None else resume.rows)
        finally:
            # A generator's own clean-up should not wait for the garbage collector.
            close = getattr(items, "close", None)
            if close is not None:
                close()

    def _iterable(self) -> Iterable[Row | Batch]:
        if callable(self._source):
            return self._source()
        if isinstance(self._source, Iterator):
            if self._started:
                raise DataError(
                    f"{self.name}: a generator can be read only once; give a list, or a function that "
                    "returns a new generator each time"
                )
            self._started = True
        return self._source

    def _chunks(self, items: Iterator[Row | Batch], bad_rows: BadRows, consumed: int) -> Iterator[Chunk]:
        builder, seen = _Builder(self.schema), 0
        for item in items:
            if isinstance(item, Batch):
                self._check_batch(item)
                if builder.lines:
                    yield builder.chunk()
                    builder = _Builder(self.schema)
                skip = min(len(item), max(0, consumed - seen))
                if skip < len(item):
                    lines = np.arange(seen + skip + 1, seen + len(item) + 1)
                    yield Chunk(item.rows(skip, len(item)) if skip else item, lines)
                seen += len(item)
                continue
            seen += 1
            if seen <= consumed:
                continue
            try:
                builder.add(item, seen, self.labelled)
            except _Refused as bad:
                if bad_rows.policy == "error" and builder.lines:
                    yield builder.chunk()
                detail = f"{bad.name!r}: {bad.reason}" if bad.name else bad.reason
                error = BadRowError(self.name, seen, None, detail, repr(bad.value)[:60])
                error.reason = bad.reason
                bad_rows.refuse(error)
            if len(builder.lines) == CHUNK_ROWS:
                yield builder.chunk()
                builder = _Builder(self.schema)
        if builder.lines:
            yield builder.chunk()
        if seen < consumed:
            raise DataError(f"{self.name}: cannot go on after row {consumed}: there are only {seen}")

    def _check_batch(self, batch: Batch) -> None:
        expected = (self.schema.slot_names, len(self.schema.dense))
        if (batch.slots, batch.dense.shape[1]) != expected:
            raise DataError(
                f"{self.name}: a batch of slots {', '.join(batch.slots)} and {batch.dense.shape[1]} dense "
                f"values; the schema has {', '.join(expected[0])} and {expected[1]}"
            )


class _Builder:
    """Collects rows of one chunk. A row is added whole or not at all."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.known = {schema.label, *schema.dense_names, *schema.slot_names}
        self.lines: list[int] = []
        self.labels: list[float] = []
        self.dense: list[list[float]] = []
        self.bags: list[list[int]] = []

    def add(self, row: Row, line: int, labelled: bool) -> None:
        if not isinstance(row, Mapping):
            raise _Refused("", "a row must be a dict {name: value or list} or a Batch", row)
        for name in row:
            if name not in self.known:
                # A misspelt name would otherwise be a feature that is always missing.
                raise _Refused(str(name), "the schema has no such name", row[name])
        label = self._label(row.get(self.schema.label), labelled)
        dense = [_dense(row.get(f.name), f.name, f.minimum, f.diff) for f in self.schema.dense]
        bags = [self._keys(row.get(slot.name), slot.name, slot.prefix) for slot in self.schema.slots]
        self.lines.append(line)
        self.labels.append(label)
        self.dense.append(dense)
        self.bags += bags

    def _label(self, value: Any, labelled: bool) -> float:
        value = _plain(value)
        if value is None:
            if labelled:
                raise _Refused(self.schema.label, "label is missing", value)
            return math.nan
        if not isinstance(value, Real) or value not in (0, 1):
            raise _Refused(self.schema.label, Reason.LABEL.text, value)
        return float(value)

    def _keys(self, value: Any, name: str, prefix: bytes) -> list[int]:
        value = _plain(value)
        if value is None:
            return []
        values = value if isinstance(value, list | tuple) else [value]
        return [self._key(_plain(one), name, prefix) for one in values if one is not None]

    def _key(self, value: Any, name: str, prefix: bytes) -> int:
        schema = self.schema
        if isinstance(value, str | bytes):
            raw = value if isinstance(value, bytes) else value.encode("utf-8", "surrogatepass")
            return feature_key(raw, prefix, schema.hash_seed, schema.sparse_feature_dim)
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise _Refused(name, "neither text nor a whole number", value)
        key = int(value)
        if key < 0:
            raise _Refused(name, Reason.NEGATIVE_KEY.text, value)
        if key >= 2**64:
            raise _Refused(name, Reason.KEY_OVERFLOW.text, value)
        return key % schema.sparse_feature_dim if schema.sparse_feature_dim else key

    def chunk(self) -> Chunk:
        rows = len(self.lines)
        lengths = np.fromiter(map(len, self.bags), np.int64, len(self.bags))
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        batch = Batch(
            labels=np.array(self.labels, np.float32),
            dense=np.array(self.dense, np.float32).reshape(rows, len(self.schema.dense)),
            keys=np.fromiter(chain.from_iterable(self.bags), np.uint64, int(offsets[-1])),
            offsets=offsets,
            slots=self.schema.slot_names,
        )
        return Chunk(batch, np.array(self.lines, np.int64))


def _plain(value: Any) -> Any:
    """Tensors, arrays and their scalars as Python values."""
    return value.tolist() if hasattr(value, "tolist") else value


def _dense(value: Any, name: str, minimum: float, diff: float) -> float:
    value = _plain(value)
    if isinstance(value, list | tuple) and len(value) == 1:
        value = value[0]
    if value is None:
        return 0.0
    if not isinstance(value, Real) or math.isnan(value):
        raise _Refused(name, Reason.NUMBER.text, value)
    normalised = (float(value) - minimum) / diff
    if abs(normalised) > float(np.finfo(np.float32).max):
        raise _Refused(name, Reason.RANGE.text, value)
    return normalised
