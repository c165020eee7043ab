"""What `data inspect` says of columns, and the schema that it writes."""

from __future__ import annotations

import csv
import gzip
import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparsefleet.core.errors import ConfigError, DataError
from sparsefleet.core.schema import CRITEO, CsvDialect, DenseFeature, Schema, Slot
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


def gzipped(data: bytes) -> bytes:
    return gzip.compress(data)


def zstd(data: bytes) -> bytes:
    return bytes(pa.compress(data, "zstd", asbytes=True))


@pytest.mark.parametrize("kind", ["csv", "jsonl", "libsvm", "libffm", "multislot"])
def test_packed_files_and_uris_look_like_the_plain_ones(events: Path, tmp_path: Path, kind: str) -> None:
    rows = list(csv.DictReader((events / "train" / "part-0.csv").open()))
    lines = {
        "csv": [",".join(rows[0]), *(",".join(row.values()) for row in rows)],
        "jsonl": [json.dumps(row) for row in rows],
        "libsvm": [f"{n % 2} {1 + n % 7}:1 {8 + n % 5}:1" for n in range(300)],
        "libffm": [f"{n % 2} 0:{n % 7}:1 1:{n % 5}:1" for n in range(300)],
        "multislot": [f"1 {n % 2} 2 {n % 7} {n % 5} 1 {n % 3}" for n in range(300)],
    }[kind]
    data = "".join(line + "\n" for line in lines).encode()
    plain = tmp_path / "plain"
    plain.write_bytes(data)
    label = "slot1" if kind == "multislot" else None
    wanted = inspect(plain, label=label)
    assert wanted.table.format == kind
    assert wanted.table.whole
    for name, pack in (("f.gz", gzipped), ("f.zst", zstd), ("packed by gzip", gzipped), ("packed by zstd", zstd)):
        packed = tmp_path / name
        packed.write_bytes(pack(data))
        for place in (packed, f"file://{packed}"):
            found = inspect(place, label=label)
            assert (found.table, found.columns, found.schema) == (wanted.table, wanted.columns, wanted.schema)
    assert inspect(f"file://{plain}", label=label).columns == wanted.columns
    cut = tmp_path / "cut.gz"
    cut.write_bytes(gzipped(data)[:-20])
    with pytest.raises(DataError, match=rf"{cut}: .*(cannot be read|damaged)"):
        inspect(cut, label=label)


def test_the_command_on_packed_files_behind_a_uri(cli: Any, events: Path, tmp_path: Path) -> None:
    told = []
    for name, pack in (("plain", bytes), ("gzip", gzipped), ("zstd", zstd)):
        folder = tmp_path / name
        folder.mkdir()
        for part in (events / "train").glob("*.csv"):
            (folder / part.name).write_bytes(pack(part.read_bytes()))
        schema = tmp_path / f"{name}.toml"
        done = cli("data", "inspect", f"file://{folder}", "--out", schema)
        assert done.exit_code == 0, done.output
        told.append((done.stdout.replace(str(schema), ""), schema.read_text()))
    assert "3 files: csv" in told[0][0]
    assert told[0] == told[1] == told[2]


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


def test_words_are_no_label(tmp_path: Path) -> None:
    (tmp_path / "f.csv").write_text("won,b\nTrue,x\nFalse,y\nTrue,x\n")
    with pytest.raises(ConfigError, match="won: true and false as text are no label, write 1 and 0"):
        inspect(tmp_path / "f.csv")  # it was taken, and every reader refused the rows
    (tmp_path / "f.jsonl").write_text('{"won": true, "b": "x"}\n{"won": false, "b": "y"}\n')
    assert inspect(tmp_path / "f.jsonl").schema.label == "won"


