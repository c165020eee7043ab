"""Feeder and PyReader: the reader contract, and what Python objects they take."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from reader_contract import (
    SCHEMA,
    ReaderContract,
    drain,
    numbers,
    reading_threads,
    rows,
    same,
    wait_until_a_reader_waits,
)
from waiting import wait_until

from sparsefleet.core.batch import Batch
from sparsefleet.core.errors import ConfigError, DataError, SparseFleetError
from sparsefleet.core.schema import DenseFeature, Schema, Slot
from sparsefleet.data.base import Reader
from sparsefleet.data.feeder import Feeder
from sparsefleet.data.py_reader import PyReader
from sparsefleet.data.python_samples import batch_of, batch_of_samples
from sparsefleet.data.stable_hash import stable_hash

ROWS = 53


def sample(n: int) -> dict[str, Any]:
    one = rows(n, n + 1)
    return {"label": n, "dense": [n, -n], "a": one.slot("a")[0].tolist(), "b": one.slot("b")[0].tolist()}


def columns(first: int, stop: int) -> dict[str, Any]:
    whole = rows(first, stop)
    return {"label": whole.labels, "dense": whole.dense, "a": whole.slot("a"), "b": whole.slot("b")}


def batches() -> Iterator[Batch]:
    for first in range(0, ROWS, 10):
        yield rows(first, min(first + 10, ROWS))


def dicts() -> list[dict[str, Any]]:
    return [columns(first, min(first + 7, ROWS)) for first in range(0, ROWS, 7)]


def samples() -> Iterator[dict[str, Any]]:
    yield from map(sample, range(ROWS))


def lists() -> Iterator[list[dict[str, Any]]]:
    for first in range(0, ROWS, 9):
        yield [sample(n) for n in range(first, min(first + 9, ROWS))]


def mixed() -> Iterator[Any]:
    yield rows(0, 10)
    yield from map(sample, range(10, 14))
    yield columns(14, 30)
    yield []
    yield [sample(n) for n in range(30, 31)]
    yield from map(sample, range(31, ROWS))


def broken() -> Iterator[Any]:
    yield rows(0, 10)
    raise RuntimeError("the generator failed")


class TestFeeder(ReaderContract):
    def make(self, batch_size: int = 8) -> Reader:
        return Feeder(SCHEMA, dicts(), batch_size)

    def make_empty(self) -> Reader:
        return Feeder(SCHEMA, [], 8)

    def make_broken(self) -> tuple[Reader, type[BaseException], str]:
        return Feeder(SCHEMA, broken, 8), RuntimeError, "the generator failed"


class TestPyReaderSamples(ReaderContract):
    source = staticmethod(samples)

    def make(self, batch_size: int = 8) -> Reader:
        return PyReader(SCHEMA, self.source, batch_size)

    def make_empty(self) -> Reader:
        return PyReader(SCHEMA, lambda: [], 8)

    def make_broken(self) -> tuple[Reader, type[BaseException], str]:
        return PyReader(SCHEMA, broken, 8), RuntimeError, "the generator failed"


class TestPyReaderLists(TestPyReaderSamples):
    source = staticmethod(lists)


class TestPyReaderBatches(TestPyReaderSamples):
    source = staticmethod(batches)


class TestPyReaderMixed(TestPyReaderSamples):
    source = staticmethod(mixed)


def test_a_feeder_gives_batches_as_they_were_handed_in() -> None:
    handed = [rows(0, 3), rows(3, 10), rows(10, 11)]
    reader = Feeder(SCHEMA, handed)
    (given,) = drain(reader)
    assert [numbers(batch) for batch in given] == [numbers(batch) for batch in handed]
    assert all(np.shares_memory(one.keys, other.keys) for one, other in zip(given[:2], handed, strict=False))
    assert reader.position() == {}


def test_going_on_keeps_batches_as_they_were_handed_in() -> None:
    handed = [rows(0, 3), rows(3, 10), rows(10, 11), rows(11, 20)]
    reader = Feeder(SCHEMA, handed)
    with reader.epoch() as epoch:
        for _ in range(2):
            reader.consumed(next(epoch.streams[0]))
        position = reader.position()
    assert (position["rows"], position["beyond"]) == (10, [])
    again = Feeder(SCHEMA, handed)
    again.seek(position)
    assert [len(batch) for batch in drain(again)[0]] == [1, 9]


def test_rows_consumed_out_of_order_are_left_out_when_going_on() -> None:
    reader = Feeder(SCHEMA, [rows(n, n + 5) for n in range(0, 30, 5)])
    with reader.epoch(2) as epoch:
        first, second = next(epoch.streams[0]), next(epoch.streams[1])
        third = next(epoch.streams[0])
        reader.consumed(third)
        reader.consumed(second)
        position = reader.position()
    assert position["rows"] == 0
    left = sorted({*range(30)} - {*numbers(second), *numbers(third)})
    again = Feeder(SCHEMA, [rows(0, 30)], 4)
    again.seek(position)
    assert [n for batch in drain(again)[0] for n in numbers(batch)] == left
    assert numbers(first)[0] in left


def test_an_iterable_that_has_become_shorter_is_an_error() -> None:
    reader = PyReader(SCHEMA, samples, 10)
    with reader.epoch() as epoch:
        for _ in range(3):
            reader.consumed(next(epoch.streams[0]))
        position = reader.position()
    shorter = PyReader(SCHEMA, lambda: map(sample, range(20)), 10)
    shorter.seek(position)
    with pytest.raises(DataError, match="ended after 20 samples, but the position says that 30 samples had been drawn"):
        drain(shorter)


@pytest.mark.parametrize(
    "change", [{"rows": -1}, {"rows": "3"}, {"beyond": 7}, {"beyond": [[3]]}, {"beyond": [[9, 4]]}]
)
def test_a_damaged_position_is_refused(change: dict[str, Any]) -> None:
    reader = Feeder(SCHEMA, dicts(), 8)
    with reader.epoch() as epoch:
        reader.consumed(next(epoch.streams[0]))
    with pytest.raises(ConfigError, match="reader position: "):
        reader.seek({**reader.position(), **change})


def test_an_iterator_serves_one_epoch_and_says_so() -> None:
    reader = Feeder(SCHEMA, iter(dicts()))
    drain(reader)
    with pytest.raises(ConfigError, match="used up by an earlier epoch"):
        reader.epoch()


def test_a_generator_is_run_once_per_epoch_by_one_thread_at_a_time_and_closed() -> None:
    starts, ends, inside = [], [], threading.Lock()

    def source() -> Iterator[Batch]:
        starts.append(threading.current_thread().name)
        try:
            for first in range(0, 200, 5):
                assert inside.acquire(blocking=False), "two threads are in the generator"
                time.sleep(0.0005)
                inside.release()
                yield rows(first, first + 5)
        finally:
            ends.append(1)

    reader = PyReader(SCHEMA, source, 8)
    drain(reader, 3)
    with reader.epoch(2) as epoch:
        next(epoch.streams[0])
    assert len(starts) == len(ends) == 2


def test_close_does_not_wait_long_for_a_generator_that_sleeps(caplog: pytest.LogCaptureFixture) -> None:
    wake = threading.Event()

    def source() -> Iterator[Batch]:
        yield rows(0, 5)
        wake.wait(10)
        yield rows(5, 9)

    with PyReader(SCHEMA, source, 4).epoch(2):
        wait_until_a_reader_waits()
        started = time.monotonic()
    assert time.monotonic() - started < 1.5
    assert "still busy in a read" in caplog.text
    wake.set()
    wait_until(lambda: not reading_threads(), 10, "the end of the reading threads")


def test_reading_ahead_is_bounded() -> None:
    drawn = []

    def source() -> Iterator[Batch]:
        for first in range(0, 10_000, 10):
            drawn.append(first)
            yield rows(first, first + 10)

    with PyReader(SCHEMA, source, 10, capacity=3).epoch() as epoch:
        next(epoch.streams[0])
        wait_until_a_reader_waits()
        assert len(drawn) < 10


def test_a_bad_item_is_located() -> None:
    reader = Feeder(SCHEMA, [columns(0, 5), {**columns(5, 9), "a": [[-1]] * 4}])
    with pytest.raises(DataError, match="slot 'a' has the key -1") as caught:
        drain(reader)
    assert caught.value.__notes__ == ["in item 1 of the source"]


def test_a_generator_object_instead_of_its_function_is_refused() -> None:
    with pytest.raises(ConfigError, match="such as `clicks`, not `clicks"):
        PyReader(SCHEMA, samples())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="needs an iterable of batches or a function"):
        Feeder(SCHEMA, 5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="put this one into a list"):
        Feeder(SCHEMA, columns(0, 4))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="needs a Schema first"):
        Feeder([], [])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="the source gave int"):
        Feeder(SCHEMA, lambda: 5).epoch()  # type: ignore[arg-type, return-value]


# What a batch may be


def test_every_way_to_write_a_batch_gives_the_same() -> None:
    bags = [[1], [2], [3]]
    ways: list[Any] = [
        bags,
        [1, 2, 3],
        np.asarray(bags),
        np.asarray([1, 2, 3], np.uint64),
        (np.asarray([1, 2, 3]), np.asarray([0, 1, 2, 3])),
        ([1, 2, 3], [0, 1, 2, 3]),
        [np.asarray([1]), (2,), 3],
    ]
    expected = batch_of({"label": [0, 1, 0], "dense": np.zeros((3, 2)), "a": bags, "b": bags}, SCHEMA)
    assert expected.slot("a")[0].tolist() == [1, 2, 3]
    for way in ways:
        assert same(batch_of({"label": [0, 1, 0], "dense": np.zeros((3, 2)), "a": way, "b": bags}, SCHEMA), expected)


def test_tensors_will_do() -> None:
    torch = pytest.importorskip("torch")
    given = {
        "label": torch.tensor([[0], [1]]),
        "dense": torch.ones(2, 2),
        "a": torch.tensor([[1, 2], [3, 4]]),
        "b": (torch.tensor([5]), torch.tensor([0, 0, 1])),
    }
    batch = batch_of(given, SCHEMA)
    assert batch.labels.tolist() == [0.0, 1.0]
    assert batch.slot("a")[1].tolist() == [0, 2, 4]
    assert batch.slot("b")[1].tolist() == [0, 0, 1]
    (one,) = drain(Feeder(SCHEMA, [{"label": torch.tensor(1), "a": torch.tensor([7]), "b": torch.tensor(8)}]))[0]
    assert one.keys.tolist() == [7, 8]


def test_ragged_and_empty_bags_and_none() -> None:
    batch = batch_of(
        {"label": [0, 1, 0], "dense": np.zeros((3, 2)), "a": [[], [1, 2], None], "b": [[3], [], [4]]}, SCHEMA
    )
    assert batch.slot("a")[1].tolist() == [0, 0, 2, 2]
    assert batch.keys.tolist() == [3, 1, 2, 4]


def test_text_is_hashed_with_the_slots_prefix_and_folded() -> None:
    for dim in (0, 1000):
        schema = Schema(dense=(), slots=(Slot("a"), Slot("b", "14")), sparse_feature_dim=dim, hash_seed=7)
        batch = batch_of_samples([{"a": ["x", b"y"], "b": "68fd1e64"}], schema)
        keys = [stable_hash(text, 7) for text in ("a\x1fx", "a\x1fy", "1468fd1e64")]
        assert batch.keys.tolist() == [key % dim if dim else key for key in keys]


def test_keys_of_all_64_bits_pass() -> None:
    schema = Schema(dense=(), slots=(Slot("a", keys=True),), sparse_feature_dim=0)
    top = 2**64 - 1
    for bag in ([top, 0, 2**63], np.asarray([top, 0, 2**63], np.uint64)):
        assert batch_of_samples([{"a": bag}], schema).keys.tolist() == [top, 0, 2**63]
    assert batch_of_samples(
        [{"a": [2000005]}], SCHEMA.folded(1000001).__class__(dense=(), slots=(Slot("a", keys=True),))
    ).keys == [3]


def test_dense_features_by_name_are_normalised() -> None:
    schema = Schema(dense=(DenseFeature("x", -3, 603), DenseFeature("y")), slots=(Slot("a"),))
    batch = batch_of_samples([{"x": 1, "a": 1}, {"x": None, "y": 5, "a": 1}], schema)
    assert batch.dense.tolist() == [[np.float32(4 / 603), 0.0], [0.0, 5.0]]
    assert np.isnan(batch.labels).all()
    same_columns = batch_of({"x": [1, None], "y": np.asarray([np.nan, 5]), "a": [1, 1]}, schema)
    assert same(
        batch_of_samples([{"x": 1, "a": 1, "label": 0}] * 1, schema),
        batch_of({"x": [1], "a": [1], "label": [0]}, schema),
    )
    assert same_columns.dense.tolist() == batch.dense.tolist()


GOOD = {"label": [0, 1], "dense": np.zeros((2, 2)), "a": [[1], [2]], "b": [[3], [4]]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"c": [1, 2]}, "c is not in the schema; it has label 'label'"),
        ({"a": None}, "no column for slot a"),
        ({"a": [[1]]}, "differ in their number of samples: .*'a': 1, 'b': 2"),
        ({"label": [0, 1, 1]}, "differ in their number of samples"),
        ({"dense": np.zeros((2, 3))}, r"must have shape \[samples, 2\]; got \[2, 3\]"),
        ({"dense": np.zeros((3, 2))}, "differ in their number of samples"),
        ({"label": ["yes", "no"]}, "column 'label' is not made of numbers"),
        ({"dense": [[1, 2], [3]]}, "column 'dense' is not made of numbers, or its samples differ"),
        ({"a": [[1.5], [2]]}, "slot 'a' has 1.5 of type float"),
        ({"a": np.asarray([1.5, 2])}, "slot 'a' has 1.5 of type float"),
        ({"a": [[-1], [2]]}, "slot 'a' has the key -1"),
        ({"a": [[2**64], [2]]}, "slot 'a' has 18446744073709551616"),
        ({"a": [[True], [2]]}, "slot 'a' has True of type bool"),
        ({"a": np.zeros((2, 1, 1), int)}, r"an array must be \[samples\] or \[samples, values\]"),
        ({"a": 5}, "must be a list of lists"),
        ({"a": [["x\udc80"], [2]]}, r"slot 'a' has 'x\\udc80', which is not valid Unicode: .* give bytes"),
        ({"a": ["\ud800", "y"]}, r"slot 'a' has '\\ud800', which is not valid Unicode"),
        ({"a": ([1, 2], [0, 1, 3])}, "offsets end at 3, but there are 2 keys"),
        ({"a": ([1, 2], [0, 2, 1])}, "start at 0 and never decrease"),
    ],
)
def test_a_bad_batch_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(SparseFleetError, match=message):
        batch_of({**GOOD, **change}, SCHEMA)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ([{"label": [1, 2], "a": 1}], "of a sample must be one number"),
        ([{"label": 1, "dense": [1, 2, 3]}], "3 dense features; the schema has 2"),
        ([{"label": 1, "dense": [1, 2]}, {"label": 1}], "some samples have `dense` and others do not"),
        ([{"label": 1, "z": 1}], "z is not in the schema"),
        ([5], "a sample must be a dict; got int"),
        ([{"label": 1, "d0": "1e-400"}], "column 'd0' is not made of numbers: not a number: '1e-400'"),
        ([{"label": 1, "d0": "inf"}], "column 'd0' is not made of numbers"),
        ([{"label": 1, "d0": float("inf")}], "dense feature 'd0' has inf: number too large for float32"),
        ([{"label": 1, "d0": "2e39"}], r"dense feature 'd0' has 2e\+39: number too large for float32"),
        ([{"label": 1, "d0": -1e300}], r"dense feature 'd0' has -1e\+300: number too large for float32"),
        ([{"label": 1, "a": "x\udc80"}], "not valid Unicode"),
    ],
)
def test_a_bad_sample_is_refused(bad: list[Any], message: str) -> None:
    with pytest.raises(SparseFleetError, match=message):
        batch_of_samples(bad, SCHEMA)


def test_nan_is_a_missing_number_with_transforms_too() -> None:
    """As data frames have it."""
    schema = Schema(dense=(DenseFeature("age", 0.0, 10.0, missing=30.0),), slots=(Slot("city"),))
    rows = [{"age": age, "city": "Oslo", "label": 1} for age in (20.0, float("nan"), None, "")]
    assert batch_of_samples(rows, schema).dense[:, 0].tolist() == [2.0, 3.0, 3.0, 3.0]


def test_a_batch_of_another_schema_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"the batch has slots \('z',\)"):
        batch_of(Batch.from_slots({"z": ([1], [0, 1])}), SCHEMA)
    with pytest.raises(ConfigError, match="0 dense features; the schema has 2"):
        batch_of(Batch.from_slots({"a": ([1], [0, 1]), "b": ([1], [0, 1])}), SCHEMA)
    with pytest.raises(ConfigError, match="must be a Batch or a dict of columns; got SimpleNamespace"):
        batch_of(SimpleNamespace(), SCHEMA)  # type: ignore[arg-type]
