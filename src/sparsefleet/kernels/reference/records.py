"""Parsing of records in plain Python: the readable twin of `kernels/records.py`."""

from __future__ import annotations

import bisect
import csv
import io
import json
import math
import re
from calendar import timegm
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import product
from typing import Any

import numpy as np

from sparsefleet.core.xxh64 import xxh64
from sparsefleet.kernels.record_types import (
    MAX_RECORD,
    DensePlan,
    Function,
    RecordColumns,
    RecordPlan,
    SlotOf,
    SlotPlan,
    SvmPlaces,
    TextColumn,
    TimeFormat,
    ValueKind,
)
from sparsefleet.kernels.reference.text import LineParser, Refused, RoomLacks, check_bytes, parse_decimal
from sparsefleet.kernels.text_types import Columns, Reason

Value = tuple[bytes, ValueKind]
Field = tuple[list[Value], bool]
"""Values of a record's field, and whether they came as a list; no value: missing."""

ISO = re.compile(
    rb"(\d{4})-(\d\d)-(\d\d)(?:[T ](\d\d):(\d\d)(?::(\d\d)(?:\.\d+)?)?(Z|[+-]\d\d(?::?\d\d)?)?)?", re.ASCII
)
INTEGER = re.compile(rb"-?\d+", re.ASCII)
YEAR_10000 = 253402300800
"""In seconds since 1970. What lies beyond is in another unit (milliseconds, most likely)."""


def parse_time(text: bytes, format: int) -> int | None:
    """Seconds since 1970; None where it is no time."""
    try:
        if format == TimeFormat.YYMMDDHH:
            if not re.fullmatch(rb"[0-9]{8}", text):
                return None
            year, month, day, hour = (int(text[at : at + 2]) for at in (0, 2, 4, 6))
            return timegm(datetime(2000 + year, month, day, hour, tzinfo=UTC).timetuple())
        number = parse_decimal(text)
        if number is not None:
            seconds = math.floor(number / 1000 if format == TimeFormat.MILLISECONDS else number)
            return seconds if abs(seconds) < YEAR_10000 else None
        found = ISO.fullmatch(text) if format == TimeFormat.AUTO else None
        if found is None:
            return None
        year, month, day, hour, minute, second = (int(part or 0) for part in found.groups()[:6])
        shift = 0
        zone = found.group(7) or b"Z"
        if zone != b"Z":
            hours, minutes = int(zone[1:3]), int(zone[3:].lstrip(b":") or 0)
            if hours > 14 or minutes > 59:
                return None
            shift = (hours * 3600 + minutes * 60) * (1 if zone[:1] == b"+" else -1)
        seconds = timegm(datetime(year or 2000, month, day, hour, minute, second, tzinfo=UTC).timetuple())
        if year == 0:  # Python has no year 0; it is a leap year, as 2000 is
            seconds -= 2000 * 365 * 86400 + 485 * 86400
        return seconds - shift
    except ValueError:
        return None


def ln2(x: float) -> float:
    return math.floor(math.log(x) ** 2) if x > 2 else math.trunc(x)


