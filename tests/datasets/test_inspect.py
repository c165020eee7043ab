"""What `data inspect` says of columns, and the schema that it writes."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparsefleet.core.errors import ConfigError
from sparsefleet.core.schema import CsvDialect, Schema
from sparsefleet.data.open import open_reader
from sparsefleet.datasets.events import COLUMNS, EventsModel, synth_events
from sparsefleet.datasets.inspect import Inspection, inspect
from sparsefleet.datasets.prepare import PrepareSpec
from sparsefleet.datasets.raw_table import read_table
from sparsefleet.datasets.split_table import split_table
from sparsefleet.datasets.synth import SynthSpec, synth


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("events") / "data"
    synth_events(folder, SynthSpec(rows=2000, test_rows=500, parts=3, seed=5))
    return folder


def kinds(found: Inspection) -> dict[str, str]:
    return {column.name: column.kind for column in found.columns}


def test_events_are_recognised(events: Path) -> None:
    found = inspect(events / "train")
    assert found.table.whole
    assert found.table.rows == 2000
    assert kinds(found) == {
        "time": "time",
        "user": "category",
        "age": "category",
        "gender": "category",
        "item": "category",
        "category": "category",
        "brand": "category",
        "price": "number",
        "history": "list",
        "click": "label",
        "buy": "label",
    }
    schema = found.schema
    assert schema.labels == ("click", "buy")
    assert schema.label_conditions == {"buy": "click"}
    assert (schema.group, schema.time, schema.time_format) == ("user", "time", "seconds")
    assert {slot.name: slot.split for slot in schema.slots if slot.split} == {"history": "|"}
    relation = {column.name: column.relation for column in found.columns}
    assert relation["category"] is not None
    assert relation["category"] >= 0


def test_the_written_schema_reads_the_file(events: Path, tmp_path: Path) -> None:
    found = inspect([events / "train", events / "test"])
    (tmp_path / "schema.toml").write_text(found.text())
    schema = Schema.load(tmp_path / "schema.toml")
    assert schema == found.schema
    with open_reader(events / "train", schema, batch_size=500).epoch() as epoch:
        assert sum(len(batch) for batch in epoch.streams[0]) == 2000


def test_the_same_rows_in_other_formats(events: Path, tmp_path: Path) -> None:
    rows = list(csv.DictReader((events / "train" / "part-0.csv").open()))
    (tmp_path / "f.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "f.parquet")
    wanted = inspect(events / "train" / "part-0.csv")
    for name in ("f.jsonl", "f.parquet"):
        found = inspect(tmp_path / name)
        assert kinds(found) == kinds(wanted)
        assert found.schema.slots == wanted.schema.slots


def test_columns_of_all_kinds(tmp_path: Path) -> None:
    lines = ["id,hour,C14,constant,empty,amount,zip,words,target"]
    for i in range(300):
        amount, words = 1.5 * 2 ** (i % 20), f"a b{i % 3} c{i % 4}"
        lines.append(f"x{i},141021{i % 24:02d},{100 + i % 80},1,,{amount},{10000 + i % 90},{words},{i % 2}")
    (tmp_path / "f.tsv").write_text("\n".join(lines).replace(",", "\t") + "\n")
    found = inspect(tmp_path / "f.tsv")
    assert found.schema.csv == CsvDialect("\t")
    assert kinds(found) == {
        "id": "left out",
        "hour": "time",
        "C14": "category",
        "constant": "left out",
        "empty": "left out",
        "amount": "number",
        "zip": "category",
        "words": "list",
        "target": "label",
    }
    assert found.schema.time_format == "yymmddhh"
    assert [slot.name for slot in found.schema.slots][:2] == ["hour_hour", "weekday"]
    assert found.schema.dense[0].function == "log1p"
    assert "left out: id (an identifier" in found.text()


def test_criteo_lines_are_csv_without_a_header(tmp_path: Path) -> None:
    synth(tmp_path / "d", SynthSpec(rows=300, test_rows=0, parts=1))
    found = inspect(tmp_path / "d" / "train")
    assert found.schema.csv is not None
    assert not found.schema.csv.header
    assert found.schema.label == "c1"
    assert len(found.table.columns) == 40


def test_which_column_is_the_label(tmp_path: Path) -> None:
    (tmp_path / "f.csv").write_text("a,b,c\n0,1,x\n1,0,y\n")
    with pytest.raises(ConfigError, match=r"Say --label NAME \(columns of 0 and 1: a, b\)"):
        inspect(tmp_path / "f.csv")
    assert inspect(tmp_path / "f.csv", label="b").schema.label == "b"
    with pytest.raises(ConfigError, match="a label is 0 or 1, and both occur; this column holds x, y"):
        inspect(tmp_path / "f.csv", label="c")


# -- events ------------------------------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_files(events: Path, tmp_path: Path) -> None:
    synth_events(tmp_path / "again", SynthSpec(rows=2000, test_rows=500, parts=1, seed=5))
    lines = [line for part in range(3) for line in (events / "train" / f"part-{part}.csv").read_text().splitlines()[1:]]
    assert (tmp_path / "again" / "train" / "part-0.csv").read_text().splitlines()[1:] == lines
    assert (events / "train" / "part-1.csv").read_text().startswith(",".join(COLUMNS) + "\n")


def test_what_is_planted(events: Path) -> None:
    report = json.loads((events / "synth.json").read_text())
    assert 0.7 < report["best_auc"] < 0.95
    assert report["best_buy_auc"] > 0.65
    model = EventsModel(5, 100)
    np.testing.assert_allclose(model.age_category.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(model.age_category.mean(axis=1), 0, atol=1e-12)
    block = model.block(1, 0, 5000)
    assert not block.buys[block.clicks == 0].any()


# -- splitting ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("split", ["random", "time", "group"])
@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_splitting(events: Path, tmp_path: Path, split: str, kind: str) -> None:
    schema = Schema.load(events / "schema.toml")
    source = events / "train"
    if kind != "csv":
        rows = [row for part in range(3) for row in csv.DictReader((source / f"part-{part}.csv").open())]
        source = tmp_path / f"all.{kind}"
        if kind == "jsonl":
            source.write_text("".join(json.dumps(row) + "\n" for row in rows))
        else:
            pq.write_table(pa.Table.from_pylist(rows), source, row_group_size=700)
    told: list[tuple[int, int | None]] = []
    report = split_table(
        source,
        tmp_path / "out",
        schema,
        PrepareSpec(0.2, 2),
        split=split,
        schema_file=events / "schema.toml",
        on_progress=lambda done, total: told.append((done, total)),
    )
    assert told[-1][0] == told[-1][1]
    parts = {}
    for name in ("train", "test"):
        with open_reader(tmp_path / "out" / name, schema, batch_size=5000).epoch() as epoch:
            parts[name] = next(epoch.streams[0])
    train, test = parts["train"], parts["test"]
    assert (len(train), len(test)) == (report.train_rows, report.test_rows)
    assert len(train) + len(test) == 2000
    if split == "random":
        assert len(test) == 400
    if split == "time":
        assert train.times.max() < test.times.min()
        assert len(test) == 400
    if split == "group":
        assert not set(train.groups.tolist()) & set(test.groups.tolist())
        assert 200 < len(test) < 600
    assert (tmp_path / "out" / "schema.toml").read_text() == (events / "schema.toml").read_text()


def test_splits_that_cannot_be(events: Path, tmp_path: Path) -> None:
    schema = Schema.load(events / "schema.toml")
    with pytest.raises(ConfigError, match="choose random, time, group"):
        split_table(events / "train", tmp_path / "o", schema, PrepareSpec(), split="user")
    with pytest.raises(ConfigError, match="--split time needs a column"):
        split_table(events / "train", tmp_path / "o", replace(schema, time=None), PrepareSpec(), split="time")


# -- what strangers bring ----------------------------------------------------------------------------------------------


def test_lines_with_another_number_of_fields_are_told(tmp_path: Path) -> None:
    (tmp_path / "f.csv").write_text("a,b,click\n1,2,0\n1,2\n3,4,1,9\n5,6,1\n")
    found = inspect(tmp_path / "f.csv")
    assert (found.table.rows, found.table.ragged) == (2, 2)


def test_a_first_line_longer_than_the_head_that_formats_look_at(tmp_path: Path) -> None:
    wide = 8000
    lines = [",".join([str(row % 2), *(str(10**9 + row * at) for at in range(wide - 1))]) for row in range(4)]
    (tmp_path / "f.csv").write_text("\n".join(lines) + "\n")
    table = read_table([str(tmp_path / "f.csv")], "auto", 100)
    assert (len(table.columns), table.rows, table.ragged) == (wide, 4, 0)
    assert table.dialect is not None
    assert not table.dialect.header


def test_numbers_of_things_are_categories_and_lists_count_by_their_values(tmp_path: Path) -> None:
    rows = [{"user": 7 * (i % 60), "tags": [f"t{i % 3}", "x"], "price": i / 3, "click": i % 2} for i in range(200)]
    del rows[5]["tags"]
    (tmp_path / "f.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = inspect(tmp_path / "f.jsonl")
    assert kinds(found) == {"user": "category", "tags": "list", "price": "number", "click": "label"}
    tags = next(column for column in found.columns if column.name == "tags")
    assert (tags.distinct, tags.top) == (4, "x")
    assert found.schema.group == "user"


@pytest.mark.parametrize("name", ["libsvm", "libffm"])
def test_libsvm_and_libffm(name: str, tmp_path: Path) -> None:
    lines = []
    for i in range(300):
        label = "-1" if i % 3 else "+1"
        parts = [(0, i % 7, "1"), (1, 100 + i % 5, "1"), (2, 500, f"{i / 10}")]
        if i % 4 == 0:
            parts.append((1, 90, "1"))
        words = [f"{a}:{b}:{v}" if name == "libffm" else f"{b}:{v}" for a, b, v in parts]
        lines.append(" ".join([label, *words]))
    (tmp_path / "f").write_text("\n".join(lines) + "\n")
    found = inspect(tmp_path / "f")
    (tmp_path / "schema.toml").write_text(found.text())
    schema = Schema.load(tmp_path / "schema.toml")
    assert found.table.format == name
    assert schema.sparse_feature_dim == 0
    assert all(slot.keys for slot in schema.slots)
    if name == "libsvm":
        assert schema.slot_names == ("features",)
        assert [(f.name, f.column) for f in schema.dense] == [("value_500", "500")]
    else:
        assert [(slot.name, slot.column) for slot in schema.slots] == [("field_0", "0"), ("field_1", "1")]
        assert [(f.name, f.column) for f in schema.dense] == [("value_2", "2:value")]
    report = split_table(tmp_path / "f", tmp_path / "out", schema, PrepareSpec(0.1, 2))
    assert (report.train_rows, report.test_rows) == (270, 30)
    assert {file.name for file in (tmp_path / "out" / "train").iterdir()} == {f"part-0.{name}", f"part-1.{name}"}
    with open_reader(tmp_path / "out" / "train", schema, batch_size=500).epoch() as epoch:
        assert len(next(epoch.streams[0])) == 270
