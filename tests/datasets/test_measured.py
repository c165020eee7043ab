"""`quantiles` and `measure`: bounds, minima and diffs that `data prepare` measures on the training rows."""

from __future__ import annotations

import csv
import hashlib
import json
import math
import os
import random
import re
import resource
import tomllib
import tracemalloc
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from sparsefleet.cli.data import app
from sparsefleet.core.errors import ConfigError, DataError
from sparsefleet.core.schema import DenseFeature, Schema, Slot
from sparsefleet.core.schema.text import schema_text, with_measured
from sparsefleet.data.formats import format_for
from sparsefleet.data.open import open_reader
from sparsefleet.data.python_samples import batch_of_samples
from sparsefleet.datasets import measures, value_counts
from sparsefleet.datasets.measures import Moments, codes_of, equal_buckets, numbers_of
from sparsefleet.datasets.prepare import PrepareSpec
from sparsefleet.datasets.split_table import split_table
from sparsefleet.serving.samples import SampleParser
from sparsefleet.serving.versions import schema_difference

SCHEMA = Schema(
    dense=(
        DenseFeature("price", measure="min-max", clip=(0.0, 500.0), function="log1p"),
        DenseFeature("age", measure="standard"),
        DenseFeature("years", column="age", measure="standard", missing=30.0),
    ),
    slots=(
        Slot("site"),
        Slot("price_range", column="price", quantiles=10),
        Slot("age_range", column="age", quantiles=4),
    ),
    label="click",
    group="site",
    time="ts",
)


def write(folder: Path, rows: int, kind: str = "csv", seed: int = 1) -> list[dict[str, Any]]:
    """Two files; prices with a fraction and a heavy tie, ages of which some are missing."""
    draw = random.Random(seed)
    made: list[dict[str, Any]] = []
    for i in range(rows):
        price = 0.1 if i % 3 == 0 else round(draw.expovariate(0.01), 4)
        age = None if draw.random() < 0.2 else 18 + draw.randrange(60)
        made.append({"ts": 1_700_000_000 + i, "site": f"s{i % 9}", "price": price, "age": age, "click": i % 2})
    folder.mkdir()
    for part in range(2):
        mine = made[: rows // 3] if part == 0 else made[rows // 3 :]
        file = folder / f"{part}.{kind}"
        if kind == "parquet":
            pq.write_table(pa.Table.from_pylist(mine), file, row_group_size=100)
        elif kind == "jsonl":
            file.write_text("".join(json.dumps(row) + "\n" for row in mine))
        else:
            lines = [",".join("" if value is None else str(value) for value in row.values()) for row in mine]
            file.write_text("\n".join([",".join(made[0]), *lines]) + "\n")
    return made


def read(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for file in sorted(folder.iterdir()):
        if file.suffix == ".parquet":
            rows += pq.read_table(file).to_pylist()
        elif file.suffix == ".jsonl":
            rows += map(json.loads, file.read_text().splitlines())
        else:
            rows += csv.DictReader(file.open())
    return rows


def files_of(folder: Path) -> dict[str, str]:
    found = sorted(file for file in folder.rglob("*") if file.is_file())
    return {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in found}


NUMBERS = st.one_of(
    st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=200),
    st.lists(st.integers(-5, 5).map(float), max_size=300),
    st.lists(st.floats(-1, 1), min_size=50, max_size=400, unique=True),
)


@settings(max_examples=300, deadline=None)
@given(NUMBERS, st.integers(2, 20), st.integers(1, 7))
@example([0.0] * 95 + [1.0] * 5, 10, 3)
@example([0.0] * 5 + [1.0] * 95, 10, 3)
@example([0.0, -0.0, 5e-324], 2, 1)
def test_bounds_divide_numbers_into_about_equal_parts(numbers: list[float], buckets: int, pieces: int) -> None:
    values, counts = np.unique(codes_of(np.array(numbers, np.float64)), return_counts=True)
    cuts = [len(values) * piece // pieces for piece in range(pieces + 1)]
    tables = [(values[a:b], counts[a:b].astype(np.int64)) for a, b in pairwise(cuts)]
    bounds = equal_buckets(iter(tables), len(numbers), buckets)
    assert bounds == sorted(set(bounds))
    assert len(bounds) < buckets
    rising = np.sort(np.array(numbers, np.float64) + 0.0)
    assert set(bounds) <= set(rising[1:].tolist())
    # No bucket is empty, and each bound is as near to where it should be as numbers that are equal let it be.
    below = np.searchsorted(rising, bounds)
    assert (np.diff([0, *below, len(numbers)]) > 0).all() or not numbers
    possible = np.flatnonzero(np.diff(rising) > 0) + 1
    assert bool(bounds) == bool(len(possible))
    for bucket in range(1, buckets if len(possible) else 1):
        wanted = len(numbers) * bucket / buckets
        assert np.abs(below - wanted).min() == pytest.approx(np.abs(possible - wanted).min())
    if len(set(rising.tolist())) == len(numbers) >= buckets:
        sizes = np.diff([0, *below, len(numbers)])
        assert len(sizes) == buckets
        assert sizes.max() - sizes.min() <= 2


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1))
def test_codes_rise_as_numbers_do(numbers: list[float]) -> None:
    given = np.array(numbers, np.float64)
    codes = codes_of(given)
    np.testing.assert_array_equal(numbers_of(codes), given)
    np.testing.assert_array_equal(np.argsort(codes, kind="stable"), np.argsort(given, kind="stable"))