def test_columns_that_readers_refuse_are_left_out(tmp_path: Path) -> None:
    count = 60
    columns = {
        "click": [i % 2 for i in range(count)],
        "user": [f"u{i % 7}" for i in range(count)],
        "flag": [bool(i % 3) for i in range(count)],
        "vector": [[i / 8, 1.0] for i in range(count)],
        "gap": [float("nan") if i % 3 else float(i) for i in range(count)],
        "pairs": [[[i, 2]] for i in range(count)],
        "lasts": pa.array(range(count), pa.duration("s")),
        "ids": [[i % 5, None] for i in range(count)],
        "flags": pa.array([[("a", i % 4)] for i in range(count)], pa.map_(pa.string(), pa.int64())),
    }
    pq.write_table(pa.table(columns), tmp_path / "f.parquet")
    found = inspect(tmp_path / "f.parquet")
    assert [slot.name for slot in found.schema.slots] == ["user", "ids"]
    assert not found.schema.dense
    told = {column.name: column.note for column in found.columns if column.left_out}
    assert told["flag"] == "truth values; write 0 and 1, or text"
    assert told["gap"] == "holds NaN or infinity; write null where a number is missing"
    assert told["vector"] == "lists that hold 0.0; a slot takes text and whole numbers"
    assert told["lasts"] == "timedelta is neither text nor number; write one of these"
    assert {"pairs", "flags"} <= told.keys()
    with open_reader(tmp_path / "f.parquet", found.schema, batch_size=100).epoch() as epoch:
        assert len(next(epoch.streams[0])) == count
    mixed = [{"click": i % 2, "user": "a" if i % 2 else "b", "x": "n/a" if i % 5 else 1.5} for i in range(count)]
    (tmp_path / "f.jsonl").write_text("".join(json.dumps(row) + "\n" for row in mixed))
    assert [slot.name for slot in inspect(tmp_path / "f.jsonl").schema.slots] == ["user"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("f.json", '[\n{"click": 1, "u": "a"},\n{"click": 0, "u": "b"}]\n', "this is one JSON array"),
        ("f.jsonl", '{"click": 1, "x": NaN}\n', "line 1: not JSON: NaN is no JSON number; write null"),
        ("f.csv", "click,a,a\n1,2,3\n0,2,3\n", "column 'a' stands twice in the header"),
    ],
)
def test_files_that_look_like_something_else(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=message):
        inspect([str(tmp_path / name)])


# -- MultiSlot ---------------------------------------------------------------------------------------------------------


def multislot_lines(label_at: int = 0, count: int = 200) -> list[str]:
    """A label, two numbers, one number, a category, a list of keys, a slot that is always the same."""
    lines = []
    for i in range(count):
        keys = [str(10**18 + 7 * (i % 5)), *([str(3 + i % 4)] if i % 3 else [])]
        slots = [["0.5", str(-i / 8)], [str(i / 4)], [str(900 + i % 7)], keys, ["77"]]
        slots.insert(label_at, [str(int(i % 4 == 0))])
        lines.append(" ".join(word for slot in slots for word in (str(len(slot)), *slot)))
    return lines


@pytest.mark.parametrize("label_at", [0, 5])
def test_slots_of_multislot_go_by_their_number(tmp_path: Path, label_at: int) -> None:
    lines = multislot_lines(label_at)
    (tmp_path / "part-0").write_text("\n".join(lines[:90]) + "\n")
    (tmp_path / "part-1.gz").write_bytes(gzip.compress(("\r\n".join(lines[90:]) + "\r\n").encode()))
    found = inspect(tmp_path)
    assert (found.table.format, found.table.rows, found.table.whole) == ("multislot", 200, True)
    label, pair, one, category, several, same = [
        f"slot{1 + n}" for n in ([0, *range(1, 6)] if not label_at else [5, *range(5)])
    ]
    wanted = {label: "label", f"{pair}_1": "number", f"{pair}_2": "number", one: "number"}
    assert kinds(found) == {**wanted, category: "category", several: "list", same: "category"}
    assert found.label_rate == 0.25
    schema = found.schema
    assert schema.multislot == tuple(f"slot{n}" for n in range(1, 7))
    assert (schema.label, schema.sparse_feature_dim) == (label, 0)
    assert all(slot.keys for slot in schema.slots)
    text = found.text()
    assert "Lines carry no names" in text
    assert f'{{ name = "{same}", hash_prefix' not in text
    assert "always the same" in text
    (tmp_path / "schema.toml").write_text(text)
    assert Schema.load(tmp_path / "schema.toml") == schema
    # What train reads by it is what the lines say: format and order are told by file and schema alone.
    with open_reader([tmp_path / "part-0", tmp_path / "part-1.gz"], schema, batch_size=200).epoch() as epoch:
        (batch,) = epoch.streams[0]
    assert batch.labels.tolist() == [float(i % 4 == 0) for i in range(200)]
    np.testing.assert_allclose(batch.dense, [[0.5, -i / 8, i / 4] for i in range(200)])
    keys, offsets = batch.slot(several)
    assert offsets[:3].tolist() == [0, 1, 3]
    assert keys[:3].tolist() == [10**18, 10**18 + 7, 4]
    assert set(batch.slot(same)[0].tolist()) == {77}


