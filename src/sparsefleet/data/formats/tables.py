"""Columns of Arrow or Python values become samples by the schema's transforms, through the same native code as text.

Numbers go through their text: the shortest that reads back equal, so nothing is lost, and a whole number is hashed as
its decimal text in every format.

Legend: B samples.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sparsefleet.core.batch import I64, Batch
from sparsefleet.core.errors import DataError
from sparsefleet.core.schema import Schema
from sparsefleet.data.formats.columns import is_whole, without_view
from sparsefleet.data.formats.record_plan import record_plan
from sparsefleet.kernels.record_types import RecordColumns, RecordPlan, TextColumn, ValueKind
from sparsefleet.kernels.records import Assembler
from sparsefleet.kernels.text_types import F64, U8, Reason

_PADDING = 64


@dataclass(frozen=True, slots=True)
class Assembled:
    batch: Batch
    """The samples that were fine."""
    reasons: npt.NDArray[np.uint8]
    """[B] why a sample was refused; 0: it was not."""
    fields: I64
    """[B] the number of the column that is wrong, in `plan.fields`."""
    plan: RecordPlan
    numbers: F64 | None = None
    """[good samples, n] numbers before they are scaled, NaN where missing; only where they were asked for."""

    @property
    def good(self) -> I64:
        return np.flatnonzero(self.reasons == 0)

    @property
    def first_bad(self) -> int | None:
        bad = np.flatnonzero(self.reasons)
        return int(bad[0]) if len(bad) else None

    def reason(self, sample: int) -> Reason:
        return Reason(int(self.reasons[sample]))

    def column(self, sample: int) -> str:
        return self.plan.fields[int(self.fields[sample])]


class TableAssembler:
    """One per thread: it keeps scratch space."""

    def __init__(
        self,
        schema: Schema,
        *,
        labelled: bool = True,
        there: Collection[str] | None = None,
        features_only: bool = False,
    ) -> None:
        """As `record_plan`: features_only is for requests, which have neither labels nor weights."""
        self.schema = schema
        self.plan = record_plan(schema, labelled=labelled, there=there, features_only=features_only)
        self._assembler = Assembler(self.plan)
        # Of a timestamp there are seconds in one format and text in another: what is taken as it is would differ.
        slots = [slot.source for slot in schema.slots if slot.derive is None and slot.cross is None]
        self._taken_as_they_are = {*slots, *(feature.source for feature in schema.dense)}

    def arrow(self, columns: Mapping[str, pa.Array], rows: int, *, numbers: bool = False) -> Assembled:
        return self._made([self._of_arrow(columns[name], name) for name in self.plan.fields], rows, numbers)

    def objects(self, columns: Mapping[str, Sequence[Any]], rows: int) -> Assembled:
        """Columns of Python values: one for each sample, or a list of them, or None."""
        return self._made([_of_objects(columns[name], name) for name in self.plan.fields], rows)

    def _made(self, table: list[TextColumn], rows: int, numbers: bool = False) -> Assembled:
        out, reasons, fields = self._assembler.rows(table, rows, numbers=numbers)
        told = None if out.numbers is None else out.numbers[: out.filled]
        return Assembled(batch_of_columns(out, self.schema), reasons, fields, self.plan, told)

    def _of_arrow(self, column: pa.Array, name: str) -> TextColumn:
        kind = column.type
        rows = len(column)
        types = pa.types
        lists = bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))
        if lists:
            lengths = pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
            values = column.flatten()
            home = np.repeat(np.arange(rows), lengths)
        else:
            values, home = column, np.arange(rows)
        if types.is_dictionary(values.type):
            values = values.cast(values.type.value_type)
        values = without_view(values)
        valid = values.is_valid().to_numpy(zero_copy_only=False)
        values, home = values.drop_null(), home[valid]
        texts, what = self._texts(values, name)
        _, offsets, data = texts.buffers()
        ends = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
        raw = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
        first, last = (int(ends[0]), int(ends[-1])) if len(ends) else (0, 0)
        bags = np.concatenate([[0], np.cumsum(np.bincount(home, minlength=rows))]).astype(np.int64)
        return TextColumn(
            np.concatenate([raw[first:last], np.zeros(_PADDING, np.uint8)]),
            np.ascontiguousarray(ends - first),
            bags,
            np.full(len(texts), what, np.uint8),
            np.full(rows, lists, np.uint8),
        )

    def _texts(self, values: pa.Array, name: str) -> tuple[pa.Array, ValueKind]:
        kind, types = values.type, pa.types
        if types.is_null(kind):
            return pa.array([], pa.large_binary()), ValueKind.TEXT
        if types.is_timestamp(kind):
            if name in self._taken_as_they_are:
                raise DataError(
                    f"column {name!r} holds {kind}; a slot takes text and whole numbers, a dense feature numbers. Of a "
                    'time, derive = "hour" or "weekday" makes a slot; or write it as text'
                )
            unit = "ms" if self.schema.time_format == "milliseconds" else "s"
            if self.schema.time_format == "yymmddhh":
                raise DataError(f"column {name!r} holds {kind}; for that, the schema's time_format must be auto")
            values = values.cast(pa.timestamp(unit, kind.tz), safe=False).cast(pa.int64())
            return values.cast(pa.large_string()).cast(pa.large_binary()), ValueKind.WHOLE
        if types.is_date(kind):
            return values.cast(pa.date32()).cast(pa.large_string()).cast(pa.large_binary()), ValueKind.TEXT
        if types.is_boolean(kind):
            return values.cast(pa.large_string()).cast(pa.large_binary()), ValueKind.TRUTH
        if is_whole(kind):
            return values.cast(pa.large_string()).cast(pa.large_binary()), ValueKind.WHOLE
        if types.is_floating(kind) or types.is_decimal(kind):
            doubles = values.cast(pa.float64(), safe=False)
            return doubles.cast(pa.large_string()).cast(pa.large_binary()), ValueKind.FRACTION
        if types.is_fixed_size_binary(kind):
            values = values.cast(pa.binary())
        try:
            return values.cast(pa.large_binary()), ValueKind.TEXT
        except pa.ArrowException:
            raise DataError(
                f"column {name!r} holds {kind}; allowed are text, numbers, truth values, times, and lists of these"
            ) from None


def batch_of_columns(out: RecordColumns, schema: Schema) -> Batch:
    samples, width = out.filled, len(schema.slots)
    assert out.offsets is not None
    offsets = out.offsets[: samples * width + 1]
    more: dict[str, Any] = {"weights": out.weights, "groups": out.groups, "times": out.times}
    labels = out.labels[:samples]
    return Batch.trusted(
        labels=np.ascontiguousarray(labels[:, 0]) if labels.shape[1] == 1 else labels,
        dense=out.dense[:samples],
        keys=out.keys[: int(offsets[-1])],
        offsets=offsets,
        slots=schema.slot_names,
        **{name: column[:samples] for name, column in more.items() if column is not None},
    )


def _of_objects(column: Sequence[Any], name: str) -> TextColumn:
    texts: list[bytes] = []
    kinds: list[int] = []
    bags = np.zeros(len(column) + 1, np.int64)
    lists: U8 = np.zeros(len(column), np.uint8)
    for row, value in enumerate(column):
        if isinstance(value, np.ndarray):
            value = value.tolist()
        if isinstance(value, list | tuple):
            lists[row] = 1
            values = [one for one in value if one is not None]
        else:
            values = [] if value is None else [value]
        for one in values:
            text, kind = _text_of(one, name)
            texts.append(text)
            kinds.append(kind)
        bags[row + 1] = len(texts)
    ends = np.zeros(len(texts) + 1, np.int64)
    np.cumsum([len(text) for text in texts], out=ends[1:])
    data = np.frombuffer(b"".join(texts) + bytes(_PADDING), np.uint8)
    return TextColumn(data, ends, bags, np.array(kinds, np.uint8), lists)


def _text_of(value: Any, name: str) -> tuple[bytes, ValueKind]:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool):
        return (b"true" if value else b"false"), ValueKind.TRUTH
    if isinstance(value, int):
        return b"%d" % value, ValueKind.WHOLE
    if isinstance(value, float):
        return repr(value).encode(), ValueKind.FRACTION
    if isinstance(value, bytes):
        return value, ValueKind.TEXT
    if isinstance(value, str):
        try:
            return value.encode(), ValueKind.TEXT
        except UnicodeEncodeError:
            raise DataError(f"column {name!r} has {value!r:.80}, which is not valid Unicode") from None
    raise DataError(f"column {name!r} has {value!r:.80} of type {type(value).__name__}; allowed are text and numbers")
