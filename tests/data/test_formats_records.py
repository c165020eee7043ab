"""CSV and JSON lines as files: headers, cutting, resuming, packing, errors; and one meaning in every format."""

from __future__ import annotations

import csv
import gzip
import json
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparsefleet.core.batch import Batch, Mark
from sparsefleet.core.errors import BadRowError, ConfigError, DataError
from sparsefleet.core.schema import CRITEO, CsvDialect, DenseFeature, Label, Schema, Slot
from sparsefleet.data.formats import format_for, guess_format
from sparsefleet.data.formats.base import BadSamples, Format, Unit
from sparsefleet.data.formats.csv import CsvFormat
from sparsefleet.data.formats.jsonl import JsonLinesFormat
from sparsefleet.data.python_samples import batch_of, batch_of_samples
from sparsefleet.serving.samples import SampleParser

SCHEMA = Schema(
    dense=(DenseFeature("price", 0.0, 10.0),),
    slots=(
        Slot("user"),
        Slot("tags", split="|"),
        Slot("hour", column="ts", derive="hour"),
        Slot("pair", cross=("user", "tags")),
    ),
    label="click",
    more_labels=(Label("buy", "click"),),
    weight="w",
    group="user",
    time="ts",
)
COLUMNS = ("ts", "user", "price", "tags", "unused", "click", "buy", "w")


def record(i: int) -> dict[str, Any]:
    return {
        "ts": 1_700_000_000 + 1000 * i,
        "user": i % 7,
        "price": None if i % 5 == 0 else i / 4,
        "tags": "|".join(f"t{i % k}" for k in (2, 3, 5)[: i % 4]) or None,
        "unused": 'say "hi", you',
        "click": i % 2,
        "buy": i % 3 == 0,
        "w": 1 + i % 2,
    }


def write_csv(
    path: Path, rows: range, *, delimiter: str = ",", header: bool = True, end: str = "\n", bom: bool = False
) -> str:
    with path.open("w", newline="", encoding="utf-8-sig" if bom else "utf-8") as file:
        writer = csv.writer(file, delimiter=delimiter, lineterminator=end)
        if header:
            writer.writerow(COLUMNS)
        for i in rows:
            values = record(i)
            values["buy"] = int(values["buy"])
            writer.writerow([values[name] for name in COLUMNS])
    return str(path)


def read(form: Format, file: str, policy: str = "error") -> Batch:
    return Batch.concat([chunk.batch for unit in form.plan([file], 1) for chunk in form.read(unit, BadSamples(policy))])


def same(a: Batch, b: Batch) -> None:
    assert a.columns().keys() == b.columns().keys()
    for name, column in a.columns().items():
        np.testing.assert_array_equal(column, b.columns()[name], err_msg=name)
    np.testing.assert_array_equal(a.keys, b.keys)
    np.testing.assert_array_equal(a.offsets, b.offsets)


@pytest.fixture
def wanted(tmp_path: Path) -> Batch:
    return read(CsvFormat(SCHEMA), write_csv(tmp_path / "wanted.csv", range(200)))


def test_what_a_sample_becomes(wanted: Batch) -> None:
    assert wanted.labels.shape == (200, 2)
    np.testing.assert_array_equal(wanted.labels[:4], [[0, np.nan], [1, 0], [0, np.nan], [1, 1]])
    assert wanted.dense[:3, 0].tolist() == [0.0, np.float32(0.025), np.float32(0.05)]
    assert wanted.weights is not None
    assert wanted.weights[:2].tolist() == [1, 2]
    assert wanted.times is not None
    assert wanted.times[1] == 1_700_001_000
    assert wanted.groups is not None
    assert len(set(wanted.groups.tolist())) == 7
    assert np.diff(wanted.offsets).reshape(-1, 4)[:4].tolist() == [
        [1, 0, 1, 0],
        [1, 1, 1, 1],
        [1, 2, 1, 2],
        [1, 3, 1, 3],
    ]


