"""Cuts of tables: one moment, read while the table goes on."""

from __future__ import annotations

import numpy as np
import pytest

from sparsefleet import optim
from sparsefleet.core.errors import StoreError
from sparsefleet.table import DenseTable, SparseTable, TableSpec


def table() -> SparseTable:
    made = SparseTable(TableSpec("ads", 3, optim.Adam(0.1)))
    made.push(np.arange(500, dtype=np.uint64), np.ones((500, 3), np.float32))
    return made


def contents(batches) -> dict[int, tuple[bytes, bytes, int]]:
    return {
        int(key): (rows.values[i].tobytes(), rows.state[i].tobytes(), int(rows.seen[i]))
        for rows in batches
        for i, key in enumerate(rows.keys)
    }


def test_a_cut_has_the_rows_and_the_step_of_its_moment():
    rows = table()
    expected = contents(rows.scan())
    with rows.begin_cut() as cut:
        assert (cut.step, cut.rows) == (1, 500)
        batches = cut.scan(64)
        found = [next(batches)]
        rows.push(np.arange(400, 900, dtype=np.uint64), np.ones((500, 3), np.float32))
        found += batches
        assert [len(batch) for batch in found] == [64] * 7 + [52]
    assert contents(found) == expected
    assert (rows.step, rows.rows) == (2, 900)


def test_a_cut_is_read_once_and_not_after_its_end():
    rows = table()
    cut = rows.begin_cut()
    with pytest.raises(StoreError, match="batch_rows=0 must be 1 or above"):
        cut.scan(0)
    batches = cut.scan(100)
    next(batches)
    with pytest.raises(StoreError, match=r"'ads': this cut has been read; begin another one"):
        cut.scan()
    cut.close()
    with rows.begin_cut() as second:
        with pytest.raises(StoreError, match=r"'ads': the cut was closed before it was read to its end"):
            next(batches)
        assert len(contents(second.scan())) == 500, "nothing of it went to the cut before"
        cut.close()
        with pytest.raises(StoreError, match=r"'ads': a cut of it is open already"):
            rows.begin_cut()


def test_rows_are_not_forgotten_while_a_cut_is_open():
    rows = table()
    with rows.begin_cut(), pytest.raises(StoreError, match=r"'ads': its rows cannot be replaced while a checkpoint"):
        rows.clear()
    assert len(rows) == 500
    rows.clear()
    assert len(rows) == 0


def test_a_cut_of_a_dense_block_stays_as_it_was():
    values = np.arange(10, dtype=np.float32)
    block = DenseTable("net", values, optim.Adam(0.1))
    block.push(np.ones(10, np.float32))
    expected = values.copy(), block.state.copy()
    cut = block.begin_cut()
    block.push(np.ones(10, np.float32))
    np.testing.assert_array_equal(cut.values, expected[0])
    np.testing.assert_array_equal(cut.state, expected[1])
    assert (cut.step, block.step, cut.rule, len(cut)) == (1, 2, block.rule, 10)
    assert not np.array_equal(cut.values, values)
