"""`data prepare --valid-share`: a third set beside training and test, from which nothing is measured."""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from sparsefleet.cli.data import app
from sparsefleet.core.errors import ConfigError, DataError
from sparsefleet.core.schema import CRITEO, DenseFeature, Schema, Slot
from sparsefleet.core.schema.kept_values import kept_hashes
from sparsefleet.core.xxh64 import xxh64
from sparsefleet.data.open import open_reader
from sparsefleet.datasets.prepare import FLOAT32_MAX, PrepareSpec, held_out, prepare
from sparsefleet.datasets.split_table import SplitReport, split_table

SCHEMA = Schema(
    dense=(DenseFeature("price", measure="min-max"),),
    slots=(Slot("user"), Slot("site", min_count=3), Slot("price_range", column="price", quantiles=4)),
    label="click",
    group="user",
    time="ts",
)
SETS = ("train", "test", "valid")
THIRDS = PrepareSpec(0.2, 2, valid_share=0.3)


def write(file: Path, rows: int = 1000) -> list[str]:
    draw = random.Random(5)
    lines = [
        f"{i % 2},{1_700_000_000 + i},u{draw.randrange(90)},s{int(draw.expovariate(0.1))},{round(draw.random(), 4)}"
        for i in range(rows)
    ]
    file.write_text("\n".join(["click,ts,user,site,price", *lines]) + "\n")
    return lines


def lines_of(folder: Path) -> list[str]:
    return [line for file in sorted(folder.iterdir()) for line in file.read_text().split()[1:]]


def files_of(folder: Path) -> dict[str, str]:
    found = sorted(file for file in folder.rglob("*") if file.is_file())
    return {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in found}


def prepared(tmp_path: Path, out: str, spec: PrepareSpec, **more: object) -> SplitReport:
    return split_table(tmp_path / "in.csv", tmp_path / out, SCHEMA, spec, **more)  # type: ignore[arg-type]


@given(
    rows=st.integers(1, 3000),
    shares=st.sampled_from([(0.1, 0.1), (0.2, 0.1), (0.0, 0.25), (0.01, 0.5), (0.3, 0.6), (0.1, 1e-5)]),
    seed=st.integers(0, 99),
    cut=st.integers(0, 3000),
)
@settings(max_examples=80, deadline=None)
def test_shares_are_exact_and_the_test_set_stays(rows: int, shares: tuple[float, float], seed: int, cut: int) -> None:
    test_share, valid_share = shares
    spec = PrepareSpec(test_share, seed=seed, valid_share=valid_share)
    held = held_out(np.arange(rows), spec)
    assert not (held.test & held.valid).any()
    assert abs(held.test.sum() - rows * test_share) <= 1
    assert abs(held.valid.sum() - rows * valid_share) <= 2
    assert (held.train == ~(held.test | held.valid)).all()
    without = held_out(np.arange(rows), PrepareSpec(test_share, seed=seed))
    np.testing.assert_array_equal(held.test, without.test)
    assert not without.valid.any()
    parts = [held_out(np.arange(start, stop), spec) for start, stop in ((0, min(cut, rows)), (min(cut, rows), rows))]
    np.testing.assert_array_equal(np.concatenate([part.valid for part in parts]), held.valid)


