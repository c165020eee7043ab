"""Where a trainer stood in its input, as `sparsefleet checkpoint show` says it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sparsefleet.cli.positions import describe_position
from sparsefleet.core.schema import CRITEO
from sparsefleet.data.in_memory import InMemoryDataset
from sparsefleet.data.open import open_reader
from sparsefleet.data.passes import new_position

FILES = {"files": [["a", 300], ["b", 200], ["c.gz", 100]], "units": [["a", 0, 150], ["a", 150, None], ["b", 0, None]]}


@pytest.mark.parametrize(
    ("position", "words"),
    [
        ({}, "epoch 2, at its beginning"),
        (
            new_position("files", **FILES, progress=[[0, 1000, 150, True], [1, 500, 1234, False]]),
            "epoch 2, 1,500 rows of it, 0 of 2 files done: a at byte 1,234",
        ),
        (
            new_position("files", **FILES, progress=[[0, 9, 150, True], [1, 1, 300, True], [2, 5000, -1, False]]),
            "epoch 2, 5,010 rows of it, 1 of 2 files done: b at row 5,000",
        ),
        (
            new_position("memory", rows=4000, seed=0, epoch=0, units=[["", 0, 4000]], progress=[[0, 1000, -1, False]]),
            "epoch 2, row 1,000 of 4,000 in memory",
        ),
        (
            new_position(
                "memory",
                rows=4000,
                units=[["", 0, 2000], ["", 2000, 4000]],
                progress=[[0, 2000, -1, True], [1, 500, -1, False]],
            ),
            "epoch 2, row 2,500 of 4,000 in memory",
        ),
        (new_position("iterable", rows=1200, beyond=[]), "epoch 2, row 1,200"),
        ({"unit": 3, "rows": 120}, 'epoch 2, {"unit": 3, "rows": 120}'),
        ({"kind": "files", "units": "none"}, 'epoch 2, {"kind": "files", "units": "none"}'),
    ],
)
def test_positions_in_words(position: dict[str, Any], words: str) -> None:
    assert describe_position(position, 2) == words


def test_many_places_are_counted() -> None:
    units = [[f"part-{index}", 0, None] for index in range(20)]
    position = new_position("files", units=units, progress=[[index, 1, index, False] for index in range(20)])
    assert describe_position(position, 1).endswith("part-7 at byte 7, and 12 more")


def test_where_two_threads_read_from_memory(small_clicks: Path) -> None:
    reader = open_reader(str(small_clicks / "train"), CRITEO, kind="memory", batch_size=100, threads=2)
    assert isinstance(reader, InMemoryDataset)
    with reader.epoch(2) as epoch:
        for stream in epoch.streams:
            for batch in stream:
                reader.consumed(batch)
                break
        assert describe_position(reader.position(), 1) == "epoch 1, row 200 of 2,000 in memory"