def test_multislot_schemas_can_be_renamed_and_score_lines_without_a_label(tmp_path: Path) -> None:
    (tmp_path / "part-0").write_text("\n".join(multislot_lines()) + "\n")
    found = inspect(tmp_path)
    text = found.text()
    for number, name in enumerate(("click", "pair", "price", "user", "ads", "site"), 1):
        text = text.replace(f'"slot{number}', f'"{name}')
    (tmp_path / "schema.toml").write_text(text)
    schema = Schema.load(tmp_path / "schema.toml")
    assert (schema.label, schema.dense_names) == ("click", ("pair_1", "pair_2", "price"))
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "part-0").write_text("".join(line[4:] + "\n" for line in multislot_lines()))
    batches = []
    for folder, labelled in ((tmp_path / "part-0", True), (tmp_path / "bare", False)):
        with open_reader(folder, schema, batch_size=200, labelled=labelled).epoch() as epoch:
            batches += list(epoch.streams[0])
    np.testing.assert_array_equal(batches[0].keys, batches[1].keys)
    np.testing.assert_array_equal(batches[0].dense, batches[1].dense)
    assert np.isnan(batches[1].labels).all()


@pytest.mark.parametrize(
    ("lines", "options", "message"),
    [
        (["1 0 1 5 1 1", "1 1 1 6 1 0"], {}, r"Say --label NAME \(columns of 0 and 1: slot1, slot3\)"),
        (["1 7 1 5 1 1", "1 8 1 6 1 1"], {}, "no column holds 0 and 1 alone"),
        (["1 0 2 0.5 1", "1 1 2 1 0.5"], {"label": "slot2_1"}, "one of several numbers of a slot"),
        (["1 0 2 0.5 1", "1 1 2 1 0.5"], {}, "no slot holds feature keys"),
        (["1 0 2 0.5 1 1 7", "1 1 1 0.5 1 7"], {}, "slot2 holds '0.5', which is no feature key, and 1 to 2 values"),
        (["1 0 0 1 5", "1 1 0 1 5"], {"format": "multislot"}, "2 lines are none of 'n v1 … vn' for each slot"),
    ],
)
def test_multislot_that_cannot_be_told(tmp_path: Path, lines: list[str], options: dict[str, str], message: str) -> None:
    (tmp_path / "f").write_text("\n".join(lines) + "\n")
    with pytest.raises((ConfigError, DataError), match=message):
        inspect(tmp_path / "f", **options)


def test_what_few_rows_have_is_optional(tmp_path: Path) -> None:
    """In JSON lines, where a file without it would be refused; a column of CSV is there or not."""
    rows = [
        {"click": n % 2, "site": f"s{n % 9}"} | ({"coupon": f"c{n % 7}"} if n % 300 == 0 else {}) for n in range(3000)
    ]
    (tmp_path / "f.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = inspect(tmp_path / "f.jsonl")
    assert found.schema.optional == ("coupon",)
    assert "that a file may be without" in found.text()
    (tmp_path / "schema.toml").write_text(found.text())
    assert Schema.load(tmp_path / "schema.toml") == found.schema
    (tmp_path / "f.csv").write_text(
        "\n".join(["click,site,coupon", *(f"{r['click']},{r['site']},{r.get('coupon', '')}" for r in rows)])
    )
    assert inspect(tmp_path / "f.csv").schema.optional == ()


def test_blank_lines_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "f.csv").write_text("\n\n\n")
    with pytest.raises(DataError, match="only blank lines at the beginning"):
        inspect(tmp_path / "f.csv")


def test_lines_with_other_slots_are_counted(tmp_path: Path) -> None:
    lines = multislot_lines()
    lines[30:30] = ["1 0 1 5", "not a line", "1 0 2 0.5"]
    (tmp_path / "f").write_text("\n".join(lines) + "\n")
    found = inspect(tmp_path / "f")
    assert (found.table.rows, found.table.ragged) == (200, 3)


def test_what_a_schema_says_of_multislot() -> None:
    slots = (Slot("user", keys=True), Slot("ads", keys=True))
    schema = Schema((), slots, "click", multislot=("ads", "click", "user"))
    assert Schema.from_dict(json.loads(json.dumps(schema.to_dict()))) == schema
    for names, message in (
        (("ads", "user"), "missing: click"),
        (("ads", "click", "ads", "user"), "used twice: ads"),
        ("ads", "mistyped"),
    ):
        with pytest.raises(ConfigError, match=message):
            Schema((), slots, "click", multislot=names)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="do not go together"):
        replace(schema, csv=CsvDialect())
    wrong = Schema(
        (DenseFeature("p_1"), DenseFeature("q"), DenseFeature("p_2")),
        slots,
        multislot=("p", "q", "user", "ads", "label"),
    )
    with pytest.raises(ConfigError, match="must stand side by side"):
        open_reader(__file__, wrong, format_name="multislot")


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


