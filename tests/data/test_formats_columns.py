"""Parquet files: the same keys as text gives, streaming, and what bad input gets."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparsefleet.core.batch import Batch, Mark
from sparsefleet.core.errors import BadRowError, DataError
from sparsefleet.core.schema import DenseFeature, Schema, Slot
from sparsefleet.data.formats.base import BadSamples, Unit
from sparsefleet.data.formats.criteo import CriteoFormat
from sparsefleet.data.formats.parquet import ParquetFormat
from sparsefleet.data.python_samples import batch_of_samples
from sparsefleet.kernels.text import feature_key

SCHEMA = Schema(dense=(DenseFeature("x", 1.0, 2.0),), slots=(Slot("a"), Slot("b")), sparse_feature_dim=1000)
KEYS = replace(SCHEMA, slots=(Slot("a", keys=True), Slot("b", keys=True)))
VERSION_1 = replace(SCHEMA, version=1)


def key(slot: str, value: bytes) -> int:
    return feature_key(value, slot.encode() + b"\x1f", 0, 1000)


def parquet(path: Path, columns: dict[str, object], **options: object) -> str:
    pq.write_table(pa.table(columns), path, **options)
    return str(path)


def joined(form: ParquetFormat, unit: Unit, policy: str = "error", resume: Mark | None = None) -> Batch:
    return Batch.concat([chunk.batch for chunk in form.read(unit, BadSamples(policy), resume)])


def same(a: Batch, b: Batch) -> None:
    np.testing.assert_array_equal(a.labels, b.labels)
    np.testing.assert_array_equal(a.dense, b.dense)
    np.testing.assert_array_equal(a.keys, b.keys)
    np.testing.assert_array_equal(a.offsets, b.offsets)


def test_all_formats_give_the_same_keys(tmp_path: Path) -> None:
    values = [("é", "q"), ("", "68fd1e64"), ("x" * 50, "b")]
    text = tmp_path / "part-0"
    text.write_text("".join(f"{i % 2}\t{i}\t{a}\t{b}\n" for i, (a, b) in enumerate(values)))
    columns = {
        "label": [i % 2 for i in range(3)],
        "x": [0, 1, 2],
        "a": [a for a, _ in values],
        "b": [b for _, b in values],
    }
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    (chunk,) = CriteoFormat(SCHEMA).read(Unit(str(text)), BadSamples())
    expected = chunk.batch
    assert expected.slot("a")[0][0] == key("a", "é".encode())
    same(joined(ParquetFormat(SCHEMA), Unit(parquet(tmp_path / "p", columns))), expected)
    same(batch_of_samples(rows, SCHEMA), expected)


@pytest.mark.parametrize(
    "kind",
    [
        pa.string(),
        pa.large_string(),
        pa.binary(),
        pa.dictionary(pa.int32(), pa.string()),
    ],
    ids=str,
)
def test_parquet_text_columns(kind: pa.DataType, tmp_path: Path) -> None:
    a = pa.array(["u", None, "w", "u"]).cast(kind) if not pa.types.is_dictionary(kind) else None
    if a is None:
        a = pa.array(["u", None, "w", "u"]).dictionary_encode()
    b = pa.array([["u"], [], None, ["v", None, "w"]], pa.list_(pa.string()))
    file = parquet(tmp_path / "p", {"label": [0.0, 1.0, 0.0, 1.0], "x": [3.0, None, 1.0, 5.0], "a": a, "b": b})
    batch = joined(ParquetFormat(SCHEMA), Unit(file))
    assert batch.labels.tolist() == [0, 1, 0, 1]
    assert batch.dense[:, 0].tolist() == [1.0, 0.0, 0.0, 2.0]
    keys, offsets = batch.slot("a")
    assert offsets.tolist() == [0, 1, 1, 2, 3]
    assert keys.tolist() == [key("a", b"u"), key("a", b"w"), key("a", b"u")]
    keys, offsets = batch.slot("b")
    assert offsets.tolist() == [0, 1, 1, 1, 3]
    assert keys.tolist() == [key("b", b"u"), key("b", b"v"), key("b", b"w")]


def test_parquet_whole_numbers_are_hashed_as_text(tmp_path: Path) -> None:
    columns = {"label": [1, 0], "x": [1.0, 2.0], "a": pa.array([7, -7], pa.int64()), "b": [["1", "22"], ["3"]]}
    numbers = joined(ParquetFormat(SCHEMA), Unit(parquet(tmp_path / "n", columns)))
    texts = {**columns, "a": ["7", "-7"]}
    same(numbers, joined(ParquetFormat(SCHEMA), Unit(parquet(tmp_path / "t", texts))))
    integers = {**columns, "b": pa.array([[1, 22], [3]], pa.list_(pa.uint8()))}
    same(numbers, joined(ParquetFormat(SCHEMA), Unit(parquet(tmp_path / "i", integers))))


@pytest.mark.parametrize("schema", [KEYS, VERSION_1], ids=["keys", "version 1"])
def test_parquet_whole_numbers_are_keys_where_the_schema_says_so(tmp_path: Path, schema: Schema) -> None:
    columns = {
        "label": [True, False],
        "x": pa.array([1, None], pa.int32()),
        "a": pa.array([7, 1007], pa.int64()),
        "b": pa.array([[2**64 - 1], [1, 2]], pa.list_(pa.uint64())),
    }
    file = parquet(tmp_path / "p", columns)
    batch = joined(ParquetFormat(schema), Unit(file))
    assert batch.labels.tolist() == [1, 0]
    assert batch.slot("a")[0].tolist() == [7, 7]
    assert batch.slot("b")[0].tolist() == [(2**64 - 1) % 1000, 1, 2]
    batch = joined(ParquetFormat(schema.folded(0)), Unit(file))
    assert batch.slot("b")[0].tolist() == [2**64 - 1, 1, 2]


@pytest.fixture
def many(tmp_path: Path) -> str:
    rows = 1000
    columns = {
        "b": [f"b{i % 7}" for i in range(rows)],
        "extra": ["not read"] * rows,
        "label": [i % 2 for i in range(rows)],
        "x": list(range(rows)),
        "a": list(range(rows)),
    }
    return parquet(tmp_path / "many.parquet", columns, row_group_size=100)


def test_parquet_is_cut_between_row_groups(many: str) -> None:
    form = ParquetFormat(SCHEMA)
    assert form.plan([many], 1) == [Unit(many)]
    for pieces in (2, 3, 10, 50):
        units = form.plan([many], pieces)
        assert len(units) == min(pieces, 10)
        parts = [joined(form, unit) for unit in units]
        same(Batch.concat(parts), joined(form, Unit(many)))


def test_parquet_resumes_after_any_row(many: str) -> None:
    form = ParquetFormat(SCHEMA)
    unit = form.plan([many], 3)[1]
    chunks = list(form.read(unit, BadSamples()))
    whole = Batch.concat([c.batch for c in chunks])
    assert np.concatenate([c.lines for c in chunks]).tolist() == list(range(1, len(whole) + 1))
    for consumed in (1, 99, 100, 101, 250):
        rest = list(form.read(unit, BadSamples(), Mark(0, consumed)))
        same(Batch.concat([c.batch for c in rest]), whole.samples(consumed, len(whole)))
        assert rest[0].lines[0] == consumed + 1
    assert list(form.read(unit, BadSamples(), Mark(0, len(whole)))) == []
    with pytest.raises(DataError, match="cannot go on after sample 5000: there are only 300"):
        list(form.read(unit, BadSamples(), Mark(0, 5000)))


BAD_PARQUET = [
    ("label", [0, 2, 1], "'label': label is not 0 or 1: '2", "label is not 0 or 1"),
    ("label", [0, None, 1], "'label': label is missing", "label is missing"),
    ("x", [0.0, float("nan"), 1.0], "'x': not a number: 'nan'", "not a number"),
    ("x", [0.0, 1e60, 1.0], "'x': number too large for float32", "number too large for float32"),
]


@pytest.mark.parametrize(("column", "values", "message", "reason"), BAD_PARQUET)
def test_bad_parquet_rows(column: str, values: list[object], message: str, reason: str, tmp_path: Path) -> None:
    columns: dict[str, object] = {
        "label": [0, 1, 1],
        "x": [0.0, 1.0, 2.0],
        "a": [1, 2, 3],
        "b": ["u", "v", "w"],
    }
    file = parquet(tmp_path / "p", columns | {column: values})
    stream = ParquetFormat(SCHEMA).read(Unit(file), BadSamples())
    assert len(next(stream).batch) == 1
    with pytest.raises(BadRowError, match=f"line 2: column {message}") as caught:
        next(stream)
    assert caught.value.reason == reason
    assert file in str(caught.value)
    bad_samples = BadSamples("skip")
    (chunk,) = ParquetFormat(SCHEMA).read(Unit(file), bad_samples)
    assert chunk.lines.tolist() == [1, 3]
    assert chunk.batch.slot("b")[0].tolist() == [key("b", b"u"), key("b", b"w")]
    assert bad_samples.counts == {reason: 1}


def test_parquet_columns_that_do_not_fit(tmp_path: Path) -> None:
    file = parquet(tmp_path / "p", {"label": [0], "x": [[1]], "a": [1.5], "b": ["u"]})
    with pytest.raises(
        DataError, match=r"column 'x' holds list<.*> where numbers, or decimal text, are needed; column 'a'.*int64"
    ):
        joined(ParquetFormat(SCHEMA), Unit(file))
    file = parquet(tmp_path / "q", {"x": [1], "a": [1], "b": ["u"]})
    with pytest.raises(DataError, match="no column 'label'; the file has x, a, b; labelled=False"):
        joined(ParquetFormat(SCHEMA), Unit(file))
    assert np.isnan(joined(ParquetFormat(SCHEMA, labelled=False), Unit(file)).labels[0])


def test_parquet_files_that_are_damaged(tmp_path: Path, many: str) -> None:
    form = ParquetFormat(SCHEMA)
    raw = Path(many).read_bytes()
    for name, content in (("cut", raw[:-100]), ("text", b"hello\n" * 10), ("short", b"PAR1")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=f"{name}: not a Parquet file, or a damaged one"):
            list(form.read(Unit(str(tmp_path / name)), BadSamples()))
    middle = tmp_path / "middle"
    middle.write_bytes(raw[:4] + bytes(3000) + raw[3004:])
    with pytest.raises(DataError, match="middle: damaged Parquet file"):
        list(form.read(Unit(str(middle)), BadSamples()))
    empty = parquet(tmp_path / "empty", {"label": pa.array([], pa.int8())})
    with pytest.raises(DataError, match="the file is empty"):
        list(form.read(Unit(empty), BadSamples()))
    with pytest.raises(DataError, match="no such file"):
        form.plan([str(tmp_path / "none")], 1)


OTHER_TYPES = {
    "a": pa.array([Decimal(5), Decimal(-7), None, Decimal(10**30)], pa.decimal128(38, 0)),
    "b": pa.array(["u", None, "", "w"], pa.string_view()),
    "x": pa.array(["1.5", "+2e1", "", None]),
    "label": pa.array(["1", "0", "1.0", "0"]).dictionary_encode(),
}
"""As databases and data frames write whole numbers, text, numbers and labels."""


@pytest.mark.parametrize("weighed", [False, True], ids=["plain", "transforms"])
def test_types_of_other_programs_mean_what_text_means(weighed: bool, tmp_path: Path) -> None:
    schema = replace(SCHEMA, weight="w") if weighed else SCHEMA
    rows = [
        {"label": 1, "x": 1.5, "a": "5", "b": "u", "w": 2.0},
        {"label": 0, "x": 20, "a": -7, "b": None, "w": 2.0},
        {"label": 1, "x": None, "a": None, "b": "", "w": 2.0},
        {"label": 0, "x": None, "a": 10**30, "b": "w", "w": 2.0},
    ]
    if not weighed:
        rows = [{name: value for name, value in row.items() if name != "w"} for row in rows]
    columns = {**OTHER_TYPES, "w": pa.array([2.0] * 4)}
    same(
        joined(ParquetFormat(schema), Unit(parquet(tmp_path / "p", columns))),
        batch_of_samples(rows, schema),
    )


@pytest.mark.parametrize("weighed", [False, True], ids=["plain", "transforms"])
def test_text_that_is_no_number_and_decimals_that_are_no_keys(weighed: bool, tmp_path: Path) -> None:
    schema = replace(KEYS, weight="w") if weighed else KEYS
    good = {"a": pa.array([Decimal(5), Decimal(2**64 - 1)], pa.decimal128(38, 0)), "b": [1, 2], "w": [1.0, 1.0]}
    numbers = {"label": ["1", "0"], "x": ["1", "2"]}
    batch = joined(ParquetFormat(schema), Unit(parquet(tmp_path / "p", {**good, **numbers})))
    assert batch.slot("a")[0].tolist() == [5, (2**64 - 1) % 1000]
    for name, column, message in (
        ("x", ["1", "two"], "column 'x': not a number: 'two'"),
        ("label", ["1", "yes"], "column 'label': label is not 0 or 1"),
        ("a", pa.array([5, -1]).cast(pa.decimal128(38, 0)), "column 'a': negative feature key"),
        ("a", pa.array([Decimal(5), Decimal(2**64)], pa.decimal128(38, 0)), "column 'a': .*key"),
    ):
        file = parquet(tmp_path / "bad", {**good, **numbers, name: column})
        with pytest.raises(BadRowError, match=message) as caught:
            joined(ParquetFormat(schema), Unit(file))
        assert caught.value.line == 2


@pytest.mark.parametrize("weighed", [False, True], ids=["plain", "transforms"])
def test_two_columns_of_one_name(weighed: bool, tmp_path: Path) -> None:
    schema = replace(SCHEMA, weight="w") if weighed else SCHEMA
    names = ["label", "x", "a", "b", "w", "a"]
    table = pa.Table.from_arrays([pa.array([1])] * len(names), names=names)
    pq.write_table(table, tmp_path / "p")
    with pytest.raises(DataError, match="p: there are two columns 'a'; rename one of them"):
        joined(ParquetFormat(schema), Unit(str(tmp_path / "p")))


def test_a_timestamp_is_no_category(tmp_path: Path) -> None:
    """Seconds here, text in CSV: the same table would train differently."""
    times = pa.array([1700000000, 1700003600], pa.timestamp("s"))
    file = parquet(tmp_path / "p", {"label": [0, 1], "x": [1.0, 2.0], "a": times, "b": ["u", "v"], "w": [1.0, 1.0]})
    with pytest.raises(DataError, match=r"p: column 'a' holds timestamp\[.*derive = \"hour\""):
        joined(ParquetFormat(replace(SCHEMA, weight="w")), Unit(file))
    hours = replace(SCHEMA, slots=(Slot("hour", column="a", derive="hour"), Slot("b")))
    assert joined(ParquetFormat(hours), Unit(file)).slot("hour")[0].tolist() == [key("hour", b"22"), key("hour", b"23")]
