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


def test_bytes_that_no_request_can_hold(tmp_path: Path) -> None:
    pq.write_table(pa.table({"click": [0, 1], "user": [b"\xff", b"a"]}), tmp_path / "f.parquet")
    with pytest.raises(ConfigError, match=r"column 'user' holds b'.xff', which is not UTF-8"):
        read_samples(str(tmp_path / "f.parquet"), Schema((), (Slot("user"),), "click"), 10)
