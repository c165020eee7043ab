"""Cutting chunks into batches: sizes, marks, views."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reader_contract import numbers, rows

from sparsefleet.core.batch import Batch, Mark
from sparsefleet.core.errors import ConfigError
from sparsefleet.data.batching import Cutter
from sparsefleet.data.formats.base import Chunk


def chunk(first: int, stop: int, line: int = 0, *, offsets: bool = True) -> Chunk:
    lines = np.arange(1, stop - first + 1) + line
    return Chunk(rows(first, stop), lines, lines * 10 if offsets else None)


def cut(units: list[list[int]], batch_size: int, *, drop_last: bool = False) -> tuple[list[Batch], list[Mark]]:
    """Units given by the sizes of their chunks. Returns batches and marks without a batch."""
    cutter = Cutter(batch_size, drop_last=drop_last)
    batches: list[Batch] = []
    loose: list[Mark] = []
    row = 0
    for unit, sizes in enumerate(units):
        line = 0
        for size in sizes:
            batches += cutter.add(unit, chunk(row, row + size, line))
            row, line = row + size, line + size
        mark = cutter.end_unit(unit)
        loose += [] if mark is None else [mark]
    last, dropped = cutter.finish()
    return batches + last, loose + list(dropped)


def test_a_batch_inside_a_chunk_is_a_view_and_one_at_a_junction_is_not() -> None:
    cutter = Cutter(4)
    whole = chunk(0, 10)
    first, second = cutter.add(0, whole)
    assert np.shares_memory(first.keys, whole.batch.keys)
    assert np.shares_memory(second.dense, whole.batch.dense)
    (junction, _) = cutter.add(0, chunk(10, 20, 10))
    assert not np.shares_memory(junction.keys, whole.batch.keys)
    assert numbers(junction) == [8, 9, 10, 11]


def test_marks_say_how_far_each_unit_is_consumed() -> None:
    batches, _ = cut([[3], [2], [7]], 4)
    assert [batch.marks for batch in batches] == [
        (Mark(0, 3, 30, True), Mark(1, 1, 10, False)),
        (Mark(1, 2, 20, True), Mark(2, 3, 30, False)),
        (Mark(2, 7, 70, True),),
    ]


def test_the_last_row_of_a_unit_at_the_end_of_a_batch_is_known_to_be_the_last() -> None:
    batches, _ = cut([[4], [4]], 4)
    assert [batch.marks for batch in batches] == [(Mark(0, 4, 40, True),), (Mark(1, 4, 40, True),)]


def test_a_unit_without_rows_is_signed_off_by_the_batch_before_it() -> None:
    batches, loose = cut([[4], [], [0], [1]], 4)
    assert batches[0].marks == (Mark(0, 4, 40, True), Mark(1, 0, -1, True), Mark(2, 0, -1, True))
    assert loose == []
    assert cut([[], [4]], 4)[1] == [Mark(0, 0, -1, True)]


def test_without_byte_offsets_marks_have_none() -> None:
    cutter = Cutter(2)
    (batch,) = cutter.add(0, chunk(0, 3, offsets=False))
    assert batch.marks == (Mark(0, 2, -1, False),)


def test_what_is_complete_can_be_had_when_reading_fails() -> None:
    cutter = Cutter(4)
    assert cutter.add(0, chunk(0, 4)) == []
    assert [numbers(batch) for batch in cutter.full()] == [[0, 1, 2, 3]]
    assert cutter.full() == []


@given(
    units=st.lists(st.lists(st.integers(0, 9), max_size=4), max_size=6),
    batch_size=st.integers(1, 12),
    drop_last=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_rows_sizes_and_marks_always_add_up(units: list[list[int]], batch_size: int, drop_last: bool) -> None:
    batches, loose = cut(units, batch_size, drop_last=drop_last)
    total = sum(map(sum, units))
    kept = total // batch_size * batch_size if drop_last else total
    assert [n for batch in batches for n in numbers(batch)] == list(range(kept))
    assert all(len(batch) == batch_size for batch in batches[: None if drop_last else -1])
    consumed: dict[int, Mark] = {mark.unit: mark for mark in loose}
    row = 0
    for batch in batches:
        row += len(batch)
        for mark in batch.marks:
            assert mark.samples >= consumed.get(mark.unit, mark).samples
            consumed[mark.unit] = mark
        if batch is not batches[-1]:
            assert sum(mark.samples for mark in consumed.values()) == row
    assert {unit: (mark.samples, mark.done) for unit, mark in consumed.items()} == {
        unit: (sum(sizes), True) for unit, sizes in enumerate(units)
    }


@pytest.mark.parametrize("size", [0, -1, 1.5, True, "8"])
def test_a_senseless_batch_size_is_refused(size: int) -> None:
    with pytest.raises(ConfigError, match=r"batch_size=.* must be a whole number of samples"):
        Cutter(size)