class Assembler:
    def __init__(self, plan: RecordPlan) -> None:
        self.plan = plan

    def refuse(self, reason: Reason, field: int) -> Refused:
        return Refused(reason, field + 1, 0, 0)

    def assemble(self, record: Sequence[Field], out: RecordColumns) -> None:
        """One record into sample `out.filled`, or raise `Refused` with the field's number, from 1."""
        plan, sample = self.plan, out.filled
        labels = out.labels[sample]
        for index, label in enumerate(plan.labels):
            labels[index] = np.nan
            if label.field < 0 or (label.where >= 0 and labels[label.where] != 1):
                continue
            value = one_text(record[label.field])
            if value is None:
                if label.required:
                    raise self.refuse(Reason.LABEL_MISSING, label.field)
                continue
            number = {b"true": 1.0, b"false": 0.0}.get(value[0]) if value[1] == ValueKind.TRUTH else None
            number = parse_decimal(value[0]) if number is None else number
            if number not in (0, 1) or (record[label.field][1] and len(record[label.field][0]) != 1):
                raise self.refuse(Reason.LABEL, label.field)
            labels[index] = number
        for index, dense in enumerate(plan.dense):
            x = self.before_scaling(record[dense.field], dense)
            out.dense[sample, index] = self.scaled(x, dense)
            if out.numbers is not None:
                out.numbers[sample, index] = math.nan if x is None else x
        if out.weights is not None:
            values = record[plan.weight][0]
            weight = parse_decimal(values[0][0]) if len(values) == 1 else None
            if weight is None or not 0 <= weight <= np.finfo(np.float32).max:
                raise self.refuse(Reason.WEIGHT, plan.weight)
            out.weights[sample] = weight
        if out.groups is not None:
            values = record[plan.group][0]
            out.groups[sample] = xxh64(values[0][0] if values else b"", plan.seed)
        if out.times is not None:
            values = record[plan.time][0]
            seconds = parse_time(values[0][0], plan.time_format) if len(values) == 1 else None
            if seconds is None:
                raise self.refuse(Reason.TIME, plan.time)
            out.times[sample] = seconds
        self.put_keys(record, out)

    def before_scaling(self, field: Field, plan: DensePlan) -> float | None:
        """None: it is missing."""
        value = one_text(field)
        if value is None:
            if math.isnan(plan.missing):
                return None
            x: float | None = plan.missing
        else:
            if field[1] or value[1] == ValueKind.TRUTH:
                raise self.refuse(Reason.VALUE_KIND, plan.field)
            x = parse_decimal(value[0])
        if x is None:
            raise self.refuse(Reason.NUMBER, plan.field)
        x = min(max(x, plan.low), plan.high)
        if plan.function == Function.LOG1P:
            x = math.copysign(math.log1p(abs(x)), x)
        elif plan.function == Function.LN2:
            x = ln2(x)
        return x

    def scaled(self, x: float | None, plan: DensePlan) -> np.float32:
        if x is None:
            return np.float32(0.0)
        with np.errstate(over="ignore"):
            made = np.float32((np.float64(x) - plan.minimum) / plan.diff)
        if not np.isfinite(made):
            raise self.refuse(Reason.RANGE, plan.field)
        return made

    def put_keys(self, record: Sequence[Field], out: RecordColumns) -> None:
        assert out.offsets is not None
        plan, slots = self.plan, self.plan.slots
        bags: list[list[int]] = [[] for _ in slots]
        for index in sorted(range(len(slots)), key=lambda index: slots[index].kind == SlotOf.CROSS):
            slot = slots[index]
            if slot.kind == SlotOf.CROSS:
                parts = [bags[part] for part in slot.cross]
                if math.prod(map(len, parts)) > len(out.keys):
                    raise self.refuse(Reason.TOO_MANY_VALUES, slots[slot.cross[0]].field)
                bags[index] = [
                    xxh64(slot.prefix + b"".join(key.to_bytes(8, "little") for key in keys), plan.seed)
                    for keys in product(*parts)
                ]
            else:
                bags[index] = list(self.slot(record[slot.field], slot))
            if sum(map(len, bags)) > len(out.keys):
                raise self.refuse(Reason.TOO_MANY_VALUES, slot.field)
        end = int(out.offsets[out.filled * len(slots)])
        if end + sum(map(len, bags)) > len(out.keys):
            raise RoomLacks
        for index, bag in enumerate(bags):
            out.keys[end : end + len(bag)] = [key % plan.dim if plan.dim else key for key in bag]
            end += len(bag)
            out.offsets[out.filled * len(slots) + index + 1] = end

    def slot(self, field: Field, slot: SlotPlan) -> list[int]:
        def key(text: bytes) -> int:
            return xxh64(slot.prefix + text, self.plan.seed)

        missing = [key(slot.missing)] if slot.has_missing else []
        if slot.kind in (SlotOf.HASHED, SlotOf.KEYS):
            found: list[int] = []
            for text, kind in field[0]:
                if slot.first and len(found) >= slot.first:
                    break
                if kind > ValueKind.WHOLE and slot.kind == SlotOf.HASHED:
                    raise self.refuse(Reason.VALUE_KIND, slot.field)
                split = slot.split and kind == ValueKind.TEXT and not field[1]
                parts = [part for part in text.split(bytes([slot.split])) if part] if split else [text]
                if not split and not text and (slot.has_missing or slot.kind == SlotOf.KEYS):
                    continue
                for part in parts:
                    if slot.first and len(found) >= slot.first:
                        break
                    found.append(self.key(part, kind, slot) if slot.kind == SlotOf.KEYS else key(shaped(part, slot)))
            if slot.filtered:
                kept, rare = set(slot.kept.tolist()), [key(slot.rare)] if slot.has_rare else []
                found = [one for each in found for one in ([each] if each in kept else rare)]
            return found or missing
        value = one_text(field)
        if value is None:
            return missing
        text, kind = value
        if field[1] or kind == ValueKind.TRUTH:
            raise self.refuse(Reason.VALUE_KIND, slot.field)
        if slot.kind in (SlotOf.HOUR, SlotOf.WEEKDAY):
            seconds = parse_time(text, self.plan.time_format)
            if seconds is None:
                raise self.refuse(Reason.TIME, slot.field)
            made = seconds % 86400 // 3600 if slot.kind == SlotOf.HOUR else (seconds // 86400 + 3) % 7
            return [key(b"%d" % made)]
        x = parse_decimal(text)
        if x is None:
            raise self.refuse(Reason.NUMBER, slot.field)
        if slot.kind == SlotOf.BUCKETS:
            return [key(b"%d" % bisect.bisect_right(slot.buckets, x))]
        if abs(ln2(x)) >= 1e15:
            raise self.refuse(Reason.RANGE, slot.field)
        return [key(b"%d" % ln2(x))]

    def key(self, text: bytes, kind: int, slot: SlotPlan) -> int:
        if kind > ValueKind.WHOLE or (kind == ValueKind.TEXT and not self.plan.text_keys):
            raise self.refuse(Reason.VALUE_KIND, slot.field)
        if not INTEGER.fullmatch(text):
            raise self.refuse(Reason.KEY, slot.field)
        if text.startswith(b"-"):
            raise self.refuse(Reason.NEGATIVE_KEY, slot.field)
        if int(text) >= 2**64:
            raise self.refuse(Reason.KEY_OVERFLOW, slot.field)
        return int(text)

    def rows(self, table: Sequence[TextColumn], rows: int, *, numbers: bool = False) -> tuple[RecordColumns, Any, Any]:
        out = RecordColumns.for_plan(self.plan, rows, max(1024, rows * 1024), numbers=numbers)
        reasons, fields = np.zeros(rows, np.uint8), np.zeros(rows, np.int64)
        for row in range(rows):
            record: list[Field] = []
            for column in table:
                places = range(column.bags[row], column.bags[row + 1])
                spans = [(column.ends[place], column.ends[place + 1], column.kinds[place]) for place in places]
                values = [(column.data[a:b].tobytes(), ValueKind(kind)) for a, b, kind in spans]
                record.append((values, bool(column.lists[row])))
            try:
                self.assemble(record, out)
                out.filled += 1
            except Refused as refused:
                reasons[row], fields[row] = refused.reason, refused.column - 1
        return out, reasons, fields