def test_multislot_is_split_too(tmp_path: Path) -> None:
    lines = multislot_lines()
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "part-0").write_text("\n".join(lines[:150]) + "\n")
    (tmp_path / "in" / "part-1").write_bytes("\r\n".join(lines[150:]).encode())
    schema = inspect(tmp_path / "in").schema
    report = split_table(tmp_path / "in", tmp_path / "out", schema, PrepareSpec(0.2, 2))
    assert (report.train_rows, report.test_rows) == (160, 40)
    again = Schema.load(tmp_path / "out" / "schema.toml")
    assert again == schema
    written = [
        line
        for name in ("train", "test")
        for file in sorted((tmp_path / "out" / name).iterdir())
        for line in file.read_text().splitlines()
    ]
    assert sorted(written) == sorted(lines)
    with open_reader(tmp_path / "out" / "test", again, batch_size=100).epoch() as epoch:
        assert len(next(epoch.streams[0])) == 40


def test_what_multislot_lines_cannot_be_split_by(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("\n".join(multislot_lines()) + "\n")
    schema = inspect(tmp_path / "f").schema
    with pytest.raises(ConfigError, match="--split time: MultiSlot lines have no column of that"):
        split_table(tmp_path / "f", tmp_path / "o", schema, PrepareSpec(), split="time")
    counting = replace(schema, slots=tuple(replace(slot, keys=False, min_count=3) for slot in schema.slots))
    with pytest.raises(ConfigError, match="min_count is for values of text, and MultiSlot lines hold ready-made keys"):
        split_table(tmp_path / "f", tmp_path / "o", counting, PrepareSpec())
    with pytest.raises(ConfigError, match="take min_count out of the schema"):  # it was passed over silently
        open_reader(tmp_path / "f", counting)
    (tmp_path / "criteo").write_text("0" + "\t1" * 13 + "\tab" * 26 + "\n")
    with pytest.raises(ConfigError, match="it is of format criteo; with --schema, data prepare splits CSV"):
        split_table(tmp_path / "criteo", tmp_path / "o", CRITEO, PrepareSpec())


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


def test_names_go_by_their_words(tmp_path: Path) -> None:
    names = ["userId", "movieId", "Item ID", "zip-code", "pageViews", "campaign_id"]
    lines = [",".join([*names, "isClick", "eventTime"])]
    for i in range(200):
        lines.append(f"{7 * (i % 60)},{i % 70},{i % 80},{i % 90},{i % 100},{i % 110}.0,{i % 2},{1700000000 + i % 97}")
    (tmp_path / "f.csv").write_text("\n".join(lines) + "\n")
    found = inspect(tmp_path / "f.csv")
    assert kinds(found) == {
        **dict.fromkeys(["userId", "movieId", "Item ID", "zip-code"], "category"),
        **{"pageViews": "number", "campaign_id": "left out", "isClick": "label", "eventTime": "time"},
    }
    assert (found.schema.label, found.schema.group, found.schema.time) == ("isClick", "userId", "eventTime")
    assert "written with a fraction (0.0): write whole numbers" in found.text()


def test_what_it_proposes_of_parquet_can_be_read(tmp_path: Path) -> None:
    """Types as databases and data frames write them: decimals without a fraction, text, views."""
    rows = range(200)
    columns = {
        "click": pa.array([str(i % 2) for i in rows]),
        "item_id": pa.array([Decimal(i % 70) for i in rows], pa.decimal128(38, 0)),
        "price": pa.array([f"{i / 7:.2f}" for i in rows]),
        "site": pa.array([f"s{i % 9}" for i in rows], pa.string_view()),
    }
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    found = inspect(tmp_path / "t.parquet")
    assert kinds(found) == {"click": "label", "item_id": "category", "price": "number", "site": "category"}
    with open_reader(tmp_path / "t.parquet", found.schema, batch_size=500).epoch() as epoch:
        batch = next(iter(epoch.streams[0]))
    assert batch.labels.tolist() == [i % 2 for i in rows]
    twice = pa.Table.from_arrays([pa.array([0, 1])] * 3, names=["click", "a", "a"])
    pq.write_table(twice, tmp_path / "twice.parquet")
    with pytest.raises(DataError, match="there are two columns 'a'; rename one of them"):
        inspect(tmp_path / "twice.parquet")


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
