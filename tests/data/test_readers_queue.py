"""QueueDataset: the reader contract, and what is special about files."""

from __future__ import annotations

import threading
import time
import tracemalloc

import pytest
from reader_contract import FakeFormat, ReaderContract, drain, numbers, reading_threads, wait_until_a_reader_waits

from sparsefleet.core.errors import BadRowError, ConfigError, DataError
from sparsefleet.data.base import Reader
from sparsefleet.data.formats.base import Unit
from sparsefleet.data.queue_dataset import QueueDataset


def dataset(sizes: list[int], batch_size: int = 8, **settings: object) -> QueueDataset:
    format = FakeFormat(sizes)
    return QueueDataset(format.files, format, batch_size, **settings)  # type: ignore[arg-type]


class TestQueueDataset(ReaderContract):
    def make(self, batch_size: int = 8) -> Reader:
        return dataset([20, 3, 0, 8, 1, 21, 0], batch_size)

    def make_empty(self) -> Reader:
        return dataset([0, 0])

    def make_broken(self) -> tuple[Reader, type[BaseException], str]:
        format = FakeFormat([20, 30], broken="1")
        return QueueDataset(format.files, format, 8), OSError, "file 1 cannot be read beyond row 2"


class TestQueueDatasetOneFile(ReaderContract):
    """Fewer files than threads: the file is cut."""

    def make(self, batch_size: int = 8) -> Reader:
        return dataset([53], batch_size, capacity=1)

    def make_empty(self) -> Reader:
        return dataset([0])

    def make_broken(self) -> tuple[Reader, type[BaseException], str]:
        format = FakeFormat([20], broken="0", chunk=1)
        return QueueDataset(format.files, format, 8), OSError, "file 0 cannot"


def test_fewer_files_than_threads_are_cut_and_all_streams_work() -> None:
    format = FakeFormat([400], chunk=5)
    reader = QueueDataset(format.files, format, 4, capacity=1)
    streams = drain(reader, 3)
    assert all(len(stream) > 1 for stream in streams)
    assert len({(unit.start, unit.stop) for unit in format.opened}) >= 3


def test_one_thread_reads_the_files_themselves_one_after_the_other() -> None:
    format = FakeFormat([5, 5, 5])
    drain(QueueDataset(format.files, format, 4))
    assert format.opened == [Unit("0"), Unit("1"), Unit("2")]
    assert format.closed == 3


def test_finished_files_are_not_opened_again() -> None:
    first = FakeFormat([8, 8, 8])
    reader = QueueDataset(first.files, first, 8)
    with reader.epoch() as epoch:
        reader.consumed(next(epoch.streams[0]))
        position = reader.position()
    again = FakeFormat([8, 8, 8])
    reader = QueueDataset(again.files, again, 8)
    reader.seek(position)
    drain(reader)
    assert again.opened == [Unit("1"), Unit("2")]


def test_good_batches_before_a_broken_place_come_before_the_error() -> None:
    format = FakeFormat([16, 10], broken="1")
    reader = QueueDataset(format.files, format, 8)
    with reader.epoch() as epoch:
        assert [numbers(next(epoch.streams[0])) for _ in range(2)] == [list(range(8)), list(range(8, 16))]
        with pytest.raises(OSError, match="beyond row 2"):
            next(epoch.streams[0])


def test_the_error_comes_again_and_never_looks_like_a_normal_end() -> None:
    format = FakeFormat([10], broken="0")
    with QueueDataset(format.files, format, 8).epoch() as epoch:
        for _ in range(2):
            with pytest.raises(OSError, match="beyond row 2"):
                next(epoch.streams[0])


def test_bad_rows_are_errors_or_are_skipped_and_counted() -> None:
    format = FakeFormat([10, 10], bad=frozenset({0, 3, 9, 10, 19}))
    with pytest.raises(BadRowError, match="0, line 1, column 3: not a number"):
        drain(QueueDataset(format.files, format, 4))
    reader = QueueDataset(format.files, format, 4, on_bad_row="skip")
    seen = [n for batch in drain(reader)[0] for n in numbers(batch)]
    assert seen == [n for n in range(20) if n not in format.bad]
    assert reader.skipped() == {"not a number": 5}
    assert reader.position() == {}