@pytest.mark.parametrize(
    "how",
    [
        {"delimiter": "\t"},
        {"delimiter": ";"},
        {"end": "\r\n"},
        {"bom": True},
        {"bom": True, "delimiter": "|", "end": "\r\n"},
    ],
    ids=str,
)
def test_any_usual_csv(tmp_path: Path, wanted: Batch, how: dict[str, Any]) -> None:
    # A bar separates tags, too: then they are quoted.
    same(read(CsvFormat(SCHEMA), write_csv(tmp_path / "f", range(200), **how)), wanted)
    assert guess_format(str(tmp_path / "f"), SCHEMA) == "csv"


def test_without_a_header(tmp_path: Path, wanted: Batch) -> None:
    schema = replace(SCHEMA, csv=CsvDialect("\t", header=False, columns=COLUMNS))
    for bom in (False, True):
        file = write_csv(tmp_path / f"f{bom}", range(200), delimiter="\t", header=False, bom=bom)
        same(read(format_for("auto", schema, files=[file]), file), wanted)


def test_one_meaning_in_every_format(tmp_path: Path, wanted: Batch) -> None:
    lines = tmp_path / "f.jsonl"
    lines.write_text("".join(json.dumps(record(i)) + "\n" for i in range(200)))
    assert guess_format(str(lines), SCHEMA) == "jsonl"
    same(read(JsonLinesFormat(SCHEMA), str(lines)), wanted)
    rows = [record(i) for i in range(200)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "f.parquet", row_group_size=64)
    same(read(format_for("auto", SCHEMA, files=[str(tmp_path / "f.parquet")]), str(tmp_path / "f.parquet")), wanted)
    samples = [{name: value for name, value in row.items() if name != "unused"} for row in rows]
    same(batch_of_samples(samples, SCHEMA), wanted)
    same(batch_of({name: [sample[name] for sample in samples] for name in samples[0]}, SCHEMA), wanted)
    requests = [{name: row[name] for name in SCHEMA.fields} for row in rows]
    served = SampleParser(SCHEMA).samples(requests)
    for name in ("dense", "keys", "offsets"):
        np.testing.assert_array_equal(getattr(served, name), getattr(wanted, name))
    body = json.dumps(
        {"context": {"user": 3}, "candidates": [{n: r[n] for n in ("price", "tags", "ts")} for r in rows]}
    )
    assert len(SampleParser(SCHEMA).body(body.encode())) == 200


def test_plain_columns_mean_the_same_everywhere(tmp_path: Path) -> None:
    schema = Schema((DenseFeature("x", 1, 2),), (Slot("a"), Slot("b")), label="y")
    rows = [{"y": i % 2, "x": i / 8, "a": i, "b": f"é{i % 3}"} for i in range(50)]
    file = tmp_path / "f.csv"
    with file.open("w", newline="") as out:
        csv.writer(out).writerows([["b", "y", "x", "a"], *([r["b"], r["y"], r["x"], r["a"]] for r in rows)])
    wanted = read(CsvFormat(schema), str(file))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "p")
    same(read(format_for("parquet", schema), str(tmp_path / "p")), wanted)
    same(batch_of_samples(rows, schema), wanted)
    served = SampleParser(schema).body(json.dumps({"rows": rows}).encode())
    np.testing.assert_array_equal(served.keys, wanted.keys)
    np.testing.assert_array_equal(served.dense, wanted.dense)


@pytest.mark.parametrize("pieces", [2, 3, 7, 50])
def test_cut_anywhere(tmp_path: Path, wanted: Batch, pieces: int) -> None:
    file = write_csv(tmp_path / "f", range(200))
    form = CsvFormat(SCHEMA)
    units = form.plan([file], pieces)
    assert len(units) >= pieces
    parts = [chunk.batch for unit in units for chunk in form.read(unit, BadSamples())]
    same(Batch.concat(parts), wanted)