def test_rows_of_one_time_stay_together_and_leave_room_for_validation(tmp_path: Path) -> None:
    days = [1_700_000_000 + 86_400 * (i * 3 // 1000) for i in range(1000)]
    rows = [f"{i % 2},{day},u{i % 90},s{i % 7},{i / 1000}" for i, day in enumerate(days)]
    (tmp_path / "in.csv").write_text("\n".join(["click,ts,user,site,price", *rows]) + "\n")
    for shares, wanted in (((0.1, 0.1), (334, 333, 333)), ((0.0, 0.1), (667, 0, 333)), ((0.4, 0.1), (0, 0, 0))):
        spec = PrepareSpec(shares[0], valid_share=shares[1])
        out = f"out-{shares[0]}"
        if not any(wanted):
            with pytest.raises(DataError, match="no rows are left to train on"):
                prepared(tmp_path, out, spec, split="time")
            continue
        report = prepared(tmp_path, out, spec, split="time")
        assert (report.train_rows, report.test_rows, report.valid_rows) == wanted
        assert report.from_time == (days[-1] if shares[0] else None)
        assert report.valid_from_time == (days[500] if shares[0] else days[-1])


@pytest.mark.parametrize("split", ["random", "time", "group"])
def test_three_sets_of_a_table(tmp_path: Path, split: str) -> None:
    lines = write(tmp_path / "in.csv")
    report = prepared(tmp_path, "out", THIRDS, split=split)
    found = {name: lines_of(tmp_path / "out" / name) for name in SETS}
    assert sorted(line for one in found.values() for line in one) == sorted(lines)
    assert [len(found[name]) for name in SETS] == [report.train_rows, report.test_rows, report.valid_rows]
    for name, share in (("test", 0.2), ("valid", 0.3)):
        assert len(found[name]) == pytest.approx(share * 1000, abs=2 if split != "group" else 150)
    if split == "time":
        times = {name: [int(line.split(",")[1]) for line in one] for name, one in found.items()}
        assert max(times["train"]) < min(times["valid"]) == report.valid_from_time
        assert max(times["valid"]) < min(times["test"]) == report.from_time
    if split == "group":
        users = [{line.split(",")[2] for line in one} for one in found.values()]
        assert all(users)
        assert sum(map(len, users)) == len(set.union(*users))

    # The test set is the one that there is without; what is measured is of the training rows alone.
    prepared(tmp_path, "two", PrepareSpec(0.2, 2), split=split)
    assert sorted(lines_of(tmp_path / "two" / "test")) == sorted(found["test"])
    schema = Schema.load(tmp_path / "out" / "schema.toml")
    prices = sorted(float(line.split(",")[4]) for line in found["train"])
    assert (schema.dense[0].minimum, schema.dense[0].diff) == pytest.approx((prices[0], prices[-1] - prices[0]))
    middle = schema.slots[2].buckets[1]  # type: ignore[index]
    assert sum(price < middle for price in prices) == pytest.approx(len(prices) / 2, abs=3)
    sites = Counter(line.split(",")[3] for line in found["train"])
    wanted = {xxh64(f"site\x1f{site}".encode()) for site, count in sites.items() if count >= 3}
    assert set(kept_hashes(schema.slots[1].kept or "", "site").tolist()) == wanted
    with open_reader(tmp_path / "out" / "valid", schema, batch_size=2000).epoch() as epoch:
        assert len(next(epoch.streams[0])) == report.valid_rows
    told = json.loads((tmp_path / "out" / "prepare.json").read_text())
    assert told["valid_rows"] == report.valid_rows


@pytest.mark.parametrize("split", ["random", "time", "group"])
def test_any_number_of_workers_writes_the_same_three_sets(tmp_path: Path, split: str) -> None:
    write(tmp_path / "in.csv", 3000)
    made = []
    for workers in (1, 2):
        prepared(tmp_path, f"o{workers}", THIRDS, split=split, workers=workers, item_bytes=20_000)
        made.append(files_of(tmp_path / f"o{workers}"))
    assert made[0] == made[1]
    assert {name.split("/")[0] for name in made[0]} == {*SETS, "prepare.json", "schema.toml"}


def test_without_a_share_nothing_is_told_of_it(tmp_path: Path) -> None:
    write(tmp_path / "in.csv", 100)
    report = prepared(tmp_path, "out", PrepareSpec(0.2, 2))
    assert report.valid_rows is None
    assert not any("valid" in name for name in json.loads((tmp_path / "out" / "prepare.json").read_text()))
    assert not (tmp_path / "out" / "valid").exists()


def test_validation_rows_of_an_earlier_run_do_not_stay(tmp_path: Path) -> None:
    """They would be among the training rows of the later one; a folder that nobody here has made stays."""
    write(tmp_path / "in.csv", 200)
    prepared(tmp_path, "out", THIRDS)
    prepared(tmp_path, "out", PrepareSpec(0.2, 2), overwrite=True)
    assert not (tmp_path / "out" / "valid").exists()
    (tmp_path / "out" / "valid").mkdir()
    prepared(tmp_path, "out", PrepareSpec(0.2, 2), overwrite=True)
    assert (tmp_path / "out" / "valid").exists()


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ((0.1, 1.0), "--valid-share 1.0 must be at least 0 and below 1"),
        ((0.1, -0.1), "--valid-share -0.1 must be at least 0"),
        ((0.5, 0.5), "--test-share 0.5 and --valid-share 0.5 leave no rows to train on: together they must be below 1"),
        ((0.1, float("nan")), "--valid-share nan must be at least 0"),
    ],
)
def test_refuses_shares_that_leave_nothing(shares: tuple[float, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PrepareSpec(shares[0], valid_share=shares[1])


def test_sets_that_came_out_empty_are_told(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("click,ts,user,site,price\n" + "1,5,u,s,1\n0,5,u,s,2\n" * 20)
    with pytest.raises(DataError, match="no rows are left to train on; ask for a smaller --test-share or --valid"):
        prepared(tmp_path, "out", THIRDS, split="time")
    report = prepared(tmp_path, "out", PrepareSpec(0.0, 1, valid_share=1e-9), split="group")
    assert report.valid_rows == 0
    assert report.remarks[-1].startswith("no row is a validation row")


@pytest.mark.parametrize("workers", [1, 2])
def test_rows_without_a_group_are_drawn_one_by_one(tmp_path: Path, workers: int) -> None:
    """As one group, all of them went to one side."""
    lines = "".join(f"{i % 2},{i},{f'u{i % 50}' if i % 4 else ''},s,{i}\n" for i in range(2000))
    (tmp_path / "in.csv").write_text("click,ts,user,site,price\n" + lines)
    report = prepared(tmp_path, "out", PrepareSpec(0.2, 1, valid_share=0.1), split="group", workers=workers)
    users: dict[str, list[str]] = {}
    for side in ("train", "test", "valid"):
        rows = [line.split(",") for line in (tmp_path / "out" / side / "part-0.csv").read_text().splitlines()[1:]]
        users[side] = [row[2] for row in rows]
        for other in users.keys() - {side}:
            assert set(users[side]) & set(users[other]) == {""}
    without = [users[side].count("") for side in ("train", "test", "valid")]
    assert sum(without) == 500
    assert 60 < without[1] < 140
    assert 25 < without[2] < 75
    assert report.remarks[-1:] == [
        "500 of 2,000 rows have no group (an empty 'user'): each was drawn by itself, as --split random draws rows"
    ]


@pytest.mark.parametrize("split", ["random", "group"])
def test_a_share_that_comes_out_as_no_row_is_told(tmp_path: Path, split: str) -> None:
    (tmp_path / "in.csv").write_text("click,ts,user,site,price\n" + "1,5,u,s,1\n0,5,v,s,2\n" * 20)
    report = prepared(tmp_path, "out", PrepareSpec(0.00001, 1), split=split)
    assert report.test_rows == 0
    told = "no row is a test row: --test-share 1e-05 of 40 rows is less than one row; ask for a larger share"
    assert told in report.remarks
    assert not [one for one in prepared(tmp_path, "none", PrepareSpec(0.0, 1), split=split).remarks if "test" in one]


def test_of_criteo_lines_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = "\t".join(["1", *["1"] * 13, *["abcdef01"] * 26])
    (tmp_path / "in").write_text(f"{row}\n" * 20)
    runner = CliRunner()
    result = runner.invoke(
        app, ["prepare", str(tmp_path / "in"), "--out", str(tmp_path / "out"), "--test-share", "0.00001"]
    )
    assert result.exit_code == 0, result.output
    assert "no row is a test row: --test-share 1e-05 of 20 rows is less than one row" in " ".join(result.output.split())


def test_criteo_lines(tmp_path: Path) -> None:
    def row(i: int, number: str) -> str:
        return "\t".join([str(i % 2), number, *["1"] * 12, f"{i:08x}", *["abcdef01"] * 25])

    rows = [row(i, str(i)) for i in range(1000)]
    (tmp_path / "raw").write_text("\n".join(rows) + "\n")
    report = prepare(tmp_path / "raw", tmp_path / "out", PrepareSpec(0.1, 4, valid_share=0.1))
    assert (report.train_rows, report.test_rows, report.valid_rows) == (800, 100, 100)
    found = {
        name: [line for file in sorted((tmp_path / "out" / name).iterdir()) for line in file.read_text().splitlines()]
        for name in SETS
    }
    assert sorted(line for one in found.values() for line in one) == sorted(rows)
    prepare(tmp_path / "raw", tmp_path / "two", PrepareSpec(0.1, 4))
    assert sorted(line for file in (tmp_path / "two" / "test").iterdir() for line in file.read_text().splitlines()) == (
        sorted(found["test"])
    )
    numbers = sorted(int(line.split("\t")[1]) for line in found["train"])
    schema = Schema.load(tmp_path / "out" / "schema.json")
    assert (schema.dense[0].minimum, schema.dense[0].diff) == (numbers[0], numbers[759] - numbers[0])
    assert (report.integers[0].values, report.integers[0].blanks) == (800, 0)
    (tmp_path / "one").write_text(rows[0] + "\n")
    one = next(
        seed for seed in range(99) if not held_out(np.arange(1), PrepareSpec(0.4, 1, seed, valid_share=0.5)).train
    )
    with pytest.raises(DataError, match="no rows are left to train on"):
        prepare(tmp_path / "one", tmp_path / "none", PrepareSpec(0.4, 1, one, valid_share=0.5))


def test_a_number_that_only_a_held_out_sample_has_can_be_read(tmp_path: Path) -> None:
    """Criteo's lines: diff is at least so large that every number fits, of all sets."""

    def row(i: int, number: str) -> str:
        return "\t".join([str(i % 2), number, *["1"] * 12, f"{i:08x}", *["abcdef01"] * 25])

    spec = PrepareSpec(0.1, 1, valid_share=0.3)
    held = held_out(np.arange(50), spec)
    high, low = np.flatnonzero(held.valid)[:2]
    numbers = {int(high): "2e39", int(low): "-4e39"}
    (tmp_path / "raw").write_text("\n".join(row(i, numbers.get(i, "3")) for i in range(50)) + "\n")
    report = prepare(tmp_path / "raw", tmp_path / "out", spec)
    assert report.integers[0].maximum == 3
    schema = Schema.load(tmp_path / "out" / "schema.json")
    assert 4e39 / FLOAT32_MAX <= schema.dense[0].diff < 5e39 / FLOAT32_MAX
    with open_reader(tmp_path / "out" / "valid", schema, batch_size=100).epoch() as epoch:
        assert np.isfinite(next(epoch.streams[0]).dense).all()
    assert schema.slots == CRITEO.slots


def test_as_a_command(tmp_path: Path) -> None:
    write(tmp_path / "in.csv", 400)
    SCHEMA.save(tmp_path / "schema.toml")
    words = ["prepare", str(tmp_path / "in.csv"), "--schema", str(tmp_path / "schema.toml"), "--split", "time"]
    words += ["--valid-share", "0.1", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "training rows  320 in" in done.output
    assert "valid rows     40 in" in done.output
    assert "validation rows are those from 2023-11-14 22:18:40 UTC on, before the test rows" in done.output
