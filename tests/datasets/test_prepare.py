"""Preparing raw files: hand-computed percentiles, an exact split, and every kind of bad input."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from remote_place import URI, place

from sparsefleet.core.errors import BadRowError, ConfigError, DataError
from sparsefleet.core.schema import CRITEO, Schema
from sparsefleet.data.formats import text as text_formats
from sparsefleet.data.formats.base import BadSamples, Chunk, Unit
from sparsefleet.data.formats.criteo import CriteoFormat
from sparsefleet.data.formats.source import open_source
from sparsefleet.datasets.prepare import PrepareSpec, held_out, prepare
from sparsefleet.datasets.quantiles import Quantiles


def row(label: str = "0", integers: dict[int, str] | None = None, mark: str = "68fd1e64") -> str:
    """A row whose integers are 1, save those given by their number (1 to 13)."""
    numbers = [(integers or {}).get(i, "1") for i in range(1, 14)]
    return "\t".join([label, *numbers, mark, *["abcdef01"] * 25])


def write(path: Path, rows: list[str], end: str = "\n") -> Path:
    path.write_bytes(end.join([*rows, ""]).encode())
    return path


def lines_of(folder: Path) -> list[str]:
    return [line for part in sorted(folder.iterdir()) for line in part.read_text().splitlines()]


# --- what comes out ---


def test_hand_computed_normalisation(tmp_path: Path) -> None:
    # I1: 1..20, so the 95 % position is 19. I2: -3, 0 and 18 times 600. I3: blank but for one 7. I4: blank.
    # I5: 1..19 and a huge one: the percentile is 19. I6: constant, so diff is 1.
    rows = []
    for i in range(1, 21):
        integers = {
            1: str(i),
            2: "-3" if i == 5 else "0" if i == 9 else "600",
            3: "7" if i == 12 else "",
            4: "",
            5: str(i) if i < 20 else "23000000",
            6: "4",
        }
        rows.append(row(str(i % 2), integers, f"{i:08x}"))
    report = prepare(write(tmp_path / "raw.txt", rows), tmp_path / "out")
    assert [(s.minimum, s.p95, s.blanks) for s in report.integers[:6]] == [
        (1, 19, 0),
        (-3, 600, 0),
        (7, 7, 19),
        (None, None, 20),
        (1, 19, 0),
        (4, 4, 0),
    ]
    schema = Schema.load(tmp_path / "out" / "schema.json")
    constants = [(f.name, f.minimum, f.diff) for f in schema.dense[:6]]
    assert constants == [
        ("I1", 1, 18),
        ("I2", -3, 603),
        ("I3", 7, 1),
        ("I4", 0, 1),
        ("I5", 1, 18),
        ("I6", 4, 1),
    ]
    assert schema.slots == CRITEO.slots
    assert (report.train_rows, report.test_rows) == (18, 2)


def test_every_row_comes_once_and_in_order(tmp_path: Path) -> None:
    rows = [row(mark=f"{i:08x}") for i in range(1000)]
    raw = write(tmp_path / "raw.txt", rows)
    report = prepare(raw, tmp_path / "out", PrepareSpec(parts=3))
    assert (report.train_rows, report.test_rows) == (900, 100)
    train, test = lines_of(tmp_path / "out" / "train"), lines_of(tmp_path / "out" / "test")
    assert sorted(train + test) == sorted(rows)
    assert test == sorted(test)
    for part in (tmp_path / "out" / "train").iterdir():
        inside = part.read_text().splitlines()
        assert inside == sorted(inside)
        assert len(inside) == 300
    report_file = json.loads((tmp_path / "out" / "prepare.json").read_text())
    assert report_file["train_rows"] == 900


def test_split_depends_on_the_seed_alone(tmp_path: Path) -> None:
    raw = write(tmp_path / "raw.txt", [row(mark=f"{i:08x}") for i in range(500)])
    tests = []
    for name, seed, parts in (("a", 1, 2), ("b", 1, 5), ("c", 2, 2)):
        prepare(raw, tmp_path / name, PrepareSpec(seed=seed, parts=parts))
        tests.append(sorted(lines_of(tmp_path / name / "test")))
    assert tests[0] == tests[1] != tests[2]


def test_blocks_do_not_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = write(tmp_path / "raw.txt", [row(integers={1: str(i)}, mark=f"{i:08x}") for i in range(1800)])
    prepare(raw, tmp_path / "whole", PrepareSpec(parts=3))
    monkeypatch.setattr(text_formats, "BLOCK_BYTES", 700)
    prepare(raw, tmp_path / "pieces", PrepareSpec(parts=3))
    for name in ("train", "test"):
        assert lines_of(tmp_path / "whole" / name) == lines_of(tmp_path / "pieces" / name)
    assert (tmp_path / "whole" / "schema.json").read_text() == (tmp_path / "pieces" / "schema.json").read_text()


@given(
    rows=st.integers(1, 3000),
    share=st.sampled_from([0.1, 0.2, 0.25, 0.01, 0.5, 0.9]),
    seed=st.integers(0, 99),
)
@settings(max_examples=50, deadline=None)
def test_share_is_exact(rows: int, share: float, seed: int) -> None:
    count = int(held_out(np.arange(rows), PrepareSpec(test_share=share, seed=seed)).test.sum())
    assert abs(count - rows * share) <= 1


def test_share_zero_holds_out_nothing(tmp_path: Path) -> None:
    report = prepare(write(tmp_path / "raw", [row()] * 30), tmp_path / "out", PrepareSpec(test_share=0.0))
    assert (report.train_rows, report.test_rows) == (30, 0)
    assert not (tmp_path / "out" / "test").exists()


def test_fewer_rows_than_parts_makes_no_empty_file(tmp_path: Path) -> None:
    prepare(write(tmp_path / "raw", [row()] * 3), tmp_path / "out", PrepareSpec(test_share=0.0, parts=8))
    assert sorted(p.name for p in (tmp_path / "out" / "train").iterdir()) == ["part-0", "part-1", "part-2"]


def test_folder_in_natural_order_with_gz_and_windows_lines(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    write(raw / "part-2", [row(mark="00000002")], end="\r\n")
    write(raw / "part-10", [row(mark="00000010")])
    (raw / "part-1.gz").write_bytes(gzip.compress((row(mark="00000001") + "\n").encode()))
    (raw / "_SUCCESS").write_bytes(b"")
    (raw / ".hidden").write_bytes(b"junk")
    prepare(raw, tmp_path / "out", PrepareSpec(test_share=0.0, parts=1))
    assert [line.split("\t")[14] for line in lines_of(tmp_path / "out" / "train")] == [
        "00000001",
        "00000002",
        "00000010",
    ]
    assert b"\r" not in (tmp_path / "out" / "train" / "part-0").read_bytes()


def test_files_behind_a_uri_are_prepared_alike(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    write(tmp_path / "raw" / "part-0", [row("1", {1: str(i)}, f"{i:08x}") for i in range(30)])
    here = prepare(tmp_path / "raw", tmp_path / "here")
    with place(tmp_path):
        assert prepare(f"{URI}/raw", tmp_path / "folder") == here
        assert prepare(f"{URI}/raw/part-0", tmp_path / "file") == here
        with pytest.raises(DataError, match=f"{URI}/raw/part-1"):
            prepare(f"{URI}/raw/part-1", tmp_path / "none")
    assert lines_of(tmp_path / "folder" / "train") == lines_of(tmp_path / "here" / "train")


def test_last_line_without_newline(tmp_path: Path) -> None:
    (tmp_path / "raw").write_text(row() + "\n" + row("1"))
    prepare(tmp_path / "raw", tmp_path / "out", PrepareSpec(test_share=0.0, parts=1))
    assert (tmp_path / "out" / "train" / "part-0").read_text() == row() + "\n" + row("1") + "\n"


def raw_chunk(folder: Path, rows: list[str], policy: str = "error") -> Chunk:
    file = str(write(folder / "raw-lines", rows))
    (chunk,) = CriteoFormat(max_line=4000).read_raw(open_source(file), BadSamples(policy), file)
    return chunk


def test_unusual_but_good_numbers(tmp_path: Path) -> None:
    integers = {1: "1.5", 2: "-0", 3: "+7", 4: "1e3", 5: "123456789012345678", 6: "", 7: "007"}
    lines = [row(integers=integers, mark="größe")]
    chunk = raw_chunk(tmp_path, lines)
    assert chunk.text == [lines[0].encode()]
    assert chunk.numbers is not None
    assert chunk.numbers[0, :5].tolist() == [1.5, 0.0, 7.0, 1000.0, 123456789012345678.0]
    assert np.isnan(chunk.numbers[0, 5])
    assert chunk.numbers[0, 6] == 7


def test_raw_lines_are_those_of_the_good_samples(tmp_path: Path) -> None:
    good = [row(mark=f"{i:08x}") for i in range(200)]
    mixed = [line for i, line in enumerate(good) for line in (["bad"] * (i % 3) + [line])]
    chunk = raw_chunk(tmp_path, [*mixed, "x" * 5000], "skip")
    assert chunk.text == [line.encode() for line in good]
    assert chunk.lines.tolist() == [mixed.index(line) + 1 for line in good]


NUMBERS = st.one_of(
    st.integers(-(10**20), 10**20).map(str),
    st.floats(-8e307, 8e307).map(repr),
    st.sampled_from(["", "1e-400", "2e39", "1e999", "-3.4e38", "3.5e38", "0e-999", "nan", "1_0", " 1", "+5", "5."]),
)


@settings(max_examples=60, deadline=None)
@given(numbers=st.lists(NUMBERS, min_size=1, max_size=8), keep_constants=st.booleans())
def test_training_reads_just_what_prepare_takes(
    tmp_path_factory: pytest.TempPathFactory, numbers: list[str], keep_constants: bool
) -> None:
    folder = tmp_path_factory.mktemp("numbers")
    raw = write(folder / "raw", [row(), *(row(integers={1: number}) for number in numbers)])
    spec = PrepareSpec(test_share=0.0, parts=1, on_bad_row="skip", keep_constants=keep_constants)
    report = prepare(raw, folder / "out", spec)
    schema, bad = Schema.load(folder / "out" / "schema.json"), BadSamples()
    (chunk,) = CriteoFormat(schema).read(Unit(str(folder / "out" / "train" / "part-0")), bad)
    assert len(chunk.batch) == report.train_rows
    skipping = BadSamples("skip")
    (chunk,) = CriteoFormat(schema).read(Unit(str(raw)), skipping)
    assert (len(chunk.batch), skipping.counts) == (report.train_rows, report.skipped)


def test_numbers_at_the_edge(tmp_path: Path) -> None:
    for number in ("1e-400", "1e999"):  # too small or too large for a double: neither takes it
        raw = write(tmp_path / "raw", [row(), row(integers={1: number})])
        with pytest.raises(BadRowError, match=f"line 2, column 2: not a number: '{number}'"):
            prepare(raw, tmp_path / "out")
    raw = write(tmp_path / "raw", [row(), row(integers={1: "2e39"})])
    for keep_constants in (False, True):
        report = prepare(raw, tmp_path / f"out-{keep_constants}", PrepareSpec(keep_constants=keep_constants))
        assert (report.train_rows + report.test_rows, report.integers[0].maximum) == (2, 2e39)
    raw = write(tmp_path / "raw", [row(integers={1: "-1e308"}), row(integers={1: "1e308"})])
    with pytest.raises(DataError, match=r"I1 goes from -1e.308 to 1e.308, further than a number can say"):
        prepare(raw, tmp_path / "out")


def test_keep_constants(tmp_path: Path) -> None:
    prepare(write(tmp_path / "raw", [row()] * 20), tmp_path / "out", PrepareSpec(keep_constants=True))
    assert Schema.load(tmp_path / "out" / "schema.json") == CRITEO


# --- quantiles ---


@given(st.lists(st.integers(-50, 50), min_size=1, max_size=200), st.sampled_from([0.01, 0.5, 0.95, 1.0]))
@settings(max_examples=100, deadline=None)
def test_quantiles_equal_those_of_sorting(values: list[int], share: float) -> None:
    quantiles = Quantiles()
    for part in np.array_split(np.array(values, np.float64), 3):
        quantiles.add(part)
    assert quantiles.at(share) == np.quantile(values, share, method="inverted_cdf")
    assert quantiles.minimum == min(values)
    assert quantiles.count == len(values)
    assert quantiles.exact


def test_too_many_different_values_cost_little() -> None:
    values = np.random.default_rng(1).lognormal(3, 2, 200_000)
    quantiles = Quantiles(limit=4096)
    for part in np.array_split(values, 100):
        quantiles.add(part)
    assert not quantiles.exact
    # The documented bound: 2 merges' worth of 1/limit each, for as many merges as 3/4 limit new values allow.
    bound = 2 * (200_000 / (0.75 * 4096)) / 4096
    below = float((values <= quantiles.at(0.95)).mean())
    assert 0.95 - 1e-4 <= below <= 0.95 + bound
    assert quantiles.count == 200_000


# --- bad input ---

BAD = {
    "short": ("0\t1\t2", 4, r"wrong field count: 3 where 40 are needed \(label, 13 numbers, 26 categories"),
    "unlabelled": (row().split("\t", 1)[1], 40, "39 where 40 are needed .* labelled=False reads samples without"),
    "long": (row() + "\tmore", 41, "41 where 40 are needed"),
    "blank line": ("", 1, "empty line"),
    "label": (row("2"), 1, "label is not 0 or 1: '2'"),
    "no label": (row(""), 1, "label is not 0 or 1"),
    "word": (row(integers={3: "abc"}), 4, "not a number: 'abc'"),
    "minus": (row(integers={2: "-"}), 3, "not a number: '-'"),
    "inner minus": (row(integers={13: "1-2"}), 14, "not a number: '1-2'"),
    "nan": (row(integers={1: "nan"}), 2, "not a number: 'nan'"),
    "infinite": (row(integers={1: "1e999"}), 2, "not a number: '1e999'"),
    "underscore": (row(integers={1: "1_0"}), 2, "not a number: '1_0'"),
    "space": (row(integers={1: " 1"}), 2, "not a number: ' 1'"),
    "NUL": (row(mark="ab\0c"), 15, "NUL byte"),
    "over-long": (row(mark="a" * 70_000), 1, "over-long line: more than max_line=65536 bytes"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_row_says_where_and_why(tmp_path: Path, name: str) -> None:
    text, column, message = BAD[name]
    raw = write(tmp_path / "raw.txt", [row(), row("1"), text, row()])
    with pytest.raises(BadRowError, match=message) as caught:
        prepare(raw, tmp_path / "out")
    assert (caught.value.file, caught.value.line, caught.value.column) == (str(raw), 3, column)
    assert "raw.txt, line 3" in str(caught.value)
    assert len(str(caught.value)) < 400
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", BAD)
def test_bad_row_is_skipped_and_counted(tmp_path: Path, name: str) -> None:
    raw = write(tmp_path / "raw.txt", [row(), BAD[name][0], row("1"), BAD[name][0]])
    report = prepare(raw, tmp_path / "out", PrepareSpec(test_share=0.0, parts=1, on_bad_row="skip"))
    assert (tmp_path / "out" / "train" / "part-0").read_text() == row() + "\n" + row("1") + "\n"
    assert list(report.skipped.values()) == [2]


def test_invalid_utf8(tmp_path: Path) -> None:
    (tmp_path / "raw").write_bytes(row(mark="@").encode().replace(b"@", b"\xff\xfe") + b"\n")
    with pytest.raises(BadRowError, match=r"line 1, column 15: invalid UTF-8: .*xff"):
        prepare(tmp_path / "raw", tmp_path / "out")


def test_an_endless_line_is_one_bad_sample(tmp_path: Path) -> None:
    (tmp_path / "raw").write_bytes(row().encode() + b"\n" + b"x" * 3_000_000 + b"\n" + row("1").encode() + b"\n")
    report = prepare(tmp_path / "raw", tmp_path / "out", PrepareSpec(test_share=0.0, parts=1, on_bad_row="skip"))
    assert (report.train_rows, report.skipped) == (2, {"over-long line": 1})
    assert (tmp_path / "out" / "train" / "part-0").read_text() == row() + "\n" + row("1") + "\n"


def test_line_numbers_go_on_over_blocks(tmp_path: Path) -> None:
    raw = write(tmp_path / "raw", [row()] * 5000 + [row("x")])
    assert raw.stat().st_size > 2 * text_formats.BLOCK_BYTES
    with pytest.raises(BadRowError, match="line 5001, column 1: label"):
        prepare(raw, tmp_path / "out")


def test_cut_off_gz(tmp_path: Path) -> None:
    noise = np.random.default_rng(1).integers(0, 2**32, 2000)
    packed = gzip.compress("".join(row(mark=f"{n:08x}") + "\n" for n in noise).encode())
    (tmp_path / "raw.gz").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(DataError, match=r"raw.gz: damaged gzip file, .* truncated: fetch or write it again"):
        prepare(tmp_path / "raw.gz", tmp_path / "out")


def test_no_gz_at_all(tmp_path: Path) -> None:
    (tmp_path / "raw.gz").write_text(row())
    with pytest.raises(DataError, match=r"raw.gz: the name ends in .gz but the content is not gzip"):
        prepare(tmp_path / "raw.gz", tmp_path / "out")


def test_missing_and_empty(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nothing: no such file or folder"):
        prepare(tmp_path / "nothing", tmp_path / "out")
    (tmp_path / "folder").mkdir()
    with pytest.raises(DataError, match="the folder holds no data files"):
        prepare(tmp_path / "folder", tmp_path / "out")
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(DataError, match=r"empty is empty \(on_bad_row='skip', or --on-bad-row skip, passes over it\)"):
        prepare(tmp_path / "empty", tmp_path / "out")
    with pytest.raises(DataError, match=r"no usable samples \(empty file: 1\)"):
        prepare(tmp_path / "empty", tmp_path / "out", PrepareSpec(on_bad_row="skip"))
    assert not (tmp_path / "out").exists()


def test_a_link_that_leads_nowhere_is_not_passed_over(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    write(tmp_path / "raw" / "day-0", [row()] * 20)
    (tmp_path / "raw" / "day-1").symlink_to(tmp_path / "moved")
    with pytest.raises(DataError, match=r"day-1: a symbolic link to .*moved, which is not there"):
        prepare(tmp_path / "raw", tmp_path / "out")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"test_share": 1.0}, "--test-share 1.0 must be at least 0 and below 1"),
        ({"test_share": -0.1}, "--test-share -0.1 must be at least 0"),
        ({"parts": 0}, "--parts 0 must lie between 1 and 1000"),
        ({"seed": -1}, "--seed -1 must lie"),
        ({"on_bad_row": "ignore"}, "on_bad_row='ignore' is not a policy; choose error or skip"),
    ],
)
def test_refuses_nonsense(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PrepareSpec(**settings)  # type: ignore[arg-type]


def test_refuses_a_folder_that_is_not_empty(tmp_path: Path) -> None:
    raw = write(tmp_path / "raw", [row()] * 20)
    prepare(raw, tmp_path / "out")
    with pytest.raises(ConfigError, match=r"not empty .*--overwrite"):
        prepare(raw, tmp_path / "out")
    prepare(raw, tmp_path / "out", overwrite=True)


def test_progress_is_in_bytes_of_the_input(tmp_path: Path) -> None:
    raw = write(tmp_path / "raw", [row()] * 20)
    seen: list[tuple[int, int | None]] = []
    prepare(raw, tmp_path / "out", on_progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (raw.stat().st_size, raw.stat().st_size)
