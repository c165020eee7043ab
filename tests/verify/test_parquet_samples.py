"""Samples of Parquet files as requests carry them: whatever its types, JSON can hold it and gives the same keys."""

from __future__ import annotations

import json
from datetime import date
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparsefleet.core.errors import ConfigError
from sparsefleet.core.schema import DenseFeature, Schema, Slot
from sparsefleet.serving.samples import SampleParser
from sparsefleet.verify.samples import read_samples


@pytest.mark.parametrize(
    ("kind", "time_format"),
    [
        (pa.timestamp("ms"), "auto"),
        (pa.timestamp("us", tz="Europe/Berlin"), "seconds"),
        (pa.timestamp("ms"), "milliseconds"),
        (pa.date32(), "auto"),
    ],
)
def test_types_that_json_has_not(tmp_path: Path, kind: pa.DataType, time_format: str) -> None:
    columns = {
        "click": [0, 1, 1],
        "price": pa.array([Decimal("1.25"), None, Decimal("-70000.5")], pa.decimal128(12, 3)),
        "user": pa.array([b"a", "é".encode(), None], pa.binary()),
        "tags": pa.array([["x", None], None, ["y", "x"]]),
    }
    when = [date(2024, 2, 29), date(1999, 12, 31), date(2023, 1, 1)]
    columns["at"] = pa.array(when) if pa.types.is_date(kind) else pa.array(when).cast(pa.timestamp("ms")).cast(kind)
    pq.write_table(pa.table(columns), tmp_path / "f.parquet")
    slots = (
        Slot("user"),
        Slot("tags"),
        Slot("hour", column="at", derive="hour"),
        Slot("w", column="at", derive="weekday"),
    )
    schema = Schema((DenseFeature("price", diff=4.0, clip=(-5, 5)),), slots, "click", time_format=time_format)
    samples = read_samples(str(tmp_path / "f.parquet"), schema, 10)
    made = SampleParser(schema).body(json.dumps({"rows": samples.raw}).encode())
    np.testing.assert_array_equal(made.keys, samples.batch.keys)
    np.testing.assert_array_equal(made.offsets, samples.batch.offsets)
    np.testing.assert_array_equal(made.dense, samples.batch.dense)


@pytest.mark.parametrize("transformed", [False, True])
@pytest.mark.parametrize("lists", [False, True])
def test_decimals(tmp_path: Path, transformed: bool, lists: bool) -> None:
    """Without a fraction they are whole numbers in a slot, with all their digits, and numbers else."""
    ids = pa.array([Decimal("12"), None, Decimal("90071992547409931234567"), Decimal(-3)], pa.decimal128(30, 0))
    if lists:
        ids = pa.array([[one, None] for one in ids.to_pylist()], pa.list_(ids.type))
    price = pa.array([Decimal("0.1"), Decimal("12345678901234567.89"), None, Decimal("2.50")], pa.decimal128(30, 2))
    whole = pa.array([Decimal("7"), Decimal("9007199254740993"), None, Decimal(0)], pa.decimal256(40, 0))
    table = pa.table({"click": [0, 1, 1, 0], "id": ids, "price": price, "whole": whole})
    pq.write_table(table, tmp_path / "f.parquet")
    slots = [Slot("id"), *([Slot("range", column="price", buckets=(0.1, 2.5, 1e9))] if transformed else [])]
    schema = Schema((DenseFeature("price", diff=4.0), DenseFeature("whole")), tuple(slots), "click")
    samples = read_samples(str(tmp_path / "f.parquet"), schema, 10)
    assert [type(one["whole"]) for one in samples.raw] == [int, int, type(None), int]
    made = SampleParser(schema).body(json.dumps({"rows": samples.raw}).encode())
    np.testing.assert_array_equal(made.keys, samples.batch.keys)
    np.testing.assert_array_equal(made.offsets, samples.batch.offsets)
    np.testing.assert_array_equal(made.dense, samples.batch.dense)


def test_bytes_that_no_request_can_hold(tmp_path: Path) -> None:
    pq.write_table(pa.table({"click": [0, 1], "user": [b"\xff", b"a"]}), tmp_path / "f.parquet")
    with pytest.raises(ConfigError, match=r"column 'user' holds b'.xff', which is not UTF-8"):
        read_samples(str(tmp_path / "f.parquet"), Schema((), (Slot("user"),), "click"), 10)
