"""`min_count`: rare values, counted by `data prepare` exactly, whoever counts; and the split by many processes."""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparsefleet.core.errors import BadRowError, ConfigError, DataError
from sparsefleet.core.schema import Schema, Slot
from sparsefleet.core.schema.kept_values import kept_hashes, kept_text
from sparsefleet.core.xxh64 import xxh64
from sparsefleet.data.formats import format_for
from sparsefleet.data.formats.base import BadSamples, Unit
from sparsefleet.data.open import open_reader
from sparsefleet.data.python_samples import batch_of_samples
from sparsefleet.datasets import value_counts
from sparsefleet.datasets.prepare import PrepareSpec
from sparsefleet.datasets.split_table import split_table
from sparsefleet.datasets.value_counts import ValueCounts, frequent_values
from sparsefleet.kernels.reference import records as twin
from sparsefleet.serving.samples import SampleParser

SLOTS = (
    Slot("site", min_count=3, rare="rare"),
    Slot("tags", split="|", lower=True, min_count=2),
    Slot("item", min_count=2, missing="none"),
    Slot("pair", cross=("site", "item")),
)
SCHEMA = Schema(dense=(), slots=SLOTS, label="click", group="site", time="ts")


def key(slot: str, text: str) -> int:
    return xxh64(f"{slot}\x1f{text}".encode())


def counted(schema: Schema, **kept: list[str]) -> Schema:
    def of(slot: Slot) -> Slot:
        if slot.name not in kept:
            return slot
        hashes = np.array([key(slot.name, text) for text in kept[slot.name]], np.uint64)
        return replace(slot, kept=kept_text(slot, schema.hash_seed, hashes))

    return replace(schema, slots=tuple(of(slot) for slot in schema.slots))


