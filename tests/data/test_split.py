"""Files shared out over workers: each row once, nobody idle, the same answer everywhere."""

from __future__ import annotations

import gzip
import os
import random
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from remote_place import URI, place

from sparsefleet.core.errors import ConfigError, DataError
from sparsefleet.core.schema import CRITEO
from sparsefleet.data.formats.base import Unit
from sparsefleet.data.formats.pipe import PipeFormat
from sparsefleet.data.split import cut_unit, ordered_shares, parse_unit, plan_units, split_files, split_units, unit_name

relaxed = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def make_files(folder: Path, sizes: list[int]) -> list[str]:
    names = []
    for number, size in enumerate(sizes):
        path = folder / f"part-{number:03d}"
        path.write_bytes(b"x" * size)
        names.append(str(path))
    return names


def rows_of(unit: Unit) -> list[bytes]:
    """By the contract of Unit: the rows whose first byte lies in [start, stop)."""
    data = Path(unit.file).read_bytes()
    stop = len(data) if unit.stop is None else unit.stop
    rows, begin = [], 0
    for line in data.splitlines(keepends=True):
        if unit.start <= begin < stop:
            rows.append(line)
        begin += len(line)
    return rows


@relaxed
@given(sizes=st.lists(st.integers(1, 400), min_size=1, max_size=25), data=st.data())
def test_whole_files_cover_once_in_order_and_balance(tmp_path: Path, sizes: list[int], data: st.DataObject) -> None:
    names = make_files(tmp_path, sizes)
    workers = data.draw(st.integers(1, len(names)))
    shares = [split_files(names, worker, workers, cuttable=False) for worker in range(workers)]

    assert sorted(name for share in shares for name in share) == sorted(names)
    for share in shares:
        assert share
        assert share == [name for name in names if name in set(share)]
    # Largest first onto the least loaded: no worker is further ahead than its last, smallest file.
    weight = dict(zip(names, sizes, strict=True))
    loads = [sum(weight[name] for name in share) for share in shares]
    for share, load in zip(shares, loads, strict=True):
        assert load - min(weight[name] for name in share) <= min(loads)


def test_uneven_sizes_are_balanced_by_bytes(tmp_path: Path) -> None:
    names = make_files(tmp_path, [100, 10, 10, 80, 20, 10])
    assert split_files(names, 0, 2) == [names[0], names[1], names[5]]
    assert split_files(names, 1, 2) == [names[2], names[3], names[4]]


def test_order_of_the_list_does_not_change_who_gets_what(tmp_path: Path) -> None:
    names = make_files(tmp_path, [5, 5, 5, 5, 9, 9, 1])
    shuffled = random.Random(3).sample(names, len(names))
    for worker in range(3):
        share, same = (split_files(files, worker, 3, cuttable=False) for files in (names, shuffled))
        assert sorted(share) == sorted(same)


@pytest.mark.parametrize("sizes", [[0, 100], [100, 0, 100], [0]])
def test_an_empty_file_is_refused_by_all_workers(tmp_path: Path, sizes: list[int]) -> None:
    names = make_files(tmp_path, sizes)
    for worker in range(2):
        with pytest.raises(DataError, match="the file is empty; remove it"):
            split_files(names, worker, 2)
    with pytest.raises(DataError, match="the file is empty; remove it"):
        ordered_shares(names, 2)


def write_rows(folder: Path, lengths: Sequence[Sequence[int]], last_line_end: bool = True) -> list[str]:
    """A file of rows of these lengths for each; no two rows are alike."""
    names = []
    for number, rows in enumerate(lengths):
        content = b"".join(
            f"{number}-{place}".encode().ljust(length, b".") + b"\n" for place, length in enumerate(rows)
        )
        path = folder / f"rows-{number}"
        path.write_bytes(content if last_line_end else content[:-1])
        names.append(str(path))
    return names


def bytes_of(share: Sequence[Unit]) -> int:
    return sum((os.path.getsize(unit.file) if unit.stop is None else unit.stop) - unit.start for unit in share)