@pytest.mark.parametrize("kind", ["plain", "gzip", "zstd"])
@pytest.mark.parametrize("multiline", [False, True])
def test_packed_files_and_going_on(tmp_path: Path, wanted: Batch, kind: str, multiline: bool) -> None:
    data = Path(write_csv(tmp_path / "f", range(200))).read_bytes()
    schema = replace(SCHEMA, csv=CsvDialect(multiline=multiline))
    if multiline:
        data = data.replace(b'""hi"",', b'\n""hi"",\n')
    file = tmp_path / "packed"
    file.write_bytes(
        gzip.compress(data) if kind == "gzip" else data if kind == "plain" else pa.compress(data, "zstd", asbytes=True)
    )
    form = CsvFormat(schema)
    same(read(form, str(file)), wanted)
    (chunk,) = form.read(Unit(str(file)), BadSamples())
    offset = -1 if chunk.ends is None else int(chunk.ends[119])
    assert (offset == -1) == (kind != "plain")
    rest = list(form.read(Unit(str(file)), BadSamples(), Mark(0, int(chunk.lines[119]), offset)))
    same(Batch.concat([part.batch for part in rest]), wanted.samples(120, 200))
    if multiline:
        assert form.plan([str(file)], 5) == [Unit(str(file))]
        with pytest.raises(DataError, match="may hold line ends"):
            list(form.read(Unit(str(file), 5, 100), BadSamples()))


BAD = [
    ("price", "cheap", "column 'price': not a number: 'cheap'"),
    ("click", "True", "column 'click': label is not 0 or 1: 'True'"),
    ("click", "", "column 'click': label is missing"),
    ("ts", "noon", "column 'ts': not a time"),
    ("w", "-1", "column 'w': weight is not a number, 0 or above: '-1'"),
]


@pytest.mark.parametrize(("name", "value", "said"), BAD, ids=[name for name, _, _ in BAD])
@pytest.mark.parametrize("pieces", [1, 3])
def test_bad_rows_are_located(tmp_path: Path, name: str, value: str, said: str, pieces: int) -> None:
    file = write_csv(tmp_path / "f", range(100))
    lines = Path(file).read_text().split("\n")
    place = COLUMNS.index(name)
    cells = next(csv.reader([lines[60]]))
    cells[place] = value
    with (tmp_path / "g").open("w", newline="") as out:
        csv.writer(out, lineterminator="\n").writerows([*csv.reader(lines[:60]), cells, *csv.reader(lines[61:-1])])
    form = CsvFormat(SCHEMA)
    units = form.plan([str(tmp_path / "g")], pieces)
    with pytest.raises(BadRowError) as caught:
        list(chain.from_iterable(form.read(unit, BadSamples()) for unit in units))
    assert f"g, line 61, column {place + 1}: {said}" in str(caught.value)
    bad = BadSamples("skip")
    assert sum(len(chunk.batch) for unit in units for chunk in form.read(unit, bad)) == 99
    assert sum(bad.counts.values()) == 1


@pytest.mark.parametrize(
    ("time_format", "value"),
    [("auto", "1700000000000"), ("seconds", "1700000000000"), ("milliseconds", "1700000000000000000")],
)
def test_times_of_another_unit_are_refused(tmp_path: Path, time_format: str, value: str) -> None:
    """Their hour would be chance, and nobody would see it."""
    schema = Schema((), (Slot("hour", column="ts", derive="hour"),), "y", time_format=time_format)
    (tmp_path / "f").write_text(f"y,ts\n1,1700000000\n0,{value}\n")
    with pytest.raises(BadRowError, match="line 3, column 2: column 'ts': not a time of the schema's time_format"):
        read(CsvFormat(schema), str(tmp_path / "f"))