def write(folder: Path, rows: int, seed: int = 1) -> list[dict[str, object]]:
    draw = random.Random(seed)
    made: list[dict[str, object]] = []
    for i in range(rows):
        tags = "|".join(draw.choice("aAbBcdefg") + str(draw.randrange(90)) for _ in range(draw.randrange(4)))
        item = draw.choice(["", f"i{int(draw.expovariate(0.1))}"])
        site = f"s{int(draw.expovariate(0.08))}"
        made.append({"ts": 1_700_000_000 + i, "site": site, "tags": tags, "item": item, "click": i % 2})
    folder.mkdir()
    for part in range(2):
        mine = made[: rows // 3] if part == 0 else made[rows // 3 :]
        lines = [",".join(made[0]), *(",".join(map(str, row.values())) for row in mine)]
        (folder / f"{part}.csv").write_text("\n".join(lines) + "\n")
    return made


def files_of(folder: Path) -> dict[str, str]:
    found = sorted(file for file in folder.rglob("*") if file.is_file())
    return {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in found}


def test_rare_values_become_one_or_are_missing() -> None:
    schema = counted(SCHEMA, site=["a"], tags=["x"], item=["i"]).folded(0)
    rows = [
        {"site": "a", "tags": "X|y|x", "item": "i", "click": 1, "ts": 0},
        {"site": "b", "tags": "y", "item": "j", "click": 0, "ts": 0},
        {"site": "rare", "tags": "", "item": "", "click": 0, "ts": 0},
    ]
    batch = batch_of_samples(rows, schema)
    bags = [batch.keys[a:b].tolist() for a, b in zip(batch.offsets, batch.offsets[1:], strict=False)]
    rare, none = key("site", "rare"), key("item", "none")
    assert bags[0:3] == [[key("site", "a")], [key("tags", "x")] * 2, [key("item", "i")]]
    assert bags[4:7] == [[rare], [], [none]]
    assert bags[8:11] == [[rare], [], [none]]
    assert len(bags[3]) == len(bags[7]) == 1
    assert bags[7] == bags[11] != bags[3]  # a cross is made of what is left
    assert SampleParser(schema).samples([{n: row[n] for n in schema.fields} for row in rows]).keys.tolist() == (
        batch.keys.tolist()
    )
    from sparsefleet.data.formats.tables import TableAssembler, batch_of_columns

    assembler = TableAssembler(schema, features_only=True)
    columns = {name: [row[name] for row in rows] for name in assembler.plan.fields}
    from sparsefleet.data.formats.tables import _of_objects

    table = [_of_objects(columns[name], name) for name in assembler.plan.fields]
    out, reasons, _ = twin.Assembler(assembler.plan).rows(table, len(rows))
    assert not reasons.any()
    assert batch_of_columns(out, schema).keys.tolist() == batch.keys.tolist()


def test_nobody_reads_before_somebody_has_counted(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"slot 'site' has a min_count, and its values are not counted yet: `sparse"):
        format_for("csv", SCHEMA)
    with pytest.raises(ConfigError, match="not counted yet"):
        batch_of_samples([{"site": "a", "tags": "", "item": "", "click": 1, "ts": 0}], SCHEMA)


def test_a_schema_that_was_edited_after_counting_is_refused(tmp_path: Path) -> None:
    schema = counted(SCHEMA, site=["a"], tags=["x"], item=["i"])
    for name in ("schema.toml", "schema.json"):
        schema.save(tmp_path / name)
        assert Schema.load(tmp_path / name) == schema
    text = (tmp_path / "schema.toml").read_text()
    (tmp_path / "schema.toml").write_text(text.replace("min_count = 3", "min_count = 4"))
    with pytest.raises(ConfigError, match=r"slot 'site': its kept values were counted with another min_count"):
        Schema.load(tmp_path / "schema.toml")
    (tmp_path / "schema.toml").write_text(text.replace('"site" = "', '"site" = "0'))
    with pytest.raises(ConfigError, match="its kept values are damaged"):
        Schema.load(tmp_path / "schema.toml")
    for wrong, said in (
        ({"min_count": 0}, "must be a whole number, 1 or above"),
        ({"min_count": 2, "keys": True}, "min_count is for values of text; it does not go with keys"),
        ({"min_count": 2, "cross": ("a", "b")}, "give it to the slots that are crossed"),
        ({"rare": "x"}, "rare is for slots with min_count"),
    ):
        with pytest.raises(ConfigError, match=said):
            Slot("s", **wrong)


@pytest.mark.parametrize("split", ["random", "time", "group"])
def test_counts_are_those_of_the_training_rows(tmp_path: Path, split: str) -> None:
    write(tmp_path / "in", 900)
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
    lines = [
        line.split(",") for file in (tmp_path / "out" / "train").iterdir() for line in file.read_text().split()[1:]
    ]
    sites = Counter(line[1] for line in lines)
    tags = Counter(tag for line in lines for tag in line[2].lower().split("|") if tag)
    items = Counter(line[3] or "none" for line in lines)
    for slot, counts, least in ((0, sites, 3), (1, tags, 2), (2, items, 2)):
        name = SLOTS[slot].name
        wanted = {key(name, text) for text, count in counts.items() if count >= least}
        assert set(kept_hashes(schema.slots[slot].kept or "", name).tolist()) == wanted
        assert report.kept[name] == len(wanted) < len(counts)
    with open_reader(tmp_path / "out" / "train", schema, batch_size=2000).epoch() as epoch:
        batch = next(epoch.streams[0])
    assert len(batch) == report.train_rows
    # Prepared again from what was prepared: the old counts go.
    again = split_table(
        tmp_path / "out" / "train",
        tmp_path / "again",
        schema,
        PrepareSpec(0, 1),
        schema_file=tmp_path / "out" / "schema.toml",
    )
    assert again.kept == report.kept
    assert (tmp_path / "again" / "schema.toml").read_text() == (tmp_path / "out" / "schema.toml").read_text()


@pytest.mark.parametrize("split", ["random", "time"])
def test_any_number_of_workers_writes_the_same_files(tmp_path: Path, split: str) -> None:
    write(tmp_path / "in", 3000)
    made = []
    for workers in (1, 3) if split == "random" else (1, 2):
        told: list[tuple[int, int | None]] = []
        split_table(
            tmp_path / "in",
            tmp_path / f"out-{workers}",
            SCHEMA,
            PrepareSpec(0.1, 3, seed=5),
            split=split,
            workers=workers,
            item_bytes=8000,
            on_progress=lambda done, total, told=told: told.append((done, total)),
        )
        assert told[-1][0] == told[-1][1]
        assert [done for done, _ in told] == sorted(done for done, _ in told)
        made.append(files_of(tmp_path / f"out-{workers}"))
    assert made[0] == made[1]
    assert len(made[0]) == 6
    report = json.loads((tmp_path / "out-1" / "prepare.json").read_text())
    assert report["train_rows"] + report["test_rows"] == 3000
    assert abs(report["test_rows"] - 300) < 15
    lines = [line for part in range(3) for line in (tmp_path / f"out-1/train/part-{part}.csv").read_text().split()[1:]]
    lines += list((tmp_path / "out-1/test/part-0.csv").read_text().split()[1:])
    source = [line for part in range(2) for line in (tmp_path / f"in/{part}.csv").read_text().split()[1:]]
    assert sorted(lines) == sorted(source)


def test_parquet_by_many_workers(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for part in range(3):
        rows = [{"site": f"s{i % (20 + part)}", "tags": "", "item": "", "click": i % 2, "ts": i} for i in range(300)]
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "in" / f"{part}.parquet", row_group_size=100)
    made = []
    for workers in (1, 2):
        split_table(
            tmp_path / "in", tmp_path / f"o{workers}", SCHEMA, PrepareSpec(0.1, 2), workers=workers, item_bytes=1
        )
        made.append(files_of(tmp_path / f"o{workers}"))
    assert made[0] == made[1]
    assert sum(pq.read_metadata(file).num_rows for file in (tmp_path / "o1" / "train").iterdir()) == 810


@pytest.mark.parametrize("workers", [1, 2])
def test_the_first_bad_row_is_told_whoever_finds_it(tmp_path: Path, workers: int) -> None:
    write(tmp_path / "in", 2000)
    text = (tmp_path / "in" / "1.csv").read_text().split("\n")
    text[700], text[1200] = "oops", "oops, too"
    (tmp_path / "in" / "1.csv").write_text("\n".join(text))
    with pytest.raises((BadRowError, DataError), match=r"1\.csv, line 701"):
        split_table(tmp_path / "in", tmp_path / "out", SCHEMA, PrepareSpec(), workers=workers, item_bytes=10_000)
    assert not (tmp_path / "out").exists()
    report = split_table(
        tmp_path / "in",
        tmp_path / "out",
        SCHEMA,
        PrepareSpec(on_bad_row="skip"),
        workers=workers,
        item_bytes=10_000,
    )
    assert report.skipped == {"wrong field count": 2}
    assert report.train_rows + report.test_rows == 1998


def test_counting_that_does_not_fit_into_memory_is_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(value_counts, "MOST_WAITING", 1000)
    draw = np.random.default_rng(1)
    values = draw.zipf(1.3, 20_000).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for worker in range(3):
        counts = ValueCounts(tmp_path, [4], f"w{worker}", most_held=500)
        for part in np.array_split(values[worker::3], 30):
            counts.add(4, part)
        counts.finish()
    assert len(list(tmp_path.glob("*.values"))) > 6
    unique, number = np.unique(values, return_counts=True)
    for least in (1, 2, 10):
        np.testing.assert_array_equal(frequent_values(tmp_path, 4, least), unique[number >= least])


def test_units_of_text_are_read_raw(tmp_path: Path) -> None:
    write(tmp_path / "in", 300)
    file = str(tmp_path / "in" / "1.csv")
    format = format_for("csv", replace(SCHEMA, slots=(Slot("site"),)))
    size = Path(file).stat().st_size
    cuts = [0, 7, 100, 101, size // 2, size - 1]
    units = [Unit(file, a, b) for a, b in zip(cuts, [*cuts[1:], None], strict=True)]
    lines = [line for unit in units for chunk in format.read_raw_unit(unit, BadSamples()) for line in chunk.text or ()]
    assert lines == Path(file).read_bytes().split(b"\n")[1:-1]