def test_resume_counts_skipped_rows_too() -> None:
    def make() -> QueueDataset:
        format = FakeFormat([30], chunk=4, bad=frozenset({1, 2, 11, 12, 13, 29}))
        return QueueDataset(format.files, format, 5, on_bad_row="skip")

    (whole,) = drain(make())
    for cut in range(1, len(whole)):
        reader = make()
        with reader.epoch() as epoch:
            for _ in range(cut):
                reader.consumed(next(epoch.streams[0]))
            position = reader.position()
        reader = make()
        reader.seek(position)
        rest = drain(reader)[0]
        assert [numbers(batch) for batch in rest] == [numbers(batch) for batch in whole[cut:]]


def test_nothing_but_bad_rows_says_why() -> None:
    format = FakeFormat([2], bad=frozenset({0, 1}))
    with pytest.raises(DataError, match="no good samples in 0; skipped: 2 × not a number"):
        drain(QueueDataset(format.files, format, on_bad_row="skip"))


def test_drop_last_leaves_out_the_rest_and_still_comes_to_the_end() -> None:
    for total in (1, 7, 8, 9, 15, 16, 17, 53):
        reader = dataset([total], drop_last=True)
        (batches,) = drain(reader)
        assert [n for batch in batches for n in numbers(batch)] == list(range(total // 8 * 8))
        assert reader.position() == {}


def test_another_file_list_is_refused_and_the_difference_named() -> None:
    reader = dataset([8, 8])
    with reader.epoch() as epoch:
        reader.consumed(next(epoch.streams[0]))
        position = reader.position()
    with pytest.raises(ConfigError, match=r"list of files \(2 files then, 3 now; new: 2\).*an epoch's end, or none"):
        dataset([8, 8, 8]).seek(position)
    format = FakeFormat([8, 8])
    with pytest.raises(ConfigError, match="the same files in another order"):
        QueueDataset(["1", "0"], format, 8).seek(position)
    with pytest.raises(ConfigError, match="missing now: 1"):
        dataset([8]).seek(position)


def test_a_changed_file_is_refused(tmp_path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "0"
    path.write_bytes(b"x" * 100)

    class OneFile(FakeFormat):
        def read(self, unit, bad_samples, resume=None):  # type: ignore[no-untyped-def]
            return super().read(Unit("0", unit.start, unit.stop), bad_samples, resume)

    reader = QueueDataset(path, OneFile([10]), 4)
    with reader.epoch() as epoch:
        reader.consumed(next(epoch.streams[0]))
        position = reader.position()
        assert reader.progress() == pytest.approx(0.4)
    path.write_bytes(b"x" * 120)
    with pytest.raises(ConfigError, match="had 100 bytes, has 120"):
        reader.seek(position)
    path.unlink()
    with pytest.raises(ConfigError, match="had 100 bytes, has None"):
        reader.seek(position)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"files": "x"}, "list of files is missing or damaged"),
        ({"units": []}, "it has no units"),
        ({"units": [["0", -1, None]]}, "is not .file, start, stop"),
        ({"units": [["9", 0, None]]}, "units of files that are not in its list: 9"),
        ({"progress": [[7, 1, 0, False]]}, "makes no sense for 2 units"),
        ({"progress": [[0, "1", 0, False]]}, "makes no sense"),
        ({"progress": [5]}, "is not .unit, rows, offset, done"),
    ],
)
def test_a_damaged_position_is_refused(change: dict[str, object], message: str) -> None:
    reader = dataset([8, 8])
    with reader.epoch() as epoch:
        reader.consumed(next(epoch.streams[0]))
    with pytest.raises(ConfigError, match=message):
        reader.seek({**reader.position(), **change})


