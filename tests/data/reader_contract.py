"""The contract that every reader keeps. A test class derives from `ReaderContract` and says how to make its
reader.

Rows are told apart by their label: row i of the input has label i (float32 holds whole numbers up to 2**24
exactly).
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Self

import numpy as np
import pytest
from waiting import stands_waiting, wait_until

from sparsefleet.core.batch import Batch, Mark
from sparsefleet.core.errors import BadRowError, ConfigError, SparseFleetError
from sparsefleet.core.schema import DenseFeature, Schema, Slot
from sparsefleet.data.base import Reader
from sparsefleet.data.formats.base import BadSamples, Chunk, Format, FormatOptions, Unit

SCHEMA = Schema(dense=(DenseFeature("d0"), DenseFeature("d1")), slots=(Slot("a", keys=True), Slot("b", keys=True)))


def rows(first: int, stop: int) -> Batch:
    """Rows whose every part follows from their number, with bags of 0..2 and 1..3 values."""
    numbers = range(first, stop)
    bags = [
        bag for i in numbers for bag in ([i * 10 + j for j in range(i % 3)], [i * 100 + j for j in range(1 + i % 2)])
    ]
    return Batch(
        labels=np.arange(first, stop, dtype=np.float32),
        dense=np.stack([np.arange(first, stop), -np.arange(first, stop)], 1).astype(np.float32),
        keys=np.asarray([key for bag in bags for key in bag], np.uint64),
        offsets=np.concatenate([[0], np.cumsum([len(bag) for bag in bags])]).astype(np.int64),
        slots=("a", "b"),
    )


def same(one: Batch, other: Batch) -> bool:
    return all(
        np.array_equal(getattr(one, name), getattr(other, name)) for name in ("labels", "dense", "keys", "offsets")
    )


def numbers(batch: Batch) -> list[int]:
    return [int(label) for label in batch.labels]


class FakeFormat(Format):
    """Files "0", "1", …, of the given numbers of rows each, in memory; row r of a file takes 10 bytes.

    `bad` rows are skipped (or raise); reading file `broken` fails at its third row; with `cut` files can
    be cut.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        *,
        chunk: int = 7,
        cut: bool = True,
        bad: frozenset[int] = frozenset(),
        broken: str | None = None,
        block: threading.Event | None = None,
    ) -> None:
        self.schema = SCHEMA
        self.sizes, self.chunk, self.cut, self.bad = list(sizes), chunk, cut, bad
        self.broken, self.block = broken, block
        self.first = np.concatenate([[0], np.cumsum(sizes)]).astype(int).tolist()
        self.opened: list[Unit] = []
        self.closed = 0

    @classmethod
    def create(cls, schema: Schema, options: FormatOptions) -> Self:
        raise NotImplementedError("made by its constructor only")

    @property
    def files(self) -> list[str]:
        return [str(i) for i in range(len(self.sizes))]

    def plan(self, files: Sequence[str], pieces: int) -> list[Unit]:
        if pieces == 1 or len(files) >= pieces or not self.cut:
            return [Unit(file) for file in files]
        each = -(-pieces // len(files))
        units = []
        for file in files:
            edges = np.linspace(0, self.sizes[int(file)] * 10, each + 1).astype(int).tolist()
            units += [Unit(file, a, b) for a, b in pairwise(edges)]
        return units

    def read(self, unit: Unit, bad_samples: BadSamples, resume: Mark | None = None) -> Iterator[Chunk]:
        self.opened.append(unit)
        try:
            yield from self._read(unit, bad_samples, resume)
        finally:
            self.closed += 1

    def _read(self, unit: Unit, bad_samples: BadSamples, resume: Mark | None) -> Iterator[Chunk]:
        size = self.sizes[int(unit.file)]
        begin, end = -(-unit.start // 10), size if unit.stop is None else -(-unit.stop // 10)
        row = begin if resume is None else begin + resume.samples
        assert resume is None or resume.offset == row * 10
        while row < end:
            if self.block is not None:
                self.block.wait(5)
            parts, lines, ends = [], [], []
            while row < end and len(parts) < self.chunk:
                number = self.first[int(unit.file)] + row
                if unit.file == self.broken and row >= 2:
                    raise OSError(f"file {unit.file} cannot be read beyond row 2")
                row += 1
                if number in self.bad:
                    bad_samples.refuse(BadRowError(unit.file, row, 3, "not a number", "x"))
                    continue
                parts.append(rows(number, number + 1))
                lines.append(row - begin)
                ends.append(row * 10)
            if parts:
                yield Chunk(Batch.concat(parts), np.asarray(lines), np.asarray(ends))


def reading_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("sparsefleet-")]


def wait_until_a_reader_waits() -> None:
    """Until a reading thread stands still: at a full queue, or in a source that gives nothing."""

    def one_waits() -> bool:
        return any(stands_waiting(one) for one in threading.enumerate() if one.name.startswith("sparsefleet-"))

    wait_until(one_waits, 20, "a reading thread that waits")


def drain(reader: Reader, threads: int = 1) -> list[list[Batch]]:
    """All batches of an epoch, per stream, each stream in a thread of its own; all consumed."""
    drawn: list[list[Batch]] = [[] for _ in range(threads)]
    errors: list[BaseException] = []

    def train(index: int, stream: Iterator[Batch]) -> None:
        try:
            for batch in stream:
                drawn[index].append(batch)
                reader.consumed(batch)
        except BaseException as error:
            errors.append(error)

    with reader.epoch(threads) as epoch:
        assert len(epoch.streams) == threads
        workers = [threading.Thread(target=train, args=pair) for pair in enumerate(epoch.streams)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(20)
            assert not worker.is_alive(), "a stream hangs"
    if errors:
        raise errors[0]
    return drawn


class ReaderContract:
    ROWS = 53
    BATCH = 8
    in_order = True
    """Whether one thread gets the rows in the order of the input."""

    def make(self, batch_size: int = 8) -> Reader:
        """A reader of rows 0..ROWS."""
        raise NotImplementedError

    def make_empty(self) -> Reader:
        raise NotImplementedError

    def make_broken(self) -> tuple[Reader, type[BaseException], str]:
        """A reader that fails after some rows, and its error."""
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def _no_thread_left(self) -> Iterator[None]:
        yield
        wait_until(lambda: not reading_threads(), 10, lambda: f"the end of {reading_threads()}")

    @pytest.mark.parametrize("threads", [1, 2, 3])
    def test_each_row_comes_once_and_whole(self, threads: int) -> None:
        streams = drain(self.make(), threads)
        batches = [batch for stream in streams for batch in stream]
        assert sorted(n for batch in batches for n in numbers(batch)) == list(range(self.ROWS))
        for batch in batches:
            expected = Batch.concat([rows(n, n + 1) for n in numbers(batch)])
            assert same(batch, expected)

    @pytest.mark.parametrize("batch_size", [1, 8, 53, 100])
    def test_batches_have_exactly_the_asked_size(self, batch_size: int) -> None:
        (batches,) = drain(self.make(batch_size))
        sizes = [len(batch) for batch in batches]
        assert set(sizes[:-1]) <= {batch_size}
        assert sizes[-1] == (self.ROWS % batch_size or batch_size)

    @pytest.mark.parametrize("threads", [2, 3])
    def test_at_most_one_batch_per_stream_is_short(self, threads: int) -> None:
        sizes = [len(batch) for stream in drain(self.make(), threads) for batch in stream]
        assert max(sizes) == self.BATCH
        assert sum(size < self.BATCH for size in sizes) <= threads

    def test_one_thread_has_a_fixed_order(self) -> None:
        one, other = (drain(self.make())[0] for _ in range(2))
        assert [numbers(batch) for batch in one] == [numbers(batch) for batch in other]
        if self.in_order:
            assert [n for batch in one for n in numbers(batch)] == list(range(self.ROWS))

    def test_the_coming_batch_is_the_next_one_and_stays(self) -> None:
        reader, seen, told = self.make(), 0, 0
        with reader.epoch() as epoch:
            (stream,) = epoch.streams
            while True:
                coming = stream.coming()
                batch = next(stream, None)
                told += coming is not None
                if batch is None:
                    assert coming is None
                    break
                assert coming is None or coming is batch
                reader.consumed(batch)
                seen += len(batch)
        assert seen == self.ROWS
        assert told <= -(-self.ROWS // self.BATCH)

    def test_epochs_can_be_repeated(self) -> None:
        reader = self.make()
        for _ in range(3):
            assert sorted(n for batch in drain(reader)[0] for n in numbers(batch)) == list(range(self.ROWS))

    def test_position_is_empty_before_the_first_and_after_the_last_batch(self) -> None:
        reader = self.make()
        assert reader.position() == {}
        with reader.epoch() as epoch:
            assert reader.position() == {}
            batches = list(epoch.streams[0])
            assert reader.position() == {}, "read ahead is not consumed"
            for batch in batches[:-1]:
                reader.consumed(batch)
                assert reader.position() != {}
            reader.consumed(batches[-1])
            assert reader.position() == {}
        assert reader.position() == {}

    def test_from_every_boundary_the_rest_is_that_of_the_uninterrupted_run(self) -> None:
        (whole,) = drain(self.make())
        for cut in range(len(whole)):
            first = self.make()
            with first.epoch() as epoch:
                for _ in range(cut):
                    first.consumed(next(epoch.streams[0]))
                position = json.loads(json.dumps(first.position()))
            second = self.make()
            second.seek(position)
            assert second.position() == position
            with second.epoch() as epoch:
                assert second.position() == position
                rest = []
                for batch in epoch.streams[0]:
                    rest.append(batch)
                    second.consumed(batch)
            assert second.position() == {}
            assert len(rest) == len(whole) - cut
            assert all(same(one, other) for one, other in zip(rest, whole[cut:], strict=True))

    @pytest.mark.parametrize(("before", "after"), [(2, 1), (2, 3), (3, 2), (1, 2)])
    def test_a_position_taken_with_other_threads_loses_and_doubles_nothing(self, before: int, after: int) -> None:
        reader = self.make(4)
        seen: list[int] = []
        with reader.epoch(before) as epoch:
            for step in range(4):
                batch = next(epoch.streams[(step * step) % before], None)
                if batch is not None:
                    reader.consumed(batch)
                    seen += numbers(batch)
            position = json.loads(json.dumps(reader.position()))
        resumed = self.make(4)
        resumed.seek(position)
        seen += [n for stream in drain(resumed, after) for batch in stream for n in numbers(batch)]
        assert sorted(seen) == list(range(self.ROWS))
        assert resumed.position() == {}

    def test_the_epoch_after_a_resumed_one_is_whole(self) -> None:
        reader = self.make()
        with reader.epoch() as epoch:
            reader.consumed(next(epoch.streams[0]))
            position = reader.position()
        reader.seek(position)
        assert sum(len(batch) for batch in drain(reader)[0]) == self.ROWS - self.BATCH
        assert sum(len(batch) for batch in drain(reader)[0]) == self.ROWS

    def test_seek_to_nothing_is_the_beginning(self) -> None:
        reader = self.make()
        with reader.epoch() as epoch:
            reader.consumed(next(epoch.streams[0]))
        reader.seek({})
        assert reader.position() == {}
        assert sum(len(batch) for batch in drain(reader)[0]) == self.ROWS

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"format": "other"}, "not a reader's position"),
            ({"version": 99}, "version 99; this release reads version 1"),
            ({"kind": "tape"}, "reader of kind 'tape'"),
        ],
    )
    def test_a_strange_position_is_refused(self, change: dict[str, object], message: str) -> None:
        reader = self.make()
        with reader.epoch() as epoch:
            reader.consumed(next(epoch.streams[0]))
        with pytest.raises(ConfigError, match=message):
            reader.seek({**reader.position(), **change})

    def test_progress_goes_from_nought_to_one(self) -> None:
        reader = self.make()
        assert reader.progress() in (0.0, None)
        seen = []
        with reader.epoch() as epoch:
            for batch in epoch.streams[0]:
                reader.consumed(batch)
                seen.append(reader.progress())
        known = [share for share in seen if share is not None]
        assert known == sorted(known)
        assert known[-1] == 1.0
        assert len(known) < len(seen) or 0 <= known[0] < 1

    def test_an_error_while_reading_comes_out_of_the_stream_with_its_traceback(self) -> None:
        reader, kind, message = self.make_broken()
        with reader.epoch() as epoch, pytest.raises(kind, match=message) as caught:
            list(epoch.streams[0])
        frames = [entry.name for entry in caught.traceback]
        assert len(frames) > 2, "the traceback must reach down to where it happened"

    def test_closing_early_is_quick_and_leaves_no_thread(self) -> None:
        reader = self.make(1)
        with reader.epoch(2) as epoch:
            next(epoch.streams[0])
            started = time.monotonic()
        assert time.monotonic() - started < 1
        assert reading_threads() == []
        for stream in epoch.streams:
            stream.close()
            assert next(stream, None) is None

    def test_input_without_rows_is_an_error(self) -> None:
        with pytest.raises(SparseFleetError, match="no samples"):
            drain(self.make_empty())

    def test_a_second_epoch_at_the_same_time_is_refused(self) -> None:
        reader = self.make(1)
        with reader.epoch() as epoch:
            next(epoch.streams[0])
            with pytest.raises(ConfigError, match="previous epoch is still open"):
                reader.epoch()
            with pytest.raises(ConfigError, match="seek while an epoch is open"):
                reader.seek({})

    def test_consuming_before_an_epoch_or_a_foreign_batch_is_refused(self) -> None:
        reader = self.make()
        with pytest.raises(ConfigError, match="no epoch has been started"):
            reader.consumed(rows(0, 2))
        with reader.epoch(), pytest.raises(ConfigError, match="carries no marks"):
            reader.consumed(rows(0, 2))

    @pytest.mark.parametrize("threads", [0, -1, 1.5, True])
    def test_a_senseless_number_of_threads_is_refused(self, threads: int) -> None:
        with pytest.raises(ConfigError, match=r"threads=.* must be a whole number"):
            self.make().epoch(threads)
