"""LeasedDataset: files of every format in pieces that a lender hands out."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import sparsefleet as sf
from sparsefleet.core.batch import Mark
from sparsefleet.core.errors import ConfigError
from sparsefleet.core.leases import Lease, Leases
from sparsefleet.data.formats.base import Unit
from sparsefleet.data.leased import LeasedDataset, digest

SCHEMA = sf.Schema(dense=(), slots=(sf.Slot("key"),))


class Book:
    """What a server does, for the trainers of one process."""

    def __init__(self) -> None:
        self.leases: Leases | None = None
        self.plans: set[str] = set()


class BookLender:
    def __init__(self, book: Book, life: str) -> None:
        self.book, self.life = book, life

    def open(
        self, plan: str, pieces: int, marks: Mapping[int, Mark], position: Callable[[], Mapping[str, object]]
    ) -> None:
        self.book.plans.add(plan)
        if self.book.leases is None:
            self.book.leases = Leases(pieces, marks)

    def take(self) -> Lease | None:
        assert self.book.leases is not None
        return self.book.leases.take(self.life, 0)

    def note(self, marks: Sequence[Mark]) -> None:
        assert self.book.leases is not None
        self.book.leases.note(self.life, marks)

    def share(self) -> float:
        return 0.5


def text(keys: range) -> bytes:
    return "".join(f"1 {key} 1 1\n" for key in keys).encode()


def opened(files: Sequence[Path], **options: object) -> LeasedDataset:
    reader = sf.open_reader([str(f) for f in files], SCHEMA, batch_size=7, leased=True, **options)  # type: ignore[arg-type]
    assert isinstance(reader, LeasedDataset)
    return reader


def read(reader: LeasedDataset, lender: BookLender, batches: int | None = None) -> list[int]:
    """The keys of so many batches, each told to the book as a step would."""
    keys: list[int] = []
    reader.lend_by(lender)
    with reader.epoch(1) as epoch:
        for number, batch in enumerate(epoch.streams[0], 1):
            keys += map(int, batch.keys)
            reader.consumed(batch)
            lender.note(batch.marks)
            if number == batches:
                break
    return keys


def files_of(kind: str, folder: Path) -> tuple[list[Path], dict[str, object]]:
    parts = [range(0, 150), range(150, 200)]
    files = [folder / f"part-{number}{'.gz' if kind == 'gzip' else ''}" for number in range(2)]
    for file, keys in zip(files, parts, strict=True):
        if kind == "parquet":
            table = pa.table({"label": [1.0] * len(keys), "key": [[key] for key in keys]})
            pq.write_table(table, file, row_group_size=10)
        else:
            file.write_bytes(gzip.compress(text(keys)) if kind == "gzip" else text(keys))
    options: dict[str, object] = {"format_name": "parquet" if kind == "parquet" else "multislot"}
    if kind == "pipe":
        options = {"pipe_command": "cat"}
    return files, options


@pytest.mark.parametrize("kind", ["text", "gzip", "parquet", "pipe"])
def test_two_trainers_read_every_sample_once_and_a_third_goes_on_for_a_lost_one(kind: str, tmp_path: Path) -> None:
    files, options = files_of(kind, tmp_path)
    whole = sf.open_reader([str(f) for f in files], SCHEMA, batch_size=7, **options)  # type: ignore[arg-type]
    with whole.epoch(1) as epoch:
        expected = sorted(int(key) for batch in epoch.streams[0] for key in batch.keys)
    book = Book()
    lost = read(opened(files, **options), BookLender(book, "lost"), batches=3)
    assert book.leases is not None
    book.leases.hand_back("lost")
    rest = read(opened(files, **options), BookLender(book, "other"))
    assert sorted(lost + rest) == expected
    assert len(lost) == 21
    assert len(book.plans) == 1, "all plan alike"
    assert book.leases.left == 0
    assert book.leases.pieces > 2 or kind in ("gzip", "pipe")


def test_a_position_of_all_is_that_of_a_queue_dataset(tmp_path: Path) -> None:
    files, options = files_of("text", tmp_path)
    book = Book()
    reader = opened(files, **options)
    first = read(reader, lender := BookLender(book, "a"), batches=5)
    assert book.leases is not None
    position = reader.position_at(book.leases.progress(), lender)
    alone = sf.open_reader([str(f) for f in files], SCHEMA, batch_size=7, **options)  # type: ignore[arg-type]
    alone.seek(position)
    with alone.epoch(1) as epoch:
        rest = [int(key) for batch in epoch.streams[0] for key in batch.keys]
    assert sorted(first + rest) == list(range(200))
    again = opened(files, **options)
    again.seek(position)
    assert sorted(first + read(again, BookLender(Book(), "b"))) == list(range(200))


def test_pieces_without_samples_are_told(tmp_path: Path) -> None:
    long = tmp_path / "part-0"
    # Most of its pieces are within a line.
    long.write_bytes(b"1 7 1 1\n" + b" ".join([b"200", *[b"9"] * 200]) + b" 1 1\n")
    book = Book()
    assert len(read(opened([long], format_name="multislot"), BookLender(book, "a"))) == 201
    assert book.leases is not None
    assert book.leases.left == 0


def test_without_a_lender_it_reads_all_by_itself(tmp_path: Path) -> None:
    files, options = files_of("text", tmp_path)
    reader = opened(files, **options)
    with reader.epoch(2) as epoch:
        keys = np.concatenate([batch.keys for stream in epoch.streams for batch in stream])
    assert sorted(map(int, keys)) == list(range(200))


def test_what_cannot_be_leased_is_refused(tmp_path: Path) -> None:
    files, _ = files_of("text", tmp_path)
    with pytest.raises(ConfigError, match="reader='memory' has its own share; use queue"):
        sf.open_reader(str(files[0]), SCHEMA, kind="memory", leased=True)
    cut = opened([Path(f"{files[0]}#bytes=0:10")], format_name="multislot")
    with pytest.raises(ConfigError, match="give every trainer all of them, uncut"):
        read(cut, BookLender(Book(), "a"))
    dropping = LeasedDataset([str(files[0])], cut.format, 7, drop_last=True)
    with pytest.raises(ConfigError, match="drop_last=True does not go with leased=True"):
        dropping.lend_by(BookLender(Book(), "a"))


def test_the_digest_is_of_files_pieces_and_marks() -> None:
    unit, files = Unit("a", 0, 10), [["a", 10]]
    assert digest([unit], files, {}) == digest([Unit("a", 0, 10)], [["a", 10]], {})
    assert digest([unit], files, {}) != digest([unit], [["a", 11]], {})
    assert digest([unit], files, {}) != digest([unit], files, {0: Mark(0, 1, 5, False)})