def one_text(field: Field) -> Value | None:
    """The first value; None where it is missing, or empty."""
    values = field[0]
    return None if not values or (len(values) == 1 and not values[0][0]) else values[0]


def shaped(text: bytes, slot: SlotPlan) -> bytes:
    if slot.length:
        text = text.decode(errors="surrogateescape")[: slot.length].encode(errors="surrogateescape")
    return text.lower() if slot.lower else text  # of bytes: ASCII alone


class CsvParser(LineParser):
    def __init__(
        self,
        plan: RecordPlan,
        places: Sequence[int],
        columns: int,
        delimiter: str,
        quote: str = '"',
        multiline: bool = False,
        max_line: int = MAX_RECORD,
    ) -> None:
        super().__init__(max_line)
        self.assembler, self.places, self.columns = Assembler(plan), list(places), columns
        self.delimiter, self.quote = delimiter, quote
        assert not multiline, "the twin reads one line at a time"

    def sample(self, line: bytes, out: Columns) -> None:
        assert isinstance(out, RecordColumns)
        check_bytes(line, self.delimiter.encode())
        marks: dict[str, Any] = {"quotechar": self.quote} if self.quote else {"quoting": csv.QUOTE_NONE}
        text = line.decode().replace("\r", "\uffff")  # it ends a line for the csv module, and for nobody else here
        try:
            cells = next(csv.reader(io.StringIO(text, newline=""), delimiter=self.delimiter, strict=True, **marks))
        except csv.Error as error:
            reason = Reason.OPEN_QUOTE if "end of data" in str(error) else Reason.QUOTE
            raise Refused(reason, 0, 0, len(line)) from None
        if len(cells) != self.columns:
            raise Refused(Reason.FIELD_COUNT, min(len(cells), self.columns) + 1, 0, len(line), len(cells))
        texts = [cells[place].replace("\uffff", "\r").encode() for place in self.places]
        record: list[Field] = [([(text, ValueKind.TEXT)] if text else [], False) for text in texts]
        try:
            self.assembler.assemble(record, out)
        except Refused as refused:
            refused.column = self.places[refused.column - 1] + 1
            raise


