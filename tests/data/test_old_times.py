"""Dates and hours that are taken as seconds since 1970."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import sparsefleet as sf

SCHEMA = sf.Schema((), (sf.Slot("user"), sf.Slot("hour", column="at", derive="hour")), "click", time="at")


def write(folder: Path, kind: str, times: list[Any]) -> str:
    rows = [{"click": n % 2, "user": "u", "at": time} for n, time in enumerate(times)]
    file = folder / f"f.{kind}"
    if kind == "csv":
        file.write_text("\n".join(["click,user,at", *(f"{n % 2},u,{time}" for n, time in enumerate(times)), ""]))
    elif kind == "jsonl":
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        pq.write_table(pa.Table.from_pylist(rows), file)
    return str(file)


def read(files: str | list[str], schema: sf.Schema = SCHEMA) -> int:
    with sf.open_reader(files, schema).epoch() as epoch:
        return sum(map(len, epoch.streams[0]))


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_they_are_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str) -> None:
    caplog.set_level(logging.WARNING)
    file = write(tmp_path, kind, [20141021, 20141022])
    (tmp_path / "more").mkdir()
    more = write(tmp_path / "more", kind, [14102113])
    assert read([file, more]) == 3
    (told,) = (record.getMessage() for record in caplog.records)
    assert told.startswith(f"{file}: column 'at': all of the first 2 times lie before 1980 (the latest is 1970-08-22T")
    assert "as time_format = 'auto' has them" in told


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_one_of_another_time_is_enough(tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str) -> None:
    caplog.set_level(logging.WARNING)
    assert read(write(tmp_path, kind, [0, 315_532_800])) == 2
    without = sf.Schema((), SCHEMA.slots, "click")
    assert read(write(tmp_path, kind, [20141021]), without) == 1
    assert not caplog.records
