"""CSV, JSON lines and rows of tables: native and twin give the same, and CSV is what Python's csv module reads."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sparsefleet.core.schema import DenseFeature, Label, Schema, Slot
from sparsefleet.core.xxh64 import xxh64
from sparsefleet.data.formats.record_plan import record_plan
from sparsefleet.kernels import records as native
from sparsefleet.kernels.record_types import RecordColumns, RecordPlan
from sparsefleet.kernels.reference import records as twin
from sparsefleet.kernels.text_types import Block, Parsed, Reason

SCHEMA = Schema(
    dense=(
        DenseFeature("price", 1.0, 2.0, clip=(-5.0, 1000.0), function="log1p"),
        DenseFeature("count", function="ln2", missing=3.0),
        DenseFeature("raw", column="price"),
    ),
    slots=(
        Slot("user"),
        Slot("item", lower=True, length=3, missing="none"),
        Slot("history", split="|", first=2),
        Slot("shop", keys=True, split="|"),
        Slot("hour", column="ts", derive="hour"),
        Slot("weekday", column="ts", derive="weekday", missing="x"),
        Slot("range", column="price", buckets=(0.0, 1.5, 10.0)),
        Slot("count_ln2", column="count", derive="ln2"),
        Slot("user_item", cross=("user", "item")),
        Slot("three", cross=("user", "history", "hour")),
    ),
    label="click",
    more_labels=(Label("buy", "click"), Label("like")),
    weight="w",
    group="user",
    time="ts",
    sparse_feature_dim=100003,
    hash_seed=7,
)
PLAN = record_plan(SCHEMA)
CSV_PLAN = record_plan(SCHEMA, text_keys=True)
NAMES = list(PLAN.fields)


def run(parser: Any, plan: RecordPlan, data: bytes, skip: bool = True) -> tuple[RecordColumns, Parsed]:
    out = RecordColumns.for_plan(plan, 100, 4000, numbers=True)
    buffer = np.frombuffer(data, np.uint8).copy()
    done = parser.parse(Block(buffer, 0, len(data), len(data) + 1, final=True, skip=skip), out)
    return out, done


def same(one: RecordColumns, other: RecordColumns) -> None:
    assert one.filled == other.filled
    n, slots = one.filled, len(SCHEMA.slots)
    assert one.counts.tolist() == other.counts.tolist()
    for name in ("labels", "weights", "groups", "times", "lines", "ends"):
        np.testing.assert_array_equal(getattr(one, name)[:n], getattr(other, name)[:n], err_msg=name)
    np.testing.assert_allclose(one.dense[:n], other.dense[:n], rtol=1e-6)
    assert one.numbers is not None
    assert other.numbers is not None
    np.testing.assert_allclose(one.numbers[:n], other.numbers[:n], rtol=1e-12)
    assert one.offsets is not None
    assert other.offsets is not None
    ends = one.offsets[: n * slots + 1]
    np.testing.assert_array_equal(ends, other.offsets[: n * slots + 1])
    np.testing.assert_array_equal(one.keys[: ends[-1]], other.keys[: ends[-1]])


NUMBER = st.one_of(
    st.integers(-(10**9), 10**9), st.floats(-1e6, 1e6), st.sampled_from([0, 1, 2, 3, 1.5, 10, "", None, "x", "1e400"])
)
WORD = st.one_of(st.text("abAB|,\"'é\n\r 0", max_size=6), st.integers(-5, 2**64).map(str))
TIME = st.sampled_from(
    (
        0,
        1700000000,
        -1,
        10**16,
        253402300799,
        253402300800,
        1.5,
        "",
        "12:30",
        "2023-02-29",
        "2024-05-01",
        "2024-02-29T12:30",
        "2024-05-01T01:00+02:00",
        "2024-05-01 12:30:05.25Z",
    )
)
RECORD = st.fixed_dictionaries(
    {
        "price": NUMBER,
        "count": NUMBER,
        "user": WORD,
        "item": WORD,
        "history": WORD,
        "shop": st.one_of(st.integers(0, 2**64 - 1), st.sampled_from(["", "1|2|", "x", "-1", 2**64])),
        "ts": TIME,
        "click": st.sampled_from([0, 1, 1, "1.0", "", "2"]),
        "buy": st.sampled_from([0, 1, "", "x"]),
        "like": st.sampled_from([0, 1, ""]),
        "w": st.sampled_from([1, 0.5, 0, 1, "", -1]),
    }
)


def as_csv(records: list[dict[str, Any]], delimiter: str = ",", end: str = "\n") -> bytes:
    out = io.StringIO(newline="")
    writer = csv.writer(out, delimiter=delimiter, lineterminator=end)
    for record in records:
        writer.writerow(["" if record[name] is None else record[name] for name in NAMES])
    return out.getvalue().encode()


def numbers_plan(function: str | None = None) -> RecordPlan:
    return record_plan(Schema(dense=(DenseFeature("n", function=function),), slots=(Slot("s"),), label="click"))


def read_number(kind: Any, plan: RecordPlan, text: str) -> float | None:
    """None: refused."""
    record = {"n": text, "s": "a", "click": "1"}
    line = ",".join(record[name] for name in plan.fields) + "\n"
    out, _ = run(kind.CsvParser(plan, range(3), 3, ","), plan, line.encode())
    return float(out.dense[0, 0]) if out.filled else None


@settings(max_examples=400, deadline=None)
@given(st.one_of(st.text("0123456789.", min_size=1, max_size=17), st.text("0123456789.-+e é", min_size=1, max_size=9)))
@example("12345678")
@example("123456789")
@example("1234567.")
@example(".1234567")
@example("123.4567")
@example("-1.25")
@example("-12345678")
@example("1.2.3")
@example("-0")
def test_numbers_are_what_python_reads(text: str) -> None:
    """Short ones are read without a loop; all are rounded once, to the float nearest to what is written."""
    plan = numbers_plan()
    found = read_number(native, plan, text)
    assert found == read_number(twin, plan, text)
    if found is not None:
        assert found == np.float32(float(text))


LOGARITHMS = [
    "0",
    "1",
    "7",
    "1023",
    "1024",
    "1022.5",
    "-3",
    "-1023",
    "0.5",
    "100000",
    "1.01",
    "0.99",
    "1e300",
    "-46.21",
]


@pytest.mark.parametrize("text", LOGARITHMS)
def test_logarithms_of_whole_numbers_and_others(text: str) -> None:
    number = float(text)
    found = read_number(native, numbers_plan("log1p"), text)
    assert found == np.float32(np.copysign(np.log1p(abs(number)), number))


@pytest.mark.parametrize("borders", [1, 8, 9, 40])
def test_buckets_of_few_and_of_many_borders(borders: int) -> None:
    slot = Slot("s", column="n", buckets=tuple(float(2 * border) for border in range(borders)))
    plan = record_plan(Schema(dense=(), slots=(slot,), label="click"))
    lines = "".join(f"{value},1\n" if plan.fields[0] == "n" else f"1,{value}\n" for value in range(-1, 2 * borders + 2))
    made = [run(kind.CsvParser(plan, range(2), 2, ","), plan, lines.encode())[0] for kind in (native, twin)]
    found, expected = (out.keys[: out.filled] for out in made)
    np.testing.assert_array_equal(found, expected)
    assert len(np.unique(found)) == borders + 1


@settings(max_examples=200, deadline=None)
@given(st.lists(RECORD, min_size=1, max_size=6), st.sampled_from([",", "\t", ";"]), st.sampled_from(["\n", "\r\n"]))
def test_csv_agrees_with_its_twin(records: list[dict[str, Any]], delimiter: str, end: str) -> None:
    for record in records:
        for name in ("user", "item", "history"):
            record[name] = record[name].replace("\n", "")  # the twin reads one line at a time
    data = as_csv(records, delimiter, end)
    made = [
        run(kind.CsvParser(CSV_PLAN, range(len(NAMES)), len(NAMES), delimiter), CSV_PLAN, data)[0]
        for kind in (native, twin)
    ]
    same(*made)


@settings(max_examples=200, deadline=None)
@given(st.lists(RECORD, min_size=1, max_size=6), st.booleans(), st.data())
def test_json_lines_agree_with_their_twin(records: list[dict[str, Any]], escape: bool, data: st.DataObject) -> None:
    more = st.sampled_from(
        [{}, {"other": {"a": [1, {"b": None}]}}, {"user": 5}, {"history": ["a|b", None, 3]}, {"user": 1.5}]
    )
    more = st.one_of(
        more, st.sampled_from([{"click": True}, {"price": True}, {"user": [["x"]]}, {"shop": [1, 2]}, {"ts": []}])
    )
    changed = [{**record, **data.draw(more)} for record in records]
    text = "".join(json.dumps(record, ensure_ascii=escape) + "\n" for record in changed).encode()
    same(*(run(kind.JsonLinesParser(PLAN), PLAN, text)[0] for kind in (native, twin)))


EIGHTS = Schema(
    dense=(),
    slots=(
        *(Slot(f"s{i}"[: 1 + i % 2] + "x" * (i // 2), lower=i % 3 == 0) for i in range(18)),
        Slot("crossed", cross=("s", "s1")),
    ),
    sparse_feature_dim=0,
    hash_seed=7,
    label="click",
)
"""Prefixes of one to ten characters, two or three of each length: values of eight bytes are hashed together."""
EIGHT = st.one_of(st.text("abAB0é", min_size=7, max_size=9), st.text("abAB0", min_size=8, max_size=8), st.just(""))


@settings(max_examples=100, deadline=None)
@given(st.data())
@pytest.mark.parametrize("crossed", [False, True])
def test_values_of_eight_bytes_are_hashed_as_others_are(crossed: bool, data: st.DataObject) -> None:
    schema = EIGHTS if crossed else replace(EIGHTS, slots=EIGHTS.slots[:-1])
    plan = record_plan(schema)
    columns = len(plan.fields)
    usual = data.draw(st.booleans())  # all of them
    value = st.text("abAB0", min_size=8, max_size=8) if usual else EIGHT
    records = [{name: data.draw(value) for name in plan.fields} | {"click": "1"} for _ in range(2)]
    text = "".join(",".join(record[name] for name in plan.fields) + "\n" for record in records).encode()
    one, other = (run(kind.CsvParser(plan, range(columns), columns, ","), plan, text)[0] for kind in (native, twin))
    assert one.filled == other.filled == 2
    assert one.offsets is not None
    assert other.offsets is not None
    ends = one.offsets[: 2 * len(schema.slots) + 1]
    np.testing.assert_array_equal(ends, other.offsets[: len(ends)])
    np.testing.assert_array_equal(one.keys[: ends[-1]], other.keys[: ends[-1]])


LINES = [
    '{"user": "a", "user": "b"}',
    "[1]",
    "{",
    '{"a" 1}',
    '{"user": "\\ud800"}',
    '{"user": "\\uD83D\\uDE00", "click": 0, "w": 1, "ts": 0}',
    '{"user": -0, "click": 1, "buy": false, "w": 1, "ts": 0}',
    '{"user": 01}',
    '{"user": "tab\there"}',
    '{"user": {"a": 1}, "click": 0}',
    '  {"user" : "x" , "click":0,"w":2,"ts":5 }  ',
    '{"click": 0, "w": 1, "ts": 1} x',
    '{"x": nul}',
    '{"x": [1, 2}',
    "{}",
]


@pytest.mark.parametrize("line", LINES)
def test_odd_lines_of_json(line: str) -> None:
    same(*(run(kind.JsonLinesParser(PLAN), PLAN, line.encode() + b"\n")[0] for kind in (native, twin)))


# -- CSV against Python's csv module -----------------------------------------------------------------------------------

CELL = st.text(st.sampled_from("ab,\"'\n\r\t; é😀"), max_size=8)


def wide_plan(columns: int) -> RecordPlan:
    return record_plan(
        Schema((), tuple(Slot(f"c{i}", "") for i in range(columns)), sparse_feature_dim=0), labelled=False, there=()
    )


@settings(max_examples=300, deadline=None)
@given(
    st.integers(1, 5).flatmap(lambda n: st.lists(st.lists(CELL, min_size=n, max_size=n), min_size=1, max_size=5)),
    st.sampled_from([",", "\t", ";", "|"]),
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    st.integers(1, 60),
)
def test_csv_is_what_pythons_csv_module_reads(
    rows: list[list[str]], delimiter: str, end: str, quoting: Any, first: int
) -> None:
    if quoting == csv.QUOTE_MINIMAL and end == "\n":
        rows = [[cell.replace("\r", "") for cell in row] for row in rows]  # Python's writer forgets to quote it
    out = io.StringIO(newline="")
    csv.writer(out, delimiter=delimiter, lineterminator=end, quoting=quoting).writerows(rows)
    data = out.getvalue().encode()
    wanted = list(csv.reader(io.StringIO(out.getvalue(), newline=""), delimiter=delimiter, strict=True))
    assert wanted == rows
    plan = wide_plan(len(rows[0]))
    parser = native.CsvParser(plan, range(len(rows[0])), len(rows[0]), delimiter, multiline=True)
    # In two blocks, cut anywhere: the second begins where the first one stopped.
    made = RecordColumns.for_plan(plan, 100, 4000)
    buffer, at = np.frombuffer(data, np.uint8).copy(), 0
    for size, final in ((min(first, len(data)), False), (len(data), True)):
        done = parser.parse(Block(buffer[:size], at, size, len(data) + 1, final, skip=True), made)
        at = done.consumed
    bad = [row for row in rows if row == [""]]  # written as an empty line, or as ""
    assert made.filled + int(made.counts.sum()) == len(rows)
    assert int(made.counts.sum()) <= len(bad)
    cells = [cell for row in rows if not (int(made.counts.sum()) and row == [""]) for cell in row]
    keys = [xxh64(cell.encode(), 0) for cell in cells if cell]
    assert made.offsets is not None
    assert made.keys[: made.offsets[made.filled * len(rows[0])]].tolist() == keys


def test_ten_thousand_columns() -> None:
    plan = wide_plan(10_000)
    line = ",".join(f"v{i}" for i in range(10_000)).encode() + b"\n"
    parser = native.CsvParser(plan, range(10_000), 10_000, ",")
    out = RecordColumns.for_plan(plan, 4, 50_000)
    buffer = np.frombuffer(line * 3, np.uint8).copy()
    parser.parse(Block(buffer, 0, len(buffer), len(buffer), True), out)
    assert out.filled == 3
    assert out.keys[9_999] == xxh64(b"v9999", 0)


ROWS = [
    (b"a,b\n", Reason.FIELD_COUNT, 3),
    (b"a,b,c,d\n", Reason.FIELD_COUNT, 4),
    (b'a,"b"x,c\n', Reason.QUOTE, 2),
    (b'a,"b,c\n', Reason.OPEN_QUOTE, 2),
    (b"\n", Reason.EMPTY_LINE, 1),
    (b"a,\xff,c\n", Reason.UTF8, 2),
    (b"a,b,\x00\n", Reason.NUL, 3),
]


@pytest.mark.parametrize(("line", "reason", "column"), ROWS, ids=[str(line) for line, _, _ in ROWS])
def test_lines_that_are_refused(line: bytes, reason: Reason, column: int) -> None:
    plan = wide_plan(3)
    _, done = run(native.CsvParser(plan, range(3), 3, ","), plan, b"a,b,c\n" + line, skip=False)
    assert (Reason(done.reason), done.column, done.line_begin) == (reason, column, 6)
    out, done = run(native.CsvParser(plan, range(3), 3, ","), plan, line + b"a,b,c\n")
    assert out.filled == 1
    assert out.counts[reason] == 1


def test_a_quote_that_nobody_closes_costs_one_line() -> None:
    plan = wide_plan(2)
    parser = native.CsvParser(plan, range(2), 2, ",", multiline=True, max_line=100)
    out, _ = run(parser, plan, b'a,"b\n' + b"c,d\n" * 50)
    assert out.filled == 50
    assert out.counts[Reason.OPEN_QUOTE] == 1