def test_ragged_lines(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("y,a\n1,x\n0\n")
    with pytest.raises(BadRowError, match="line 3, column 2: wrong field count: 1 where the header has 2"):
        read(CsvFormat(Schema((), (Slot("a"),), label="y")), str(tmp_path / "f"))
    (tmp_path / "g").write_text('y,a\n1,"x\n')
    with pytest.raises(BadRowError, match="line 2, column 2: column 'a': quote is not closed; where fields hold line"):
        read(CsvFormat(Schema((), (Slot("a"),), label="y")), str(tmp_path / "g"))


def test_bad_lines_of_json(tmp_path: Path) -> None:
    schema = Schema((), (Slot("a"),), label="y")
    for line, said in (
        ('{"y": 1, "a": 1.5}', "line 2, column 1: column 'a': value of a wrong kind"),
        ('{"y": 1, "a" "x"}', "line 2: not a JSON object: something is wrong near character"),
        ('{"y": 1, "a": 1, "a": 2}', "line 2, column 1: column 'a': field stands twice"),
    ):
        (tmp_path / "f").write_text('{"y": 0}\n' + line + "\n")
        with pytest.raises(BadRowError) as caught:
            read(JsonLinesFormat(schema), str(tmp_path / "f"))
        assert said in str(caught.value)


def test_columns_that_are_not_there(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("y,a,a\n1,x,x\n")
    schema = Schema((), (Slot("a"), Slot("b")), label="y", csv=CsvDialect())
    with pytest.raises(DataError, match="no column 'b'; the file has y, a, a"):
        read(CsvFormat(schema), str(tmp_path / "f"))
    with pytest.raises(DataError, match="column 'a' stands twice in the header"):
        read(CsvFormat(Schema((), (Slot("a"),), label="y")), str(tmp_path / "f"))


def test_a_header_that_is_blank(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("\n\n\n")
    for dialect in (None, CsvDialect()):
        with pytest.raises(DataError, match="f: the first line is blank; the names of the columns should stand there"):
            read(CsvFormat(Schema((), (Slot("a"),), label="y", csv=dialect)), str(tmp_path / "f"))


def test_samples_without_labels(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("ts,user,price,tags\n5,1,2,a\n")
    form = CsvFormat(SCHEMA, labelled=False)
    batch = read(form, str(tmp_path / "f"))
    assert np.isnan(batch.labels).all()
    assert batch.labels.shape == (1, 2)
    assert batch.weights is None
    assert batch.times is not None
    with pytest.raises(DataError, match="no column 'click', 'buy', 'w'"):
        read(CsvFormat(SCHEMA), str(tmp_path / "f"))


def test_what_other_formats_cannot_hold_is_refused() -> None:
    with pytest.raises(ConfigError, match="Read such files as csv"):
        format_for("criteo", SCHEMA)
    with pytest.raises(ConfigError, match="write csv, jsonl or parquet"):
        format_for("multislot", SCHEMA)
    with pytest.raises(ConfigError, match="the schema is of version 1"):
        format_for("csv", replace(CRITEO, version=1))


def test_ready_made_keys_in_csv_and_json(tmp_path: Path) -> None:
    schema = Schema((), (Slot("a", keys=True),), label="y", sparse_feature_dim=0)
    (tmp_path / "f").write_text(f"y,a\n1,{2**64 - 1}\n0,7\n")
    (tmp_path / "g").write_text(f'{{"y": 1, "a": {2**64 - 1}}}\n{{"y": 0, "a": 7}}\n')
    for form, name in ((CsvFormat(schema), "f"), (JsonLinesFormat(schema), "g")):
        assert read(form, str(tmp_path / name)).keys.tolist() == [2**64 - 1, 7]
    (tmp_path / "f").write_text("y,a\n1,x7\n")
    with pytest.raises(BadRowError, match="column 'a': feature key is not a whole number: 'x7'"):
        read(CsvFormat(schema), str(tmp_path / "f"))
    (tmp_path / "g").write_text('{"y": 1, "a": "7"}\n')
    with pytest.raises(BadRowError, match="column 'a': value of a wrong kind"):
        read(JsonLinesFormat(schema), str(tmp_path / "g"))


def test_numbers_with_a_fraction_are_no_values_of_a_slot_and_may_be_a_group(tmp_path: Path) -> None:
    schema = Schema(dense=(), slots=(Slot("a"),), label="y", group="g")
    rows = [{"y": i % 2, "a": "x", "g": [7.0, 7.5, 8.0][i % 3]} for i in range(6)]
    (tmp_path / "t.csv").write_text("y,a,g\n" + "".join(f"{row['y']},{row['a']},{row['g']}\n" for row in rows))
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "t.parquet")
    pq.write_table(pa.Table.from_pylist([{**row, "a": 7.0} for row in rows]), tmp_path / "slot.parquet")
    for name, kind in (("t.csv", "csv"), ("t.jsonl", "jsonl"), ("t.parquet", "parquet")):
        groups = read(format_for(kind, schema), str(tmp_path / name)).groups
        assert groups is not None
        assert [groups.tolist().index(group) for group in groups.tolist()] == [0, 1, 2, 0, 1, 2], "the same samples"
    with pytest.raises(BadRowError, match=r"column 'a': value of a wrong kind: '7\.0'"):
        read(format_for("parquet", schema), str(tmp_path / "slot.parquet"))
