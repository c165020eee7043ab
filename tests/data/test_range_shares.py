"""Files shared out by byte ranges: what split_files gives a worker, the readers read."""

import gzip

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from sparsefleet.core.errors import ConfigError
from sparsefleet.core.schema import CRITEO
from sparsefleet.data.formats.criteo import CriteoFormat
from sparsefleet.data.queue_dataset import QueueDataset
from sparsefleet.data.split import split_files


def criteo_line(number):
    return "\t".join(["1", *[str(number)] * 13, *["68fd1e64"] * 26]) + "\n"


def rows_of(share, threads):
    """The numbers of the rows that a reader finds in a share."""
    reader, found = QueueDataset(share, CriteoFormat(CRITEO), 16), []
    with reader.epoch(threads) as epoch:
        for stream in epoch.streams:
            for batch in stream:
                found += np.round(batch.dense[:, 0] * 20).astype(int).tolist()
                reader.consumed(batch)
    return found


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_workers_read_each_row_once(tmp_path, workers, threads):
    file = tmp_path / "part-0"
    file.write_text("".join(criteo_line(n) for n in range(200)))
    found = [row for worker in range(workers) for row in rows_of(split_files([file], worker, workers), threads)]
    assert sorted(found) == list(range(200))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    counts=st.lists(st.integers(1, 120), min_size=1, max_size=6),
    packed=st.sets(st.integers(0, 5), max_size=2),
    workers=st.integers(1, 4),
    threads=st.integers(1, 2),
)
def test_uneven_files_are_read_once_by_all_workers_together(tmp_path, counts, packed, workers, threads):
    files, first = [], 0
    for number, count in enumerate(counts):
        content = "".join(criteo_line(n) for n in range(first, first + count)).encode()
        file = tmp_path / (f"part-{number}.gz" if number in packed else f"part-{number}")
        file.write_bytes(gzip.compress(content, mtime=0) if number in packed else content)
        files.append(file)
        first += count
    found = []
    for worker in range(workers):
        try:
            share = split_files(files, worker, workers)
        except ConfigError:
            assume(False)
        mine = rows_of(share, threads)
        assert mine
        found += mine
    assert sorted(found) == list(range(first))


def test_a_share_resumes_in_its_middle(tmp_path):
    file = tmp_path / "part-0"
    file.write_text("".join(criteo_line(n) for n in range(200)))
    share = split_files([file], 1, 3)
    assert "#bytes=" in share[0]

    def rows(position, stop_after=None):
        reader = QueueDataset(share, CriteoFormat(CRITEO), 10)
        reader.seek(position)
        found = []
        with reader.epoch(1) as epoch:
            for count, batch in enumerate(epoch.streams[0], 1):
                found += batch.dense[:, 0].tolist()
                reader.consumed(batch)
                if count == stop_after:
                    break
        return found, reader.position()

    whole, _ = rows({})
    first, position = rows({}, stop_after=3)
    rest, _ = rows(position)
    assert first + rest == whole