@settings(deadline=None)
@given(st.lists(st.lists(st.floats(-1e6, 1e6), max_size=50), max_size=5))
def test_moments_are_those_of_all_parts(parts: list[list[float]]) -> None:
    moments = Moments()
    for part in parts:
        moments = moments.plus(Moments.of(np.array(part, np.float64)))
    everything = np.array([one for part in parts for one in part])
    assert moments.count == len(everything)
    if len(everything):
        assert moments.mean == pytest.approx(everything.mean(), rel=1e-9, abs=1e-9)
        assert moments.deviation == pytest.approx(everything.std(), rel=1e-6, abs=1e-6)
        assert (moments.least, moments.greatest) == (everything.min(), everything.max())


def test_a_mean_far_from_zero_costs_no_digits() -> None:
    numbers = 1.7e9 + np.random.default_rng(1).normal(0, 0.001, 50_000)
    moments = Moments()
    for part in np.array_split(numbers, 7):
        moments = moments.plus(Moments.of(part))
    assert moments.deviation == pytest.approx(float(np.std(numbers - 1.7e9)), rel=1e-3)


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("split", ["random", "time"])
def test_what_is_measured_is_of_the_training_rows(tmp_path: Path, kind: str, split: str) -> None:
    write(tmp_path / "in", 900, kind)
    SCHEMA.save(tmp_path / "schema.toml")
    report = split_table(
        tmp_path / "in",
        tmp_path / "out",
        SCHEMA,
        PrepareSpec(0.2, 2),
        split=split,
        schema_file=tmp_path / "schema.toml",
    )
    schema = Schema.load(tmp_path / "out" / "schema.toml")
    rows = read(tmp_path / "out" / "train")
    assert len(rows) == report.train_rows < 900
    prices = np.array([float(row["price"]) for row in rows])
    ages = np.array([float(row["age"]) for row in rows if row["age"] not in ("", None)])
    known = np.array([30.0 if row["age"] in ("", None) else float(row["age"]) for row in rows])
    assert len(ages) < len(rows)
    price, age, years = schema.dense
    logs = np.log1p(np.clip(prices, 0, 500))
    assert (price.minimum, price.diff) == pytest.approx((logs.min(), logs.max() - logs.min()))
    assert (age.minimum, age.diff) == pytest.approx((ages.mean(), ages.std()))
    assert (years.minimum, years.diff) == pytest.approx((known.mean(), known.std()))
    assert [(one.measure, one.measured) for one in schema.dense] == [("min-max", True), *[("standard", True)] * 2]
    of_price, of_age = schema.slots[1:]
    assert (of_price.quantiles, of_age.quantiles) == (10, 4)
    assert of_price.buckets is not None
    assert 0.1 not in of_price.buckets  # a third of all: it is the first bucket
    sizes = np.bincount(np.searchsorted(of_price.buckets, prices, side="right"))
    assert sizes[0] == (prices == 0.1).sum()
    assert 0 < sizes[1] < len(rows) / 10  # up to four tenths
    assert sizes[2:] == pytest.approx(len(rows) / 10, abs=2)
    assert of_age.buckets is not None
    assert len(of_age.buckets) == 3
    assert report.buckets == {"price_range": list(of_price.buckets), "age_range": list(of_age.buckets)}
    assert report.scales["age"] == (age.minimum, age.diff)
    assert not report.remarks
    with open_reader(tmp_path / "out" / "train", schema, batch_size=2000).epoch() as epoch:
        batch = next(epoch.streams[0])
    assert len(batch) == len(rows)
    assert batch.dense[:, 0].min() == 0
    assert batch.dense[:, 0].max() == 1
    here = batch.dense[:, 1][batch.dense[:, 1] != 0]
    assert here.mean() == pytest.approx(0, abs=1e-5)
    assert here.std() == pytest.approx(1, abs=1e-5)
    assert len(np.unique(batch.slot("price_range")[0])) == len(of_price.buckets) + 1


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_any_number_of_workers_measures_the_same(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(value_counts, "MOST_WAITING", 50)  # of one worker alone: it counts through files
    monkeypatch.setattr(value_counts, "TOGETHER", 64)
    write(tmp_path / "in", 3000, kind)
    made = []
    for workers in (1, 2, 3):
        split_table(
            tmp_path / "in", tmp_path / f"o{workers}", SCHEMA, PrepareSpec(0.1, 3), workers=workers, item_bytes=8000
        )
        made.append(files_of(tmp_path / f"o{workers}"))
    assert made[0] == made[1] == made[2]
    assert len(made[0]) == 6


def test_prepared_again_numbers_are_measured_anew_and_comments_stay(tmp_path: Path) -> None:
    text = """# Ours.
format = "sparsefleet-schema"
version = 2
label = "click"

dense = [
  # of the shop
  { name = "price", measure = "min-max" },  # in "euros", { } and [ ]
  { name = 'age', minimum = 7, diff = 8, measure = "standard", missing = 1.5 },  # years
  { name = "raw", column = "price", minimum = 1, diff = 2 },
]

[[slots]]  # the site
name = "site"

[[slots]]
quantiles = 3  # thirds
buckets = [
  5,  # by hand
  6,
]
name = "range"
column = "price"
"""
    write(tmp_path / "in", 300)
    (tmp_path / "schema.toml").write_text(text)

    def prepared(out: str, file: Path, seed: int) -> str:
        split_table(tmp_path / "in", tmp_path / out, Schema.load(file), PrepareSpec(0.3, 1, seed), schema_file=file)
        return (tmp_path / out / "schema.toml").read_text()

    once = prepared("a", tmp_path / "schema.toml", 1)
    schema = Schema.from_text(once, "schema.toml")
    price, age, raw = schema.dense
    assert once == text.replace(
        '"min-max" }', f'"min-max", minimum = {price.minimum!r}, diff = {price.diff!r} }}'
    ).replace(
        'minimum = 7, diff = 8, measure = "standard",',
        f'measure = "standard", minimum = {age.minimum!r}, diff = {age.diff!r},',
    ).replace("buckets = [\n  5,  # by hand\n  6,\n]\n", f"buckets = {list(schema.slots[1].buckets or ())!r}\n")
    assert (raw.minimum, raw.diff) == (1, 2)
    assert price.minimum == 0.1
    again = prepared("b", tmp_path / "a" / "schema.toml", 2)
    assert again != once
    assert prepared("c", tmp_path / "b" / "schema.toml", 1) == once
    schema.save(tmp_path / "schema.json")
    assert Schema.load(tmp_path / "schema.json").to_dict() == schema.to_dict()
    from_json = Schema.from_text(prepared("d", tmp_path / "schema.json", 1), "schema.toml")
    assert from_json.to_dict() == schema.to_dict()


def test_nobody_reads_before_somebody_has_measured(tmp_path: Path) -> None:
    number = replace(SCHEMA, dense=(DenseFeature("price", measure="min-max"),), slots=(Slot("site"),))
    said = r'dense feature \'price\': measure = "min-max" is not measured yet: run `sparsefleet data prepare FILES'
    row = {"ts": 0, "site": "a", "price": 1, "age": 2, "click": 1}
    plain = replace(number, group=None, time=None)
    for schema, words in (
        (
            SCHEMA,
            r"slot 'price_range': quantiles = 10 is not measured yet: run `sparsefleet data prepare FILES --schema",
        ),
        (number, said),
        (plain, said),
    ):
        for format in ("csv", "jsonl"):
            with pytest.raises(ConfigError, match=words):
                format_for(format, schema)
        with pytest.raises(ConfigError, match=words):
            batch_of_samples([{n: row[n] for n in ("click", *schema.fields)}], schema)
        with pytest.raises(ConfigError, match=words):
            SampleParser(schema)
    with pytest.raises(ConfigError, match=said):
        format_for("criteo", plain)
    with pytest.raises(ConfigError, match=r"'price': measure = .* MultiSlot lines hold ready-made keys and numbers"):
        format_for("multislot", plain)
    write(tmp_path / "in", 10, "parquet")
    with pytest.raises(ConfigError, match=said), open_reader(tmp_path / "in", plain).epoch() as epoch:
        next(epoch.streams[0])
    multislot = replace(plain, multislot=("price", "site", "click"))
    with pytest.raises(ConfigError, match="numbers in MultiSlot lines are taken as they are, so nothing is measured"):
        prepare_lines(tmp_path / "ms", "1 5 1 7 1 0\n1 6 1 8 1 1\n", multislot)


def prepare_lines(folder: Path, text: str, schema: Schema) -> Schema:
    folder.mkdir()
    (folder / "in.txt").write_text(text)
    split_table(folder / "in.txt", folder / "out", schema, PrepareSpec(0, 1))
    return Schema.load(folder / "out" / "schema.toml")


def test_settings_that_do_not_go_together() -> None:
    for wrong, said in (
        ({"quantiles": 1}, r"slot 's': quantiles=1 must be a whole number of buckets, 2 to 10,000"),
        ({"quantiles": True}, "must be a whole number of buckets"),
        ({"quantiles": 2.5}, "must be a whole number of buckets"),
        ({"quantiles": 10_001}, "must be a whole number of buckets"),
        ({"quantiles": 4, "keys": True}, "quantiles and keys do not go together; choose one"),
        ({"quantiles": 4, "derive": "hour"}, "quantiles and derive do not go together"),
        ({"quantiles": 4, "cross": ("a", "b")}, "quantiles and cross do not go together"),
        ({"quantiles": 4, "lower": True}, "lower is for values of text; it does not go with quantiles"),
        ({"quantiles": 4, "split": "|"}, "split is for values of text; it does not go with quantiles"),
        ({"quantiles": 4, "min_count": 2}, "min_count is for values of text; it does not go with quantiles"),
        ({"quantiles": 3, "buckets": (1.0, 2.0, 3.0)}, "3 bounds under buckets are too many for quantiles=3"),
        ({"buckets": ()}, r"buckets=\(\) must be a list of rising numbers"),
    ):
        with pytest.raises(ConfigError, match=said):
            Slot("s", **wrong)
    for wrong, said in (
        ({"measure": "minmax"}, r"dense feature 'x': measure='minmax' is not known; choose min-max, standard"),
        ({"measure": "standard", "minimum": 1.0}, "it has a measure and minimum; give both minimum and diff, or none"),
        ({"measure": "standard", "diff": 1.0}, "it has a measure and diff; give both"),
        ({"measure": "standard", "minimum": 1.0, "diff": -1.0}, r"diff=-1.0 must be above 0"),
        ({"diff": 0.0}, r"diff=0.0 must be above 0"),
    ):
        with pytest.raises(ConfigError, match=said):
            DenseFeature("x", **wrong)
    with pytest.raises(ConfigError, match="a schema of version 1 has no transforms, measure"):
        Schema(dense=(DenseFeature("x", 0.0, 1.0, measure="min-max"),), slots=(Slot("s"),), version=1)


def test_numbers_are_the_meaning_and_settings_are_not() -> None:
    """So a model trained on what was measured takes data whose schema has the same numbers, typed by hand."""
    measured = Schema(
        dense=(DenseFeature("x", 1.0, 2.0, measure="standard"),), slots=(Slot("s", buckets=(1.0, 2.0), quantiles=3),)
    )
    typed = Schema(dense=(DenseFeature("x", 1.0, 2.0),), slots=(Slot("s", buckets=(1.0, 2.0)),))
    assert measured == typed
    assert hash(measured) == hash(typed)
    assert schema_difference(measured, typed) == ""
    assert measured.dense[0].plain
    other = replace(measured, slots=(Slot("s", buckets=(1.0, 2.5), quantiles=3),))
    assert other != measured
    assert "buckets" in schema_difference(measured, other)
    assert "normalisation of x" in schema_difference(measured, replace(measured, dense=(DenseFeature("x", 1.0, 3.0),)))
    open_ones = replace(measured, dense=(DenseFeature("x", measure="min-max"),), slots=(Slot("s", quantiles=3),))
    assert open_ones != typed
    assert not open_ones.plain
    assert not open_ones.dense[0].plain
    assert not open_ones.slots[0].plain
    assert open_ones.number_fields == {"x", "s"}
    assert open_ones.to_dict()["dense"] == [{"name": "x", "measure": "min-max"}]
    assert Schema.from_dict(open_ones.to_dict()).to_dict() == open_ones.to_dict()


def test_columns_with_nothing_to_measure_are_told(tmp_path: Path) -> None:
    dense = (
        DenseFeature("five", measure="min-max"),
        DenseFeature("tenth", column="tenth", measure="standard"),
        DenseFeature("none", measure="standard"),
    )
    slots = (Slot("site"), Slot("fives", column="five", quantiles=4), Slot("nones", column="none", quantiles=4))
    schema = Schema(dense=dense, slots=slots, label="click")
    (tmp_path / "in.csv").write_text("click,site,five,tenth,none\n" + "1,a,5,0.1,\n0,b,5,0.1,\n0,b,5,0.1,\n" * 40)
    report = split_table(tmp_path / "in.csv", tmp_path / "out", schema, PrepareSpec(0.1, 1))
    found = Schema.load(tmp_path / "out" / "schema.toml")
    assert [(one.minimum, one.diff) for one in found.dense] == [(5, 1), (0.1, 1), (0, 1)]
    assert [slot.buckets for slot in found.slots] == [None, (), ()]
    assert report.remarks == [
        "slot 'fives': all numbers of the training rows are equal, so there is one bucket",
        "slot 'nones': no training row has a number, so there is one bucket",
        "dense feature 'five': all numbers of the training rows are 5; they become 0 (diff is 1)",
        "dense feature 'tenth': all numbers of the training rows are 0.1; they become 0 (diff is 1)",
        "dense feature 'none': no training row has a number; minimum is 0 and diff 1",
    ]
    with open_reader(tmp_path / "out" / "train", found, batch_size=500).epoch() as epoch:
        batch = next(epoch.streams[0])
    assert (batch.dense == 0).all()
    assert len(np.unique(batch.slot("fives")[0])) == 1
    assert len(batch.slot("nones")[0]) == 0
    assert Schema.from_text((tmp_path / "out" / "schema.toml").read_text(), "schema.toml").to_dict() == found.to_dict()


def test_numbers_that_cannot_be_measured_are_told(tmp_path: Path) -> None:
    schema = Schema(dense=(DenseFeature("x", measure="min-max"),), slots=(Slot("site"),), label="click")
    (tmp_path / "in.csv").write_text("click,site,x\n1,a,1.7e308\n0,a,-1.7e308\n")
    with pytest.raises(
        DataError, match=r"'x': its numbers go from -1.7e\+308 to 1.7e\+308, further than .*; say clip ="
    ):
        split_table(tmp_path / "in.csv", tmp_path / "out", schema, PrepareSpec(0, 1))
    standard = replace(schema, dense=(DenseFeature("x", measure="standard"),))
    (tmp_path / "in.csv").write_text("click,site,x\n1,a,1e-200\n0,a,2e-200\n")
    split_table(tmp_path / "in.csv", tmp_path / "out", standard, PrepareSpec(0, 1))
    feature = Schema.load(tmp_path / "out" / "schema.toml").dense[0]
    assert feature.diff == pytest.approx(1e-200)
    (tmp_path / "in.csv").write_text("click,site,x\n1,a,oops\n")
    for wrong in (standard, replace(schema, dense=(), slots=(Slot("site"), Slot("r", column="x", quantiles=2)))):
        with pytest.raises(DataError, match=r"in\.csv, line 2.*not a number"):
            split_table(tmp_path / "in.csv", tmp_path / "other", wrong, PrepareSpec(0, 1))


def test_a_schema_that_was_written_strangely_is_written_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sparsefleet.datasets import split_table as module

    monkeypatch.setattr(module, "with_measured", lambda text, schema: text)
    write(tmp_path / "in", 60)
    SCHEMA.save(tmp_path / "schema.toml")
    split_table(tmp_path / "in", tmp_path / "out", SCHEMA, PrepareSpec(0, 1), schema_file=tmp_path / "schema.toml")
    assert not Schema.load(tmp_path / "out" / "schema.toml").unmeasured


@pytest.mark.parametrize(
    "text",
    [
        'slots = [{name="a"},{name="b",quantiles=4}]\n',
        'slots = [{ name = "a" }, { quantiles = 4, buckets = [1, # one }\n 2], name = "b" }]\n',
        'slots = [\n  { name = "a, { }]" }, # quantiles = 4, name = "b"\n  { "name" = "b", "quantiles" = 4 },\n]',
        '[[slots]]\nname = "a"\n[[slots]]\nname = "b"\nquantiles = 4',
        '[[slots]] # [[x]]\nname = \'a\'\n\n  [[slots]]\n  buckets = []\n  quantiles=4 # "\n name = """b"""\n[kept]\n',
    ],
)
def test_numbers_find_their_place_however_a_schema_is_written(text: str) -> None:
    first = tomllib.loads(text)["slots"][0]["name"]
    schema = Schema(dense=(), slots=(Slot(first), Slot("b", quantiles=4, buckets=(1.5, 1e300))), label="click")
    head = 'format = "sparsefleet-schema"\nversion = 2\nlabel = "click"\nsparse_feature_dim = 1000001\n'
    head += "hash_seed = 0\ndense = []\n"
    once = with_measured(head + text, schema)
    found = tomllib.loads(once)
    assert Schema.from_dict(found).to_dict() == schema.to_dict()
    assert with_measured(once, schema) == once
    assert len(comments_of(once)) == len(comments_of(head + text)) - text.count("# one }")


def comments_of(text: str) -> list[str]:
    return re.findall(r"#[^\n]*", re.sub(r'"[^"\n]*"', "", text))


def test_csv_whose_fields_hold_line_ends_is_not_split(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text('click,site\n1,"a\nb"\n')
    (tmp_path / "schema.toml").write_text(
        'format = "sparsefleet-schema"\nversion = 2\nlabel = "click"\ncsv = { delimiter = ",", header = true, multil'
        'ine = true }\ndense = []\nslots = [{ name = "site" }]\n'
    )
    schema = Schema.load(tmp_path / "schema.toml")
    with pytest.raises(
        ConfigError, match=r"cannot split CSV whose fields hold line ends \(csv.multiline\); write it w"
    ):
        split_table(tmp_path / "in.csv", tmp_path / "out", schema, PrepareSpec())
    assert not (tmp_path / "out").exists()
    (tmp_path / "in.jsonl").write_text('{"click": 1, "site": "a\\nb"}\n')  # how CSV is written is nothing to it
    assert split_table(tmp_path / "in.jsonl", tmp_path / "out", schema, PrepareSpec(0, 1)).train_rows == 1


def test_a_column_that_a_header_lacks_is_named(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("click;site;price\n1;a;2\n")
    schema = Schema(dense=(DenseFeature("prize", measure="min-max"),), slots=(Slot("site"),), label="click")
    with pytest.raises(DataError, match=r"in\.csv: no column 'prize'; the file has click, site, price"):
        split_table(tmp_path / "in.csv", tmp_path / "out", schema, PrepareSpec())


def test_memory_is_bounded_however_numbers_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Codes of numbers lie close together, where hashes are spread."""
    monkeypatch.setattr(value_counts, "MOST_WAITING", 1000)
    monkeypatch.setattr(value_counts, "TOGETHER", 600)
    numbers = np.random.default_rng(2).random(30_000)
    for worker in range(3):
        counts = value_counts.ValueCounts(tmp_path, [1], f"w{worker}", most_held=500)
        for part in np.array_split(numbers[worker::3], 30):
            counts.add(1, codes_of(part))
        counts.finish()
    total, tables = value_counts.counted_values(tmp_path, 1)
    parts = list(tables)
    assert total == 30_000
    assert max(len(values) for values, _ in parts) <= 600
    np.testing.assert_array_equal(np.concatenate([numbers_of(values) for values, _ in parts]), np.sort(numbers))
    bounds, remark = measures.bounds_of(tmp_path, 1, 100, "x")
    assert remark == ""
    assert len(bounds) == 99
    assert bounds == tuple(np.sort(numbers)[300::300].tolist())
    assert not math.isnan(sum(bounds))


def test_counts_in_many_files_need_few_open_and_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A billion different numbers are some 500 files: more than may be open (often 1,024, two each)."""
    monkeypatch.setattr(value_counts, "TOGETHER", 2000)
    numbers = np.random.default_rng(3).random((100, 2000))
    for part, some in enumerate(numbers):
        counts = value_counts.ValueCounts(tmp_path, [0], f"w{part}")
        counts.add(0, codes_of(some))
        counts.finish()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    tracemalloc.start()
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(limits[0], len(os.listdir("/proc/self/fd")) + 20), limits[1]))
    try:
        total, tables = value_counts.counted_values(tmp_path, 0)
        largest, merged = 0, 0
        for values, _ in tables:
            largest, merged = max(largest, len(values)), merged + len(values)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        tracemalloc.stop()
    assert total == merged == 200_000
    assert largest <= 2000
    assert most < 8 << 20  # places of 100 tables by all their 20,000 ends alone were 37 MB


def test_numbers_of_libsvm_lines(tmp_path: Path) -> None:
    dense = (DenseFeature("price", column="17", measure="min-max"),)
    slots = (Slot("features", keys=True), Slot("range", column="17", quantiles=2))
    schema = Schema(dense=dense, slots=slots, label="click", sparse_feature_dim=0)
    lines = [f"{i % 2} {i % 5}:1" + ("" if i % 4 == 0 else f" 17:{i}.5") for i in range(40)]
    (tmp_path / "in.libsvm").write_text("\n".join(lines) + "\n")
    split_table(tmp_path / "in.libsvm", tmp_path / "out", schema, PrepareSpec(0, 1))
    found = Schema.load(tmp_path / "out" / "schema.toml")
    assert (found.dense[0].minimum, found.dense[0].diff) == (1.5, 38)
    assert found.slots[1].buckets == (21.5,)  # 1, 2, 3, 5 … 19 | 21 … 39


def test_the_numbers_of_a_schema_are_kept_and_what_it_lacks_is_measured(tmp_path: Path) -> None:
    """Tomorrow's data: so that a model goes on with what it has learnt (`train --start-from`)."""
    write(tmp_path / "in", 300)
    write(tmp_path / "more", 600, seed=7)
    counted = replace(SCHEMA, slots=(Slot("site", min_count=30, rare="r"), *SCHEMA.slots[1:]))
    (tmp_path / "schema.toml").write_text(f"# Ours.\n{schema_text(counted, toml=True)}")

    def prepared(rows: str, out: str, file: Path, keep: bool) -> Schema:
        spec = PrepareSpec(0.1, 1, keep_constants=keep)
        split_table(tmp_path / rows, tmp_path / out, Schema.load(file), spec, schema_file=file)
        return Schema.load(tmp_path / out / "schema.toml")

    first = prepared("in", "a", tmp_path / "schema.toml", True)  # there is nothing to keep yet
    assert not first.unmeasured
    assert not first.uncounted
    made = tmp_path / "a" / "schema.toml"
    assert prepared("more", "anew", made, False).to_dict() != first.to_dict()
    assert prepared("more", "kept", made, True).to_dict() == first.to_dict()
    assert (tmp_path / "kept" / "schema.toml").read_text() == made.read_text()
    report = json.loads((tmp_path / "kept" / "prepare.json").read_text())
    assert report["buckets"] == {slot.name: list(slot.buckets or ()) for slot in first.slots[1:]}
    assert report["scales"] == {one.name: [one.minimum, one.diff] for one in first.dense}
    assert report["kept"].keys() == {"site"}
    assert not report["remarks"]

    # One of each kind is new: it is measured, and the others stay.
    more = replace(
        first,
        dense=(DenseFeature("price_2", column="price", measure="standard"), *first.dense),
        slots=(Slot("age_2", column="age", quantiles=3), Slot("s", column="site", min_count=2), *first.slots),
    )
    more.save(tmp_path / "more.toml")
    grown = prepared("more", "grown", tmp_path / "more.toml", True)
    assert grown.dense[1:] == first.dense
    assert grown.slots[2:] == first.slots
    alone = replace(more, dense=more.dense[:1], slots=more.slots[:2])
    alone.save(tmp_path / "alone.toml")
    wanted = prepared("more", "alone", tmp_path / "alone.toml", False)
    assert (grown.dense[0].minimum, grown.dense[0].diff) == (wanted.dense[0].minimum, wanted.dense[0].diff)
    assert [(slot.buckets, slot.kept) for slot in grown.slots[:2]] == [
        (slot.buckets, slot.kept) for slot in wanted.slots
    ]
    with open_reader(tmp_path / "grown" / "train", grown, batch_size=1000).epoch() as epoch:
        assert len(next(epoch.streams[0])) == 540


def test_kept_numbers_as_a_command(tmp_path: Path) -> None:
    write(tmp_path / "in", 200)
    SCHEMA.save(tmp_path / "schema.toml")
    words = ["prepare", str(tmp_path / "in"), "--keep-constants", "--out"]
    once = CliRunner().invoke(app, [*words, str(tmp_path / "a"), "--schema", str(tmp_path / "schema.toml")])
    assert once.exit_code == 0, once.output
    assert "as the schema had it" not in once.output
    again = CliRunner().invoke(app, [*words, str(tmp_path / "b"), "--schema", str(tmp_path / "a" / "schema.toml")])
    assert again.exit_code == 0, again.output
    assert again.output.count("as the schema had it") == 5
