"""Criteo and MultiSlot files: rows, cuts, resuming, gzip, and what bad input gets."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparsefleet.core.batch import Batch, Mark
from sparsefleet.core.errors import BadRowError, ConfigError, DataError
from sparsefleet.core.schema import CRITEO, DenseFeature, Schema, Slot
from sparsefleet.data.formats import FORMATS, can_be_cut, format_class, format_for, format_help, guess_format, text
from sparsefleet.data.formats.base import CHUNK_SAMPLES, BadSamples, Chunk, Format, FormatOptions, Head, Unit
from sparsefleet.data.formats.criteo import CriteoFormat
from sparsefleet.data.formats.multislot import MultiSlotFormat, default_layout
from sparsefleet.kernels.text import feature_key

SMALL = Schema(dense=(DenseFeature("x", 0.0, 2.0),), slots=(Slot("a"), Slot("b")), sparse_feature_dim=0)


def criteo_line(i: int, label: str | None = None) -> str:
    numbers = [str(i % 50 + k) if (i + k) % 5 else "" for k in range(13)]
    categories = [f"{(i * 31 + k) % 1000:08x}" for k in range(26)]
    return "\t".join([str(i % 2) if label is None else label, *numbers, *categories])


def small_line(i: int) -> str:
    return f"{i % 2}\t{i}\ta{i}\tb{i % 3}"


def slots_line(i: int) -> str:
    bag = " ".join(str(i + k) for k in range(i % 3 + 1))
    return f"1 {i / 4} {i % 3 + 1} {bag} 1 {i} 1 {i % 2}"


def write(path: Path, lines: list[str], end: str = "\n", last: bool = True) -> str:
    path.write_bytes((end.join(lines) + (end if last and lines else "")).encode())
    return str(path)


def rows_of(chunks: Iterator[Chunk]) -> list[tuple[float, list[float], list[list[int]]]]:
    rows = []
    for chunk in chunks:
        batch, width = chunk.batch, len(chunk.batch.slots)
        assert len(chunk.lines) == len(batch)
        for row in range(len(batch)):
            ends = batch.offsets[row * width : (row + 1) * width + 1].tolist()
            bags = [batch.keys[b:e].tolist() for b, e in pairwise(ends)]
            rows.append((float(batch.labels[row]), batch.dense[row].tolist(), bags))
    return rows


def read_all(form: Format, file: str, policy: str = "error") -> list[tuple[float, list[float], list[list[int]]]]:
    return rows_of(form.read(Unit(file), BadSamples(policy)))


each_format = pytest.mark.parametrize(
    ("form", "line"),
    [(CriteoFormat(SMALL), small_line), (MultiSlotFormat(SMALL), slots_line)],
    ids=["criteo", "multislot"],
)


# ---- rows ----


def test_criteo_rows(tmp_path: Path) -> None:
    file = write(tmp_path / "part-0", [criteo_line(i) for i in range(100)])
    (chunk,) = CriteoFormat().read(Unit(file), BadSamples())
    batch = chunk.batch
    assert len(batch) == 100
    assert batch.slots == CRITEO.slot_names
    assert batch.labels.tolist() == [i % 2 for i in range(100)]
    assert batch.offsets.tolist() == list(range(100 * 26 + 1))
    keys, _ = batch.slot("C3")
    assert keys[7] == feature_key(b"%08x" % ((7 * 31 + 2) % 1000), b"16", 0, 1000001)
    assert batch.dense[7, 1] == np.float32((8 - -3) / 603)
    assert batch.dense[7, 3] == 0
    assert chunk.lines.tolist() == list(range(1, 101))
    assert chunk.ends is not None
    assert chunk.ends[-1] == os.path.getsize(file)


def test_large_files_come_in_chunks_of_their_own_memory(tmp_path: Path) -> None:
    rows = 2 * CHUNK_SAMPLES + 5
    file = write(tmp_path / "part-0", [small_line(i) for i in range(rows)])
    chunks = list(CriteoFormat(SMALL).read(Unit(file), BadSamples()))
    assert [len(c.batch) for c in chunks] == [CHUNK_SAMPLES, CHUNK_SAMPLES, 5]
    joined = Batch.concat([c.batch for c in chunks])
    assert (joined.dense[:, 0] == np.arange(rows, dtype=np.float32) / 2).all()
    assert chunks[2].lines.tolist() == list(range(2 * CHUNK_SAMPLES + 1, rows + 1))
    for a, b in pairwise(chunks):
        assert not np.shares_memory(a.batch.keys, b.batch.keys)
        assert not np.shares_memory(a.batch.offsets, b.batch.offsets)


@each_format
@pytest.mark.parametrize("block", [64, 100, 1000])
def test_rows_do_not_depend_on_the_block_size(
    form: Format, line, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path / "part-0", [line(i) for i in range(300)], end="\r\n", last=False)
    whole = read_all(form, file)
    assert len(whole) == 300
    monkeypatch.setattr(text, "BLOCK_BYTES", block)
    short = type(form)(SMALL, max_line=60)
    assert read_all(short, file) == whole


@each_format
def test_gzip_gives_the_same_rows(form: Format, line, tmp_path: Path) -> None:
    plain = write(tmp_path / "part-0", [line(i) for i in range(500)])
    raw = Path(plain).read_bytes()
    packed = tmp_path / "part-0.gz"
    packed.write_bytes(gzip.compress(raw[:3000]) + gzip.compress(raw[3000:]))  # two members
    assert read_all(form, str(packed)) == read_all(form, plain)
    renamed = packed.rename(tmp_path / "renamed")
    assert read_all(form, str(renamed)) == read_all(form, plain)
    (chunk,) = form.read(Unit(str(renamed)), BadSamples())
    assert chunk.ends is None


def test_multislot_keys_fold_and_a_layout_reorders(tmp_path: Path) -> None:
    file = write(tmp_path / "part-0", ["2 7 8 1 0 1 1.5 1 12"])
    schema = SMALL.folded(5)
    layout = [("b", "sparse"), ("label", "label"), ("x", "dense"), ("a", "sparse")]
    (row,) = read_all(MultiSlotFormat(schema, layout=layout), file)
    assert row == (0.0, [1.5], [[2], [2, 3]])
    without = MultiSlotFormat(SMALL, labelled=False)
    (row,) = read_all(without, write(tmp_path / "part-1", ["1 1.5 1 12 2 7 8"]))
    assert np.isnan(row[0])
    assert row[1:] == ([1.5], [[12], [7, 8]])


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ([("x", "dense"), ("a", "sparse"), ("label", "label")], "missing: b"),
        ([*default_layout(SMALL), ("a", "sparse")], "twice: a"),
        ([*default_layout(SMALL), ("c", "sparse")], "'c' is no sparse slot of the schema; it has a, b"),
        ([("x", "numbers")], "kind 'numbers'; choose dense, sparse or label"),
        ([*default_layout(SMALL), ("label", "label")], "2 labels"),
    ],
)
def test_layouts_that_do_not_fit(layout: list[tuple[str, str]], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MultiSlotFormat(SMALL, layout=layout)


# ---- cuts and resuming ----


@each_format
@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=30),
    pieces=st.integers(1, 12),
    feed=st.sampled_from(["\n", "\r\n"]),
    last=st.booleans(),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_byte_ranges_hold_each_row_once(
    form: Format, line, lengths: list[int], pieces: int, feed: str, last: bool, tmp_path: Path
) -> None:
    file = write(tmp_path / "part-0", [line(n) for n in lengths], feed, last)
    units = form.plan([file], pieces)
    assert len(units) >= min(pieces, os.path.getsize(file))
    parts = [row for unit in units for row in rows_of(form.read(unit, BadSamples()))]
    assert parts == read_all(form, file)
    assert len(parts) == len(lengths)


def test_plan(tmp_path: Path) -> None:
    form = CriteoFormat(SMALL)
    files = [write(tmp_path / f"part-{i}", [small_line(k) for k in range(10 * (i + 1))]) for i in range(2)]
    assert form.plan(files, 1) == form.plan(files, 2) == [Unit(file) for file in files]
    units = form.plan(files, 6)
    assert len(units) >= 6
    assert [u.file for u in units] == sorted(u.file for u in units)
    packed = tmp_path / "part-2.gz"
    packed.write_bytes(gzip.compress(b"0\t1\ta\tb\n" * 100))
    assert form.plan([str(packed)], 4) == [Unit(str(packed))]


@each_format
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_resume_after_every_row(form: Format, line, packed: bool, tmp_path: Path) -> None:
    lines = [line(i) for i in range(40)]
    lines[5] = lines[17] = lines[39] = "junk"
    file = write(tmp_path / "part-0", lines, last=False)
    if packed:
        Path(file).write_bytes(gzip.compress(Path(file).read_bytes()))
    for unit in form.plan([file], 1 if packed else 3):
        chunks = list(form.read(unit, BadSamples("skip")))
        rows = rows_of(iter(chunks))
        (chunk,) = chunks
        for done in range(len(rows)):
            offset = -1 if chunk.ends is None else int(chunk.ends[done])
            mark = Mark(0, int(chunk.lines[done]), offset)
            rest = list(form.read(unit, BadSamples("skip"), mark))
            assert rows_of(iter(rest)) == rows[done + 1 :]
            if rest:
                assert rest[0].lines.tolist() == chunk.lines[done + 1 :].tolist()
        assert list(form.read(unit, BadSamples("skip"), Mark(0, len(rows), done=True))) == []


def test_resume_in_a_file_that_changed(tmp_path: Path) -> None:
    form = CriteoFormat(SMALL)
    file = write(tmp_path / "part-0", [small_line(i) for i in range(10)])
    for offset in (5, 10**6):
        with pytest.raises(DataError, match=f"cannot go on at byte {offset}.*has changed since"):
            list(form.read(Unit(file), BadSamples(), Mark(0, 3, offset)))
    packed = tmp_path / "part-1.gz"
    packed.write_bytes(gzip.compress(b"0\t1\ta\tb\n" * 4))
    with pytest.raises(DataError, match="cannot go on after sample 9: there are only 4"):
        list(form.read(Unit(str(packed)), BadSamples(), Mark(0, 9)))


# ---- what bad input gets ----

BAD = [
    ("0\t1\ta", "line 3, column 4: wrong field count: 3 where 4 are needed", "wrong field count"),
    ("0\t1\ta\tb\tc", "line 3, column 5: wrong field count: 5 where 4 are needed", "wrong field count"),
    ("2\t1\ta\tb", "line 3, column 1: label is not 0 or 1: '2'", "label is not 0 or 1"),
    ("0\tten\ta\tb", "line 3, column 2: not a number: 'ten'", "not a number"),
    (
        "0\t1e50\ta\tb",
        "line 3, column 2: number too large for float32: '1e50'",
        "number too large for float32",
    ),
    (
        "0\t1\ta" + "a" * 200 + "\tb",
        "line 3, column 1: over-long line: more than max_line=100",
        "over-long line",
    ),
    ("0\t1\ta\0\tb", r"line 3, column 3: NUL byte: 'a\\x00'", "NUL byte"),
    ("0\t1\ta\tb\udcff", r"line 3, column 4: invalid UTF-8: 'b\\\\xff'", "invalid UTF-8"),
    ("", "line 3, column 1: empty line", "empty line"),
]


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize(("bad", "message", "reason"), BAD, ids=[b[2] for b in BAD])
def test_bad_criteo_rows(bad: str, message: str, reason: str, packed: bool, tmp_path: Path) -> None:
    lines = [small_line(0), small_line(1), bad, small_line(3)]
    raw = "\n".join(lines).encode(errors="surrogateescape") + b"\n"
    file = tmp_path / "part-0"
    file.write_bytes(gzip.compress(raw) if packed else raw)
    form = CriteoFormat(SMALL, max_line=100)
    stream = form.read(Unit(str(file)), BadSamples())
    assert len(next(stream).batch) == 2  # what was fine comes first
    with pytest.raises(BadRowError, match=message) as caught:
        next(stream)
    assert str(file) in str(caught.value)
    assert "(on_bad_row='skip', or --on-bad-row skip, counts and skips such rows)" in str(caught.value)
    assert (caught.value.line, caught.value.reason) == (3, reason)

    bad_samples = BadSamples("skip")
    (chunk,) = form.read(Unit(str(file)), bad_samples)
    assert chunk.lines.tolist() == [1, 2, 4]
    assert bad_samples.counts == {reason: 1}


def test_unlabelled_rows_are_named(tmp_path: Path) -> None:
    file = write(tmp_path / "test", ["1\ta\tb"])
    with pytest.raises(BadRowError, match="labelled=False reads samples without a label"):
        read_all(CriteoFormat(SMALL), file)
    (row,) = read_all(CriteoFormat(SMALL, labelled=False), file)
    assert np.isnan(row[0])
    assert row[1] == [0.5]


def test_bad_multislot_row(tmp_path: Path) -> None:
    lines = [slots_line(0), "1 0.5 1 7 1 8 1 3", "1 0.5 0 1 8 1 1", "2 1 1 1 7 1 8 1 1", "1 1 1 7"]
    file = write(tmp_path / "part-0", lines)
    form = MultiSlotFormat(SMALL)
    with pytest.raises(BadRowError, match="line 2, column 8: label is not 0 or 1: '3'"):
        read_all(form, file)
    bad_samples = BadSamples("skip")
    assert len(rows_of(form.read(Unit(file), bad_samples))) == 1
    assert bad_samples.counts == {
        "label is not 0 or 1": 1,
        "zero values in a slot": 1,
        "wrong number of values in a slot": 1,
        "line ends too early": 1,
    }
    with pytest.raises(BadRowError, match=r"column 1: wrong number of values in a slot: 2 where .* have 1: '2'"):
        read_all(form, write(tmp_path / "part-1", [lines[3]]))
    with pytest.raises(BadRowError, match="column 5: line ends too early: the layout has 4 slots"):
        read_all(form, write(tmp_path / "part-2", [lines[4]]))


def test_line_numbers_are_the_files_even_in_a_byte_range(tmp_path: Path) -> None:
    lines = [small_line(i) for i in range(50)]
    lines[41] = "junk"
    file = write(tmp_path / "part-0", lines)
    form = CriteoFormat(SMALL)
    units = form.plan([file], 4)
    assert len(units) == 4
    assert len(next(form.read(units[0], BadSamples())).batch) > 10
    with pytest.raises(BadRowError, match="line 42, column 2"):
        list(form.read(units[3], BadSamples()))
    start = sum(len(line) + 1 for line in lines[:45])
    with pytest.raises(BadRowError, match="line 42"):
        list(form.read(Unit(file), BadSamples(), Mark(0, 30, start - sum(len(x) + 1 for x in lines[30:45]))))


def test_an_over_long_line_is_not_held_in_memory(tmp_path: Path) -> None:
    file = tmp_path / "part-0"
    file.write_bytes(b"0\t1\ta\tb\n" + b"x" * 3_000_000 + b"\n1\t2\tc\td\n")
    bad_samples = BadSamples("skip")
    form = CriteoFormat(SMALL)
    rows = rows_of(form.read(Unit(str(file)), bad_samples))
    assert [row[0] for row in rows] == [0, 1]
    assert bad_samples.counts == {"over-long line": 1}
    for unit in form.plan([str(file)], 5):
        list(form.read(unit, bad_samples))
    assert bad_samples.counts == {"over-long line": 2}


def test_truncated_and_corrupt_gzip(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lines = [f"{i % 2}\t{i}\t{rng.integers(2**60):x}\tb" for i in range(5000)]
    raw = gzip.compress("\n".join(lines).encode() + b"\n")
    form = CriteoFormat(SMALL)
    for name, content, message in (
        ("cut.gz", raw[: len(raw) // 2], "readable up to byte .*; the file is truncated"),
        ("flip.gz", raw[: len(raw) // 2] + b"\xff" * 50 + raw[len(raw) // 2 + 50 :], "damaged gzip file"),
        ("tail.gz", raw + b"garbage", "damaged gzip file"),
    ):
        file = tmp_path / name
        file.write_bytes(content)
        with pytest.raises(DataError, match=message) as caught:
            list(form.read(Unit(str(file)), BadSamples("skip")))
        assert str(file) in str(caught.value)
    plain = write(tmp_path / "not.gz", lines[:3])
    with pytest.raises(DataError, match=r"ends in \.gz but the content is not gzip"):
        list(form.read(Unit(plain), BadSamples()))
    nothing = tmp_path / "nothing.gz"
    nothing.write_bytes(gzip.compress(b""))
    with pytest.raises(DataError, match="the file is empty"):
        list(form.read(Unit(str(nothing)), BadSamples()))


@pytest.mark.parametrize("call", ["plan", "read"])
def test_files_that_cannot_be_read(call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    form = CriteoFormat(SMALL)

    def use(file: Path) -> object:
        return form.plan([str(file)], 2) if call == "plan" else list(form.read(Unit(str(file)), BadSamples()))

    with pytest.raises(DataError, match="missing: no such file or folder; check the path"):
        use(tmp_path / "missing")
    with pytest.raises(DataError, match="is a folder, not a file"):
        use(tmp_path)
    empty = tmp_path / "empty"
    empty.touch()
    with pytest.raises(DataError, match="empty: the file is empty; remove it"):
        use(empty)
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(DataError, match="fifo: is not a regular file"):
        use(tmp_path / "fifo")
    file = tmp_path / "secret"
    file.write_text(small_line(0))

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("sparsefleet.data.files.io.FileIO", refuse)  # root may read everything
    with pytest.raises(DataError, match="secret: no permission to read it"):
        use(file)


@given(raw=st.binary(min_size=1, max_size=3000), pieces=st.integers(1, 4))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_files_never_crash(raw: bytes, pieces: int, tmp_path: Path) -> None:
    file = tmp_path / "noise"
    file.write_bytes(raw)
    if raw.startswith((b"\x1f\x8b", b"\x28\xb5\x2f\xfd")):  # gzip and zstd: damaged ones are refused
        return
    for form in (CriteoFormat(SMALL, max_line=50), MultiSlotFormat(SMALL, max_line=50)):
        bad_samples = BadSamples("skip")
        good = sum(len(c.batch) for unit in form.plan([str(file)], pieces) for c in form.read(unit, bad_samples))
        assert good + sum(bad_samples.counts.values()) == len(raw.removesuffix(b"\n").split(b"\n"))


# ---- factory ----


def test_format_for(tmp_path: Path) -> None:
    criteo = write(tmp_path / "c", [criteo_line(0)])
    slots = write(tmp_path / "m", ["13 " + "0 " * 13 + "1 5 " * 26 + "1 0"])
    (tmp_path / "c.gz").write_bytes(gzip.compress(Path(criteo).read_bytes()))
    assert guess_format(criteo, CRITEO) == guess_format(str(tmp_path / "c.gz"), CRITEO) == "criteo"
    assert guess_format(slots, CRITEO) == "multislot"
    pq.write_table(pa.table({"a": ["x"]}), tmp_path / "p")
    assert guess_format(str(tmp_path / "p"), CRITEO) == "parquet"
    assert isinstance(format_for("auto", CRITEO, files=[slots]), MultiSlotFormat)
    assert isinstance(format_for("criteo", CRITEO), CriteoFormat)
    odd = write(tmp_path / "odd", ["hello there"])
    with pytest.raises(
        DataError, match=r"no known format .csv: a header.*criteo: label, numbers .*'hello there'; name the format"
    ):
        guess_format(odd, CRITEO)
    with pytest.raises(ConfigError, match="format='xml' is not a format; choose auto, csv"):
        format_for("xml", CRITEO)
    with pytest.raises(ConfigError, match="needs a pipe_command"):
        format_for("pipe", CRITEO)
    with pytest.raises(ConfigError, match="pipe_command is given, but format='criteo'"):
        format_for("criteo", CRITEO, pipe_command="cat")


OWN_SCHEMAS = {
    "libsvm": Schema(dense=(), slots=(Slot("features", keys=True),), sparse_feature_dim=0),
    "libffm": Schema(dense=(), slots=(Slot("3", keys=True),), sparse_feature_dim=0),
}
"""Of formats that say what their columns are called."""


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_of_the_table_keeps_the_contract(name: str) -> None:
    found = format_class(name)
    assert issubclass(found, Format)
    schema = OWN_SCHEMAS.get(name, CRITEO)
    made = found.create(schema, FormatOptions(pipe_command="cat"))
    assert isinstance(made, found)
    assert made.schema is schema
    assert can_be_cut(name, None) is found.cuttable
    assert not can_be_cut(name, "cat")
    assert not found.guess(Head("junk", b"hello there\n"), CRITEO)
    assert not found.guess(Head("junk", bytes(100)), CRITEO)


def test_a_format_from_outside_is_a_line_in_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Commas(CriteoFormat):
        @classmethod
        def guess(cls, head: Head, schema: Schema) -> bool:
            return head.line.startswith(b"#commas")

    file = write(tmp_path / "c", ["#commas"])
    monkeypatch.setitem(FORMATS, "commas", Commas)
    assert guess_format(file, CRITEO) == "commas"
    assert isinstance(format_for("commas", CRITEO), Commas)
    assert format_help() == "auto, csv, jsonl, libsvm, libffm, criteo, multislot, parquet or commas."
    monkeypatch.delitem(FORMATS, "commas")
    assert format_help() == "auto, csv, jsonl, libsvm, libffm, criteo, multislot or parquet."
    with pytest.raises(ConfigError, match="format='commas' is not a format; choose auto, csv, jsonl"):
        format_class("commas")