@relaxed
@given(
    lengths=st.lists(st.lists(st.integers(8, 40), min_size=1, max_size=60), min_size=1, max_size=8),
    packed=st.sets(st.integers(0, 7), max_size=3),
    workers=st.integers(1, 5),
    last_line_end=st.booleans(),
)
def test_shares_are_even_without_overlap_and_complete(
    tmp_path: Path, lengths: list[list[int]], packed: set[int], workers: int, last_line_end: bool
) -> None:
    names = write_rows(tmp_path, lengths, last_line_end)
    rows = sorted(row for name in names for row in rows_of(Unit(name)))
    for number in packed & set(range(len(names))):  # by its name it cannot be cut
        os.replace(names[number], names[number] + ".zst")
        names[number] += ".zst"
    try:
        shares = [split_units(names, worker, workers) for worker in range(workers)]
    except ConfigError:
        for worker in range(workers):
            with pytest.raises(ConfigError, match=r"cannot be cut|some would get no sample"):
                split_units(names, worker, workers)
        assert len(names) < workers
        return

    assert sorted(row for share in shares for unit in share for row in rows_of(unit)) == rows
    assert shares == [split_units(names, worker, workers) for worker in range(workers)]
    for share in shares:
        assert any(rows_of(unit) for unit in share), "nobody is idle"
        assert [unit.file for unit in share] == [name for name in names if name in {unit.file for unit in share}]
        assert all(unit == Unit(unit.file) for unit in share if unit.file.endswith(".zst"))
    mean = sum(map(os.path.getsize, names)) / workers
    cut = any(unit.start or unit.stop is not None for share in shares for unit in share)
    if cut:
        # All that has a part of the cut files comes to one level, and only what has none may lie above.
        level = max(bytes_of(s) for s in shares if any(not unit.file.endswith(".zst") for unit in s))
        assert all(bytes_of(share) >= level - 1 for share in shares)
    elif not packed and mean > 100:  # no row is as long: wherever files are cut, every share has some
        assert all(abs(bytes_of(share) - mean) <= 0.1 * mean for share in shares)


def test_usual_parts_stay_whole_and_uneven_ones_are_cut(tmp_path: Path) -> None:
    names = write_rows(tmp_path, [[9] * 100] * 4)
    assert [split_files(names, worker, 2) for worker in range(2)] == [[names[0], names[2]], [names[1], names[3]]]
    assert [split_files(names, worker, 3) for worker in range(3)] == [
        [names[0], f"{names[1]}#bytes=0:333"],
        [f"{names[1]}#bytes=333:1000", f"{names[2]}#bytes=0:666"],
        [f"{names[2]}#bytes=666:1000", names[3]],
    ]
    names = write_rows(tmp_path, [[9] * 300, [9]])
    assert [split_files(names, worker, 2) for worker in range(2)] == [
        [f"{names[0]}#bytes=0:1505"],
        [f"{names[0]}#bytes=1505:3000", names[1]],
    ]
    names = write_rows(tmp_path, [[9] * 100, [9] * 115])
    assert [split_files(names, worker, 2) for worker in range(2)] == [[names[1]], [names[0]]], "7 % is near enough"


def test_what_cannot_be_cut_is_evened_out_by_the_rest(tmp_path: Path) -> None:
    plain, small = write_rows(tmp_path, [[9] * 300, [9] * 10])
    packed = tmp_path / "z.gz"
    packed.write_bytes(b"\x1f\x8b" + bytes(998))
    names = [plain, str(packed), small]
    assert [split_files(names, worker, 2) for worker in range(2)] == [
        [f"{plain}#bytes=0:1050", str(packed)],
        [f"{plain}#bytes=1050:3000", small],
    ]
    # Fewer files than workers: nobody is idle as long as something can be cut.
    assert [split_files([plain, packed], worker, 3) for worker in range(3)] == [
        [f"{plain}#bytes=0:333", str(packed)],
        [f"{plain}#bytes=333:1666"],
        [f"{plain}#bytes=1666:3000"],
    ]
    large = tmp_path / "large.gz"
    large.write_bytes(b"\x1f\x8b" + bytes(99998))
    assert split_files([plain, large], 0, 2) == [str(large)]
    assert split_files([plain, large], 1, 2) == [plain]


def test_rows_too_long_to_cut_between_leave_files_whole(tmp_path: Path) -> None:
    names = write_rows(tmp_path, [[9], [5000]])
    assert [split_files(names, worker, 2) for worker in range(2)] == [[names[1]], [names[0]]]