def test_a_thread_whose_input_has_ended_helps_with_the_rest() -> None:
    reader = dataset([8, 400], capacity=2)  # two whole files: without help one stream would get fifty times the other's
    reader.set_format(FakeFormat([8, 400], cut=False))
    with reader.epoch(threads=2) as epoch:
        first, second = epoch.streams
        mine = [next(first) for _ in range(3)]
        rest = list(second)
    drawn = [row for batch in [*mine, *rest] for row in numbers(batch)]
    assert len(drawn) + len(list(first)) * 8 == 408
    assert len(set(drawn)) == len(drawn) >= 400


def test_a_batch_is_in_the_position_only_when_all_before_it_are() -> None:
    reader = dataset([80], capacity=4)
    with reader.epoch(threads=1) as epoch:
        batches = list(epoch.streams[0])
    for batch in batches[1:]:
        reader.consumed(batch)  # by a thread that was faster
    assert reader.position()
    assert not reader.position()["progress"]
    reader.consumed(batches[0])
    assert reader.position() == {}


def test_close_stops_a_reader_that_waits_at_a_full_queue() -> None:
    reader = dataset([5000], batch_size=1, capacity=1)
    epoch = reader.epoch(2)
    wait_until_a_reader_waits()
    started = time.monotonic()
    with epoch:
        pass
    assert time.monotonic() - started < 1
    assert reading_threads() == []


def test_close_interrupts_a_format_that_blocks_and_offers_cancel() -> None:
    class Blocking(FakeFormat):
        def read(self, unit, bad_samples, resume=None):  # type: ignore[no-untyped-def]
            class Chunks:
                released = threading.Event()

                def __iter__(self):  # type: ignore[no-untyped-def]
                    return self

                def __next__(self):  # type: ignore[no-untyped-def]
                    self.released.wait(20)
                    raise DataError("cancelled")

                def cancel(self) -> None:
                    self.released.set()

            return Chunks()

    with QueueDataset(["0"], Blocking([5])).epoch():
        wait_until_a_reader_waits()
        started = time.monotonic()
    assert time.monotonic() - started < 1
    assert reading_threads() == []


@pytest.mark.slow
def test_memory_stays_flat() -> None:
    """Read far more than may be held at once: 400 files of 50 rows, some batches and a chunk alive."""
    reader = dataset([50] * 400, batch_size=10, capacity=2)
    tracemalloc.start()
    try:
        with reader.epoch() as epoch:
            peaks = []
            for index, batch in enumerate(epoch.streams[0]):
                reader.consumed(batch)
                if index in (200, 1900):
                    peaks.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert peaks[1] - peaks[0] < 400_000


def test_position_may_be_asked_from_any_thread_at_any_time() -> None:
    reader = dataset([500] * 4, batch_size=5)
    stop, errors = threading.Event(), []

    def look() -> None:
        while not stop.is_set():
            try:
                position = reader.position()
                assert position == {} or position["version"] == 1
                reader.progress()
            except BaseException as error:
                errors.append(error)
                return

    looker = threading.Thread(target=look)
    looker.start()
    try:
        drain(reader, 2)
    finally:
        stop.set()
        looker.join(5)
    assert errors == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 0}, "batch_size=0 must be"),
        ({"batch_size": 2.5}, "batch_size=2.5 must be"),
        ({"threads": 0}, "threads=0 must be"),
        ({"capacity": 0}, "capacity=0 must be"),
        ({"on_bad_row": "ignore"}, "on_bad_row='ignore' is not a policy"),
        ({"files": []}, "list of files is empty"),
        ({"files": ["a", "a"]}, "listed twice"),
    ],
)
def test_senseless_settings_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        QueueDataset(**{"files": ["0"], "format": FakeFormat([1]), **settings})  # type: ignore[arg-type]


def test_what_is_missing_is_named() -> None:
    with pytest.raises(ConfigError, match="has no files to read"):
        QueueDataset(format=FakeFormat([1])).epoch()
    with pytest.raises(ConfigError, match="does not know how to read its files"):
        QueueDataset(["0"]).epoch()
