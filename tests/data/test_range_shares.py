"""Files shared out by byte ranges: what split_files gives a worker, the readers read."""

import numpy as np
import pytest

from sparsefleet.core.schema import CRITEO
from sparsefleet.data.formats.criteo import CriteoFormat
from sparsefleet.data.queue_dataset import QueueDataset
from sparsefleet.data.split import split_files


def criteo_line(number):
    return "\t".join(["1", *[str(number)] * 13, *["68fd1e64"] * 26]) + "\n"


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_workers_read_each_row_once(tmp_path, workers, threads):
    file = tmp_path / "part-0"
    file.write_text("".join(criteo_line(n) for n in range(200)))
    found = []
    for worker in range(workers):
        reader = QueueDataset(split_files([file], worker, workers), CriteoFormat(CRITEO), 16)
        with reader.epoch(threads) as epoch:
            for stream in epoch.streams:
                for batch in stream:
                    found += np.round(batch.dense[:, 0] * 20).astype(int).tolist()
                    reader.consumed(batch)
    assert sorted(found) == list(range(200))


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