def test_files_of_unknown_size_keep_all_of_them_whole(tmp_path: Path) -> None:
    (plain,) = write_rows(tmp_path, [[9] * 300])
    names = [plain, str(tmp_path / "a"), str(tmp_path / "b")]
    for name in names[1:]:
        os.mkfifo(name)
    assert [split_files(names, worker, 2) for worker in range(2)] == [[plain, names[1]], [names[2]]]
    with pytest.raises(ConfigError, match=r"/a cannot be cut: it is not a regular file"):
        split_files(names[:2], 0, 3)


@relaxed
@given(
    lines=st.lists(st.lists(st.integers(20, 60), min_size=8, max_size=30), min_size=1, max_size=4),
    extra=st.integers(1, 3),
    last_line_end=st.booleans(),
)
def test_ranges_hold_every_row_once(tmp_path: Path, lines: list[list[int]], extra: int, last_line_end: bool) -> None:
    names, rows = [], []
    for number, lengths in enumerate(lines):
        content = [f"{number}-{place}".encode().ljust(length, b".") + b"\n" for place, length in enumerate(lengths)]
        if not last_line_end:
            content[-1] = content[-1][:-1]
        path = tmp_path / f"rows-{number}"
        path.write_bytes(b"".join(content))
        names.append(str(path))
        rows += content
    workers = min(len(names) + extra, 4) if len(names) < 4 else 5
    shares = [split_units(names, worker, workers) for worker in range(workers)]

    assert [row for share in shares for unit in share for row in rows_of(unit)] == rows
    assert all(any(rows_of(unit) for unit in share) for share in shares)
    total = sum(os.path.getsize(name) for name in names)
    for share in shares:
        length = sum((os.path.getsize(u.file) if u.stop is None else u.stop) - u.start for u in share)
        assert abs(length - total / workers) <= 1


def test_fewer_files_come_as_names_that_read_back(tmp_path: Path) -> None:
    path = tmp_path / "one"
    path.write_bytes(b"0123456789012345678\n" * 50)
    shares = [split_files([path], worker, 3) for worker in range(3)]
    assert shares == [[f"{path}#bytes=0:333"], [f"{path}#bytes=333:666"], [f"{path}#bytes=666:1000"]]
    assert [parse_unit(name) for share in shares for name in share] == [
        unit for worker in range(3) for unit in split_units([path], worker, 3)
    ]


@given(
    file=st.text(min_size=1).filter(lambda name: "#bytes=" not in name),
    start=st.integers(0),
    length=st.none() | st.integers(0),
)
def test_unit_names_read_back(file: str, start: int, length: int | None) -> None:
    unit = Unit(file, start, None if length is None else start + length)
    assert parse_unit(unit_name(unit)) == unit


def test_a_whole_file_keeps_its_name() -> None:
    assert unit_name(Unit("a/b.txt")) == "a/b.txt"
    assert parse_unit(Path("a/b.txt")) == Unit("a/b.txt")
    assert parse_unit("odd#bytes=x:1") == Unit("odd#bytes=x:1")


def test_a_range_that_stops_before_it_starts_is_refused() -> None:
    with pytest.raises(ConfigError, match="stops before it starts"):
        parse_unit("a#bytes=9:3")


@given(start=st.integers(0, 50), length=st.integers(0, 100), pieces=st.integers(1, 9))
def test_cut_unit_covers_the_range(start: int, length: int, pieces: int) -> None:
    cut = cut_unit(Unit("a", start, start + length), pieces)
    assert [place for unit in cut for place in range(unit.start, unit.stop or 0)] == list(range(start, start + length))


