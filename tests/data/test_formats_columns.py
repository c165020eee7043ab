"""Parquet files and Python rows: the same keys as text gives, streaming, and what bad input gets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparsefleet.core.batch import Batch, Mark
from sparsefleet.core.errors import BadRowError, ConfigError, DataError
from sparsefleet.core.schema import DenseFeature, Schema, Slot
from sparsefleet.data.formats.base import BadRows, Unit
from sparsefleet.data.formats.criteo import CriteoFormat
from sparsefleet.data.formats.parquet import ParquetFormat
from sparsefleet.data.formats.rows import RowsFormat
from sparsefleet.kernels.text import feature_key

SCHEMA = Schema(dense=(DenseFeature("x", 1.0, 2.0),), slots=(Slot("a"), Slot("b")), sparse_feature_dim=1000)


def key(slot: str, value: bytes) -> int:
    return feature_key(value, slot.encode() + b"\x1f", 0, 1000)


def parquet(path: Path, columns: dict[str, object], **options: object) -> str:
    pq.write_table(pa.table(columns), path, **options)
    return str(path)


def joined(form: ParquetFormat | RowsFormat, unit: Unit, policy: str = "error", resume: Mark | None = None) -> Batch:
    return Batch.concat([chunk.batch for chunk in form.read(unit, BadRows(policy), resume)])


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
    (chunk,) = CriteoFormat(SCHEMA).read(Unit(str(text)), BadRows())
    expected = chunk.batch
    assert expected.slot("a")[0][0] == key("a", "é".encode())
    same(joined(ParquetFormat(SCHEMA), Unit(parquet(tmp_path / "p", columns))), expected)
    same(joined(RowsFormat(SCHEMA, rows), Unit("<rows>")), expected)


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


def test_parquet_whole_numbers_are_keys(tmp_path: Path) -> None:
    columns = {
        "label": [True, False],
        "x": pa.array([1, None], pa.int32()),
        "a": pa.array([7, 1007], pa.int64()),
        "b": pa.array([[2**64 - 1], [1, 2]], pa.list_(pa.uint64())),
    }
    file = parquet(tmp_path / "p", columns)
    batch = joined(ParquetFormat(SCHEMA), Unit(file))
    assert batch.labels.tolist() == [1, 0]
    assert batch.slot("a")[0].tolist() == [7, 7]
    assert batch.slot("b")[0].tolist() == [(2**64 - 1) % 1000, 1, 2]
    batch = joined(ParquetFormat(SCHEMA.folded(0)), Unit(file))
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
    chunks = list(form.read(unit, BadRows()))
    whole = Batch.concat([c.batch for c in chunks])
    assert np.concatenate([c.lines for c in chunks]).tolist() == list(range(1, len(whole) + 1))
    for consumed in (1, 99, 100, 101, 250):
        rest = list(form.read(unit, BadRows(), Mark(0, consumed)))
        same(Batch.concat([c.batch for c in rest]), whole.rows(consumed, len(whole)))
        assert rest[0].lines[0] == consumed + 1
    assert list(form.read(unit, BadRows(), Mark(0, len(whole)))) == []
    with pytest.raises(DataError, match="cannot go on after row 5000: there are only 300"):
        list(form.read(unit, BadRows(), Mark(0, 5000)))


BAD_PARQUET = [
    ("label", [0, 2, 1], "'label': label is not 0 or 1: '2", "label is not 0 or 1"),
    ("label", [0, None, 1], "'label': label is missing", "label is missing"),
    ("x", [0.0, float("nan"), 1.0], "'x': not a number: 'nan'", "not a number"),
    ("x", [0.0, 1e60, 1.0], "'x': number too large for float32", "number too large for float32"),
    ("a", [5, -5, 5], "'a': negative feature key: '-5'", "negative feature key"),
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
    stream = ParquetFormat(SCHEMA).read(Unit(file), BadRows())
    assert len(next(stream).batch) == 1
    with pytest.raises(BadRowError, match=f"line 2: column {message}") as caught:
        next(stream)
    assert caught.value.reason == reason
    assert file in str(caught.value)
    bad_rows = BadRows("skip")
    (chunk,) = ParquetFormat(SCHEMA).read(Unit(file), bad_rows)
    assert chunk.lines.tolist() == [1, 3]
    assert chunk.batch.slot("b")[0].tolist() == [key("b", b"u"), key("b", b"w")]
    assert bad_rows.counts == {reason: 1}


def test_parquet_columns_that_do_not_fit(tmp_path: Path) -> None:
    file = parquet(tmp_path / "p", {"label": [0], "x": ["one"], "a": [1.5], "b": ["u"]})
    with pytest.raises(DataError, match="column 'x' holds string where numbers are needed; column 'a'"):
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
            list(form.read(Unit(str(tmp_path / name)), BadRows()))
    middle = tmp_path / "middle"
    middle.write_bytes(raw[:4] + bytes(3000) + raw[3004:])
    with pytest.raises(DataError, match="middle: damaged Parquet file"):
        list(form.read(Unit(str(middle)), BadRows()))
    empty = parquet(tmp_path / "empty", {"label": pa.array([], pa.int8())})
    with pytest.raises(DataError, match="the file is empty"):
        list(form.read(Unit(empty), BadRows()))
    with pytest.raises(DataError, match="no such file"):
        form.plan([str(tmp_path / "none")], 1)


# ---- Python rows ----


def test_rows_from_python() -> None:
    rows = [
        {"label": 1, "x": 3, "a": ["u", b"v", 5], "b": None},
        {"label": 0.0, "a": np.array([1, 2]), "b": np.int64(1003)},
        {"label": True, "x": np.float32(1), "a": (), "b": "w"},
    ]
    form = RowsFormat(SCHEMA, rows)
    assert form.plan([], 4) == [Unit("<rows>")]
    batch = joined(form, Unit("<rows>"))
    assert batch.labels.tolist() == [1, 0, 1]
    assert batch.dense[:, 0].tolist() == [1, 0, 0]
    assert batch.slot("a")[0].tolist() == [key("a", b"u"), key("a", b"v"), 5, 1, 2]
    assert batch.slot("a")[1].tolist() == [0, 3, 5, 5]
    assert batch.slot("b")[0].tolist() == [3, key("b", b"w")]
    resumed = joined(form, Unit("<rows>"), resume=Mark(0, 1))
    same(resumed, batch.rows(1, 3))


def test_rows_from_batches() -> None:
    whole = joined(RowsFormat(SCHEMA, [{"label": i % 2, "a": i} for i in range(10)]), Unit("<rows>"))
    mixed = [whole.rows(0, 4), {"label": 0, "a": 4}, whole.rows(5, 10)]
    form = RowsFormat(SCHEMA, mixed)
    chunks = list(form.read(Unit("<rows>"), BadRows()))
    same(Batch.concat([c.batch for c in chunks]), whole)
    assert np.concatenate([c.lines for c in chunks]).tolist() == list(range(1, 11))
    for consumed in range(10):
        same(joined(form, Unit("<rows>"), resume=Mark(0, consumed)), whole.rows(consumed, 10))
    other = Batch.from_slots({"z": ([1], [0, 1])})
    with pytest.raises(DataError, match="a batch of slots z and 0 dense values; the schema has a, b and 1"):
        list(RowsFormat(SCHEMA, [other]).read(Unit("<rows>"), BadRows()))


BAD_ROWS = [
    ({"label": 2}, "'label': label is not 0 or 1: 2", "label is not 0 or 1"),
    ({"x": 1}, "'label': label is missing", "label is missing"),
    ({"label": 0, "x": "ten"}, "'x': not a number: \"'ten'\"", "not a number"),
    ({"label": 0, "x": 1e60}, "'x': number too large for float32", "number too large for float32"),
    ({"label": 0, "a": 1.5}, "'a': neither text nor a whole number", "neither text nor a whole number"),
    ({"label": 0, "a": -1}, "'a': negative feature key", "negative feature key"),
    ({"label": 0, "a": 2**64}, "'a': feature key above 64 bits", "feature key above 64 bits"),
    ({"label": 0, "A": 1}, "'A': the schema has no such name", "the schema has no such name"),
    ([1, 2], "a row must be a dict", "a row must be a dict {name: value or list} or a Batch"),
]


@pytest.mark.parametrize(("row", "message", "reason"), BAD_ROWS)
def test_bad_python_rows(row: object, message: str, reason: str) -> None:
    rows = [{"label": 0, "a": 1}, row, {"label": 1, "a": 2}]
    stream = RowsFormat(SCHEMA, rows).read(Unit("<rows>"), BadRows())  # type: ignore[arg-type]
    assert len(next(stream).batch) == 1
    with pytest.raises(BadRowError) as caught:
        next(stream)
    assert message.replace(": 2", ": '2'") in str(caught.value)
    assert "<rows>, line 2" in str(caught.value)
    bad_rows = BadRows("skip")
    (chunk,) = RowsFormat(SCHEMA, rows).read(Unit("<rows>"), bad_rows)  # type: ignore[arg-type]
    assert chunk.lines.tolist() == [1, 3]
    assert bad_rows.counts == {reason: 1}


def test_generators() -> None:
    once = RowsFormat(SCHEMA, ({"label": 0, "a": i} for i in range(3)))
    assert len(joined(once, Unit("<rows>"))) == 3
    with pytest.raises(DataError, match="a generator can be read only once"):
        joined(once, Unit("<rows>"))
    again = RowsFormat(SCHEMA, lambda: ({"label": 0, "a": i} for i in range(3)))
    assert len(joined(again, Unit("<rows>"))) == len(joined(again, Unit("<rows>"))) == 3
    with pytest.raises(ConfigError, match="rows must be an iterable"):
        RowsFormat(SCHEMA, 5)  # type: ignore[arg-type]
