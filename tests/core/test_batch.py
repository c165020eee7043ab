"""Batch: what is refused when one is built, and that every way to cut, join and send samples keeps all of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsefleet.core.batch import COLUMNS, Batch, Mark
from sparsefleet.core.errors import ConfigError, DataError
from sparsefleet.data.batching import Cutter
from sparsefleet.data.formats.base import Chunk
from sparsefleet.data.sample_blocks import Block, BlockBuilder, SampleBlocks
from sparsefleet.data.sample_bytes import from_bytes, to_bytes

SLOTS = ("a", "b")


def fields(**changes: Any) -> dict[str, Any]:
    """Two samples of two slots."""
    good = {
        "labels": np.array([0, 1], np.float32),
        "dense": np.zeros((2, 3), np.float32),
        "keys": np.arange(5, dtype=np.uint64),
        "offsets": np.array([0, 2, 2, 4, 5], np.int64),
        "slots": SLOTS,
    }
    return {**good, **changes}


def same(one: Batch, other: Batch) -> None:
    assert one.slots == other.slots
    assert one.layout == other.layout
    for name in ("keys", "offsets", *one.columns()):
        mine, theirs = getattr(one, name), getattr(other, name)
        assert mine.dtype == theirs.dtype
        assert mine.flags.c_contiguous
        np.testing.assert_array_equal(mine, theirs, name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"offsets": np.array([0, 100000000, 2, 4, 5])}, "must never decrease; offset 1 is 100000000, the next one 2"),
        ({"offsets": np.array([0, -1, 2, 4, 5])}, "must never decrease; offset 0 is 0, the next one -1"),
        ({"offsets": np.array([1, 2, 2, 4, 5])}, "must run from 0 to the number of keys .5.; got 1 to 5"),
        ({"offsets": np.array([0, 2, 2, 4, 4])}, "got 0 to 4"),
        ({"offsets": np.array([0, 2, 5])}, "2 samples and 2 slots needs 5 offsets; got 3"),
        ({"offsets": np.empty(0, np.int64)}, "needs 5 offsets; got 0"),
        (
            {"offsets": np.array([0, 2, 2, 4, 5], np.int32)},
            r"offsets must be a C-contiguous array of int64 \[B",
        ),
        ({"offsets": np.array([0, 9, 2, 9, 2, 9, 4, 9, 5])[::2]}, "not contiguous: convert it by np.ascontiguousarray"),
        ({"offsets": [0, 2, 2, 4, 5]}, "offsets must be .*; got list"),
        ({"keys": np.arange(5)}, r"keys must be a C-contiguous array of uint64 \[N\]; got int64 \[5\]"),
        ({"keys": np.arange(10, dtype=np.uint64)[::2]}, r"keys .* got uint64 \[5\], not contiguous"),
        ({"keys": np.arange(5, dtype=">u8")}, "keys .* got >u8"),
        ({"labels": np.zeros(2)}, r"labels must be a C-contiguous array of float32 \[B\] or \[B, L\]; got float64"),
        ({"labels": np.zeros((2, 1, 1), np.float32)}, r"got float32 \[2, 1, 1\]"),
        ({"labels": np.zeros(3, np.float32)}, r"one entry per sample; got labels \[3\], dense \[2, 3\]"),
        ({"dense": np.zeros((3, 2), np.float32).T}, "dense .* not contiguous"),
        ({"dense": np.zeros(2, np.float32)}, r"dense must be .* \[B, n\]; got float32 \[2\]"),
        ({"weights": np.ones((2, 1), np.float32)}, r"weights must be .*float32 \[B\]"),
        ({"weights": np.ones(1, np.float32)}, r"one entry per sample; .*weights \[1\]"),
        ({"groups": np.ones(2, np.int64)}, r"groups must be .*uint64 \[B\]; got int64"),
        ({"times": np.ones(2)}, r"times must be .*int64 \[B\]; got float64"),
        ({"slots": ["a", "b"]}, "slots must be a tuple of names; got list"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], message: str) -> None:
    Batch(**fields())
    with pytest.raises(ConfigError, match=message):
        Batch(**fields(**change))


@pytest.mark.parametrize(
    ("keys", "offsets", "message"),
    [
        ([1, 2, 3], [0, 3, 2], "slot 'a': offsets must run from 0 to the number of keys"),
        ([1, 2], [0, 3, 2], "slot 'a': offsets must never decrease"),
        ([1, -2], [0, 1, 2], "slot 'a': keys must be a list of whole numbers"),
        ([1.5, 2], [0, 1, 2], "slot 'a': keys must be"),
        ([1, 2], [], "slot 'a': offsets must be"),
        ([1, 2], [0.0, 2.0], "slot 'a': offsets must be"),
    ],
)
def test_a_slot_that_does_not_fit_is_refused(keys: list[Any], offsets: list[Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Batch.from_slots({"a": (keys, offsets)})


@pytest.mark.parametrize(("start", "stop"), [(-1, 1), (0, 3), (2, 1), (3, 3)])
def test_samples_that_are_not_there_are_refused(start: int, stop: int) -> None:
    with pytest.raises(ConfigError, match=f"samples {start} to {stop} of a batch that has 2"):
        Batch(**fields()).samples(start, stop)


@pytest.mark.parametrize(
    "change",
    [
        {"slots": ("a", "c")},
        {"dense": np.zeros((2, 2), np.float32)},
        {"labels": np.zeros((2, 1), np.float32)},
        {"weights": np.ones(2, np.float32)},
    ],
)
def test_batches_of_different_layouts_are_not_joined(change: dict[str, Any]) -> None:
    one, other = Batch(**fields()), Batch(**fields(**change))
    with pytest.raises(ConfigError, match="batches of different layouts cannot be joined"):
        Batch.concat([one, other])
    builder = BlockBuilder(SLOTS, 3)
    builder.add(one)
    with pytest.raises(ConfigError, match="do not fit among samples"):
        builder.add(other)


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    """Any batch of any of the fields; a sample's number stands in each of its columns."""
    samples, dense = draw(st.integers(0, 9)), draw(st.integers(0, 2))
    lengths = draw(st.lists(st.integers(0, 3), min_size=2 * samples, max_size=2 * samples))
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    number = np.arange(samples)
    labels = draw(st.sampled_from([0, 1, 2]))
    optional = {
        name: (number * 3 + 1).astype(COLUMNS[name][0])
        for name in draw(st.sets(st.sampled_from(["weights", "groups", "times"])))
    }
    return Batch(
        labels=(np.stack([number] * labels, 1) if labels else number).astype(np.float32),
        dense=np.stack([number + 1] * dense, 1).astype(np.float32) if dense else np.empty((samples, 0), np.float32),
        keys=draw(
            st.lists(st.integers(0, 2**64 - 1), min_size=int(offsets[-1]), max_size=int(offsets[-1])).map(
                lambda keys: np.array(keys, np.uint64)
            )
        ),
        offsets=offsets,
        slots=SLOTS,
        **optional,
    )


