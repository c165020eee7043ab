"""Samples by position, and Fluid's names of PyReader."""

from __future__ import annotations

import numpy as np
import pytest

import sparsefleet as sf
from sparsefleet.core.batch import Batch
from sparsefleet.core.errors import ConfigError
from sparsefleet.data.base import Reader

INPUTS = [("dense_input", 2), "user", "ad", "label"]
SAMPLES = [([0.5, 0.1], [17], [4, 8], [1]), ([0.2, 0.3], [1], [2], [0]), ([0.0, 1.0], [3], [9], [1])]
NAMED = [
    {"dense": dense, "user": user, "ad": ad, "label": label[0]} for dense, user, ad, label in SAMPLES
]  # what the same samples are by names


def batches(reader: Reader) -> list[Batch]:
    with reader.epoch() as epoch:
        return list(epoch.streams[0])


def same(one: Batch, other: Batch) -> bool:
    return all(
        np.array_equal(getattr(one, name), getattr(other, name)) for name in ("labels", "dense", "keys", "offsets")
    )


@pytest.mark.parametrize(
    "items",
    [
        SAMPLES,
        [list(sample) for sample in SAMPLES],
        [SAMPLES],
        [tuple(SAMPLES)],
        [[list(sample) for sample in SAMPLES[:2]], SAMPLES[2]],
        [(dense, user[0], ad, label[0]) for dense, user, ad, label in SAMPLES],
        [
            (np.array(dense, "float32"), np.array(user), np.array(ad), np.array(label))
            for dense, user, ad, label in SAMPLES
        ],
        [NAMED[0], SAMPLES[1], NAMED[2]],
    ],
)
def test_a_sample_is_a_list_of_values_in_the_order_of_the_inputs(items: list[object]) -> None:
    (wanted,) = batches(sf.Feeder(INPUTS, NAMED, batch_size=3))
    (found,) = batches(sf.PyReader(INPUTS, lambda: iter(items), batch_size=3))
    assert same(found, wanted)
    assert found.keys.tolist() == [17, 4, 8, 1, 2, 3, 9]


def test_a_schema_has_an_order_too() -> None:
    schema = sf.Schema(
        (sf.DenseFeature("age", 10, 10), sf.DenseFeature("price")), (sf.Slot("user"), sf.Slot("ad")), "click"
    )
    (found,) = batches(sf.Feeder(schema, [([0.5, 0.1], ["ann"], [4, 8], 1)]))
    assert found.dense.tolist() == [[0.5, pytest.approx(0.1)]]  # taken as they are
    (named,) = batches(sf.Feeder(schema, [{"click": 1, "dense": [0.5, 0.1], "user": "ann", "ad": [4, 8]}]))
    assert same(found, named)


def test_three_samples_of_three_inputs_are_not_mistaken_for_one() -> None:
    inputs = ["user", "ad", "label"]
    (found,) = batches(sf.Feeder(inputs, [[(1, 2, 1), (3, 4, 0), (5, 6, 1)]]))
    assert found.labels.tolist() == [1, 0, 1]
    (one,) = batches(sf.Feeder(inputs, [[(1, 2, 1), (3, 4, 0), [1]]]))
    assert one.keys.tolist() == [1, 2, 1, 3, 4, 0]
    assert one.offsets.tolist() == [0, 3, 6]


def test_batches_as_arrays() -> None:
    arrays = (np.ones((5, 2), "float32"), np.arange(5)[:, None], np.ones((5, 2), "int64"), np.zeros((5, 1), "int64"))
    assert sf.PyReader(INPUTS, 64).read_ahead == sf.PyReader(INPUTS, capacity=64).read_ahead == 64  # Fluid's positions
    with pytest.raises(ConfigError, match="give Fluid's settings by name"):
        sf.PyReader(INPUTS, 64, True)
    reader = sf.PyReader(feed_list=INPUTS, capacity=64)
    reader.decorate_batch_generator(lambda: iter([arrays]))
    (found,) = batches(reader)
    assert (len(found), found.dense.shape, len(found.keys)) == (5, (5, 2), 15)


def test_fluids_names_of_generators() -> None:
    reader = sf.PyReader(feed_list=INPUTS, capacity=4)
    with pytest.raises(ConfigError, match="PyReader has no generator yet"):
        batches(reader)
    reader = sf.PyReader(feed_list=INPUTS, capacity=4)
    reader.decorate_sample_generator(lambda: iter(SAMPLES), batch_size=2, drop_last=False)
    assert [len(batch) for batch in batches(reader)] == [2, 1]
    reader = sf.PyReader(feed_list=INPUTS, capacity=4)
    reader.decorate_sample_generator(lambda: iter(SAMPLES), batch_size=2)
    assert [len(batch) for batch in batches(reader)] == [2]
    reader = sf.PyReader(feed_list=INPUTS, capacity=4)
    reader.decorate_sample_list_generator(lambda: iter([SAMPLES[:1], SAMPLES[1:]]))
    assert [len(batch) for batch in batches(reader)] == [1, 2]
    reader = sf.PyReader(feed_list=INPUTS, capacity=4, iterable=True, use_double_buffer=False, return_list=True)
    reader.decorate_sample_generator(lambda: iter(SAMPLES), batch_size=2)
    assert [len(batch) for batch in batches(reader)] == [2]
    with pytest.raises(ConfigError, match=r"there is no start\(\) and no reset\(\) here"):
        sf.PyReader(feed_list=INPUTS, capacity=4, iterable=False)


@pytest.mark.parametrize(
    ("sample", "said"),
    [
        (([0.5, 0.1], [17], [1]), "a sample of 3 values: .*by position it has 4: dense_input, user, ad, label"),
        (([0.5], [17], [4], [1]), "input 'dense_input' of a sample has 1 values.*there are 2 dense features"),
        (([0.5, 0.1], [17], [4], [1, 0]), "input 'label' of a sample must be one number; got"),
        ([SAMPLES[0], SAMPLES[1][:3]], "a sample of 3 values: .*by position it has 4"),
        (([0.5, 0.1], [17], [-4], [1]), "slot 'ad' has the key -4"),
    ],
)
def test_samples_that_do_not_fit(sample: object, said: str) -> None:
    with pytest.raises(Exception, match=said) as caught:
        batches(sf.Feeder(INPUTS, [sample]))
    assert any("item 0" in note or "samples" in note for note in getattr(caught.value, "__notes__", []))