class JsonLinesParser(LineParser):
    def __init__(self, plan: RecordPlan, max_line: int = MAX_RECORD) -> None:
        super().__init__(max_line)
        self.assembler = Assembler(plan)

    def sample(self, line: bytes, out: Columns) -> None:
        assert isinstance(out, RecordColumns)
        check_bytes(line, b",")
        fields = self.assembler.plan.fields
        try:
            pairs = json.loads(
                line, object_pairs_hook=_Pairs, parse_int=_Number, parse_float=_Number, parse_constant=_no
            )
        except (ValueError, RecursionError):
            raise Refused(Reason.JSON, 0, 0, len(line)) from None
        if not isinstance(pairs, _Pairs):
            raise Refused(Reason.JSON, 0, 0, len(line))
        names = [name for name, _ in pairs]
        for index, name in enumerate(fields):
            if names.count(name) > 1:
                raise Refused(Reason.KEY_TWICE, index + 1, 0, len(line))
        found = dict(pairs)
        record = [self.field(found.get(name), index) for index, name in enumerate(fields)]
        self.assembler.assemble(record, out)

    def field(self, value: Any, index: int) -> Field:
        if isinstance(value, list) and not isinstance(value, _Pairs):
            values = [self.value(one, index) for one in value if one is not None]
            return values, True
        return ([] if value is None else [self.value(value, index)]), False

    def value(self, value: Any, index: int) -> Value:
        if isinstance(value, bool):
            return (b"true" if value else b"false"), ValueKind.TRUTH
        if isinstance(value, _Number):
            text = value.encode()
            whole = INTEGER.fullmatch(text) is not None
            return (b"0" if text == b"-0" else text), ValueKind.WHOLE if whole else ValueKind.FRACTION
        if isinstance(value, str):
            try:
                return value.encode(), ValueKind.TEXT
            except UnicodeEncodeError:
                raise Refused(Reason.UTF8, 0, 0, 0) from None
        raise Refused(Reason.VALUE_KIND, index + 1, 0, 0)


class SvmParser(LineParser):
    def __init__(self, plan: RecordPlan, places: SvmPlaces, max_line: int = MAX_RECORD) -> None:
        super().__init__(max_line)
        self.assembler, self.places = Assembler(plan), places

    def sample(self, line: bytes, out: Columns) -> None:
        assert isinstance(out, RecordColumns)
        check_bytes(line, b" ")
        record: list[Field] = [([], False) for _ in self.assembler.plan.fields]
        words = re.split(rb"[ \t]+", line.partition(b"#")[0].strip(b" \t"))
        if words == [b""]:
            raise Refused(Reason.EMPTY_LINE, 1, 0, 0)
        if b":" not in words[0]:
            label = words.pop(0)
            if self.places.label >= 0:
                text = b"0" if label.startswith(b"-") and parse_decimal(label) == -1 else label.removeprefix(b"+")
                record[self.places.label] = [(text, ValueKind.TEXT)], False
        for word in words:
            self.entry(word, record)
        self.assembler.assemble(record, out)

    def entry(self, word: bytes, record: list[Field]) -> None:
        places = self.places
        number, colon, rest = word.partition(b":")
        if not places.triples and number == b"qid" and colon:
            self.whole(rest)
            if places.group >= 0:
                record[places.group][0].append((self.plain(rest), ValueKind.WHOLE))
            return
        feature, second, text = rest.partition(b":") if places.triples else (number, colon, rest)
        if not colon or not second:
            raise Refused(Reason.PAIR, 0, 0, 0)
        index = self.whole(number)
        if places.triples:
            self.whole(feature)
        value = parse_decimal(text)
        if value is None:
            raise Refused(Reason.NUMBER, 0, 0, 0)
        taken = places.numbers.get(index, -1)
        if taken >= 0:
            if record[taken][0]:
                raise Refused(Reason.KEY_TWICE, taken + 1, 0, 0)
            record[taken][0].append((text, ValueKind.WHOLE if INTEGER.fullmatch(text) else ValueKind.FRACTION))
        to = places.slots.get(index, -1) if places.triples else places.features if taken < 0 else -1
        if to < 0 or value == 0:
            return
        if value != 1 and taken < 0:
            raise Refused(Reason.NOT_ONE, to + 1, 0, 0)
        record[to] = [*record[to][0], (self.plain(feature), ValueKind.WHOLE)], True

    def whole(self, text: bytes) -> int:
        if not INTEGER.fullmatch(text):
            raise Refused(Reason.KEY, 0, 0, 0)
        if text.startswith(b"-"):
            raise Refused(Reason.NEGATIVE_KEY, 0, 0, 0)
        if int(text) >= 2**64:
            raise Refused(Reason.KEY_OVERFLOW, 0, 0, 0)
        return int(text)

    def plain(self, text: bytes) -> bytes:
        return b"%d" % int(text)


class _Pairs(list[tuple[str, Any]]):
    """An object, with names that stand twice."""


class _Number(str):
    """A number as it stands in the text."""


def _no(text: str) -> Any:
    raise ValueError(text)