@settings(max_examples=150, deadline=None)
@given(batches(), st.data())
def test_cutting_joining_taking_and_sending_keep_every_field(batch: Batch, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(batch)))
    parts = [batch.samples(0, cut), batch.samples(cut, len(batch))]
    same(Batch.concat(parts), batch)
    for part in parts:
        Batch(part.labels, part.dense, part.keys, part.offsets, part.slots)  # what is trusted would pass
    same(batch.take(np.arange(len(batch))), batch)
    order = np.array(data.draw(st.permutations(range(len(batch)))), np.int64)
    same(batch.take(order).take(np.argsort(order)), batch)
    same(from_bytes(to_bytes(batch), SLOTS, batch.dense.shape[1]), batch)
    assert batch.with_marks([Mark(1, 2)]).marks == (Mark(1, 2),)
    same(batch.with_marks([Mark(1, 2)]), batch)
    if len(batch):
        held = SampleBlocks(SLOTS, batch.dense.shape[1], [Block.of([part]) for part in parts if len(part)])
        same(held.gather(order), batch.take(order))
        cutter = Cutter(2)
        done = [*cutter.add(0, Chunk(batch, np.arange(1, len(batch) + 1))), *cutter.finish()[0]]
        same(Batch.concat(done), batch)


@settings(max_examples=100, deadline=None)
@given(batches(), st.integers(0, 200), st.integers(0, 255))
def test_damaged_bytes_are_refused_or_a_sound_batch(batch: Batch, place: int, byte: int) -> None:
    sent = to_bytes(batch)
    sent[place % len(sent)] = byte
    try:
        got = from_bytes(sent, SLOTS, batch.dense.shape[1])
    except DataError:
        return
    Batch(got.labels, got.dense, got.keys, got.offsets, got.slots)


def test_new_fields_cost_nothing_where_they_are_not_given() -> None:
    batch = Batch(**fields())
    assert list(batch.columns()) == ["labels", "dense"]
    assert batch.samples(0, 1).weights is batch.take(np.array([1])).groups is None
    with_all = Batch(**fields(weights=np.ones(2, np.float32), groups=np.ones(2, np.uint64), times=np.ones(2, np.int64)))
    assert list(with_all.columns()) == list(COLUMNS)