def test_files_that_cannot_be_cut_are_refused_by_name(tmp_path: Path) -> None:
    packed = tmp_path / "rows.tsv.gz"
    packed.write_bytes(gzip.compress(b"row\n" * 1000))
    with pytest.raises(
        ConfigError, match=r"1 file for 2 workers, and .*rows.tsv.gz cannot be cut: .gz files"
    ) as caught:
        split_files([packed], 0, 2)
    assert "give at least 2 files, or use at most 1 worker" in str(caught.value)

    disguised = tmp_path / "rows"
    packed.rename(disguised)
    with pytest.raises(ConfigError, match="compressed or not text"):
        split_files([disguised], 0, 2)

    parquet = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"a": [1, 2]}), parquet)
    with pytest.raises(ConfigError, match="compressed or not text, which is read whole only"):
        split_files([parquet], 0, 2)

    plain = tmp_path / "plain"
    plain.write_bytes(b"row\n" * 1000)
    with pytest.raises(ConfigError, match="its format reads files whole only"):
        split_files([plain], 0, 2, cuttable=False)

    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="not a regular file"):
        split_files([tmp_path / "pipe"], 0, 2)
    with place(tmp_path), pytest.raises(ConfigError, match=r"rows.parquet cannot be cut: it is compressed or not text"):
        split_files([f"{URI}/rows.parquet"], 0, 2)


def test_files_that_cannot_be_cut_are_fine_where_there_are_enough(tmp_path: Path) -> None:
    names = [str(tmp_path / f"{number}.gz") for number in range(2)]
    for name in names:
        Path(name).write_bytes(gzip.compress(b"row\n"))
    assert [split_files(names, worker, 2) for worker in range(2)] == [[names[0]], [names[1]]]
    pipes = [str(tmp_path / f"pipe-{number}") for number in range(4)]
    for pipe in pipes:
        os.mkfifo(pipe)
    assert [split_files(pipes, worker, 2) for worker in range(2)] == [[pipes[0], pipes[2]], [pipes[1], pipes[3]]]


@pytest.mark.parametrize("content", [b"one row only\n", b"one long row" * 50 + b"\nshort\n"])
def test_too_few_rows_for_the_workers_are_refused_by_every_worker(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "rows"
    path.write_bytes(content)
    for worker in range(3):
        with pytest.raises(ConfigError, match="cannot be shared by 3 workers: some would get no sample"):
            split_files([path], worker, 3)


def test_bad_arguments_are_refused(tmp_path: Path) -> None:
    names = make_files(tmp_path, [1, 2])
    with pytest.raises(ConfigError, match="worker_index=2 with 2 workers; allowed is 0 to 1"):
        split_files(names, 2, 2)
    with pytest.raises(ConfigError, match="worker_num=0"):
        split_files(names, 0, 0)
    with pytest.raises(ConfigError, match="empty"):
        split_files([], 0, 1)
    with pytest.raises(ConfigError, match="listed twice"):
        split_files([names[0], names[0]], 0, 1)
    with pytest.raises(ConfigError, match="must be a list"):
        split_files(names[0], 0, 1)
    with pytest.raises(ConfigError, match="is a share already"):
        split_files(["a#bytes=0:1"], 0, 1)
    with pytest.raises(ConfigError, match="listed twice"):
        split_files([tmp_path, names[0]], 0, 2)  # a folder stands for its files
    with pytest.raises(DataError, match=r"missing cannot be shared out: No such file"):
        split_files([str(tmp_path / "missing"), names[0]], 0, 2)


def test_a_reader_plans_whole_files_by_its_format_and_ranges_by_bytes() -> None:
    def plan(files: Sequence[str], pieces: int) -> list[Unit]:
        return [Unit(file, piece, piece + 1) for file in files for piece in range(pieces)]

    assert plan_units(["a", "b"], 2, plan) == plan(["a", "b"], 2)
    assert plan_units(["a#bytes=10:20", "b"], 1, plan) == [Unit("a", 10, 20), Unit("b", 0, 1)]
    assert plan_units(["a#bytes=10:20", "b#bytes=7:"], 3, plan) == [
        *(Unit("a", 10, 13), Unit("a", 13, 16), Unit("a", 16, 20)),
        Unit("b", 7),
    ]
    several = [Unit("a", 10, 20), Unit("b", 0, 1), Unit("c", 0, 1)]
    assert plan_units(["a#bytes=10:20", "b", "c"], 3, plan) == several, "enough of them: none is cut"


def test_a_format_that_reads_files_whole_refuses_a_part_of_one(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.write_bytes(b"1 1 1 7\n" * 100)
    command = PipeFormat(CRITEO, "cat")
    with pytest.raises(ConfigError, match=r"rows#bytes=0:400 is a part of a file, .* split_files\(…, cuttable=False\)"):
        plan_units(split_files([path], 0, 2), 1, command.plan)
