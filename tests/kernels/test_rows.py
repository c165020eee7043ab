"""Native row kernels against their NumPy twins."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsefleet.core.errors import ConfigError
from sparsefleet.core.keyed_rows import KeyedRows
from sparsefleet.kernels import rows as native
from sparsefleet.kernels.reference import rows as reference

KEYS = st.one_of(st.integers(0, 20), st.sampled_from([0, 2**64 - 1, 2**63, 1000000]))


@st.composite
def bags(draw):
    slots, batch = draw(st.integers(1, 4)), draw(st.integers(0, 6))
    lengths = draw(st.lists(st.integers(0, 3), min_size=slots * batch, max_size=slots * batch))
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)
    keys = np.array(draw(st.lists(KEYS, min_size=int(offsets[-1]), max_size=int(offsets[-1]))), np.uint64)
    chosen = np.array(draw(st.lists(st.integers(0, slots - 1), min_size=1, max_size=slots)), np.int32)
    return keys, offsets, slots, chosen, draw(st.sampled_from([1, 3, 8, 10])), draw(st.booleans())


@given(st.lists(KEYS, max_size=200))
def test_unique_keys_agree(keys):
    keys = np.array(keys, np.uint64)
    for got, want in zip(native.unique_keys(keys), reference.unique_keys(keys), strict=True):
        np.testing.assert_array_equal(got, want)


@given(st.lists(KEYS, max_size=200))
def test_counted_keys_agree(keys):
    keys = np.array(keys, np.uint64)
    for got, want in zip(native.counted_keys(keys), reference.counted_keys(keys), strict=True):
        np.testing.assert_array_equal(got, want)
        assert got.dtype == want.dtype
    for got, want in zip(native.counted_keys(keys), native.unique_keys(keys), strict=False):
        np.testing.assert_array_equal(got, want)


def test_counts_of_equal_keys_are_added_and_stop_at_the_largest():
    def part(keys, counts):
        rows = np.ones((len(keys), 2), np.float32)
        return KeyedRows(np.array(keys, np.uint64), rows, None if counts is None else np.array(counts, np.uint32))

    total = native.sum_rows([part([5, 7], [3, 2**32 - 2]), part([7, 9], None), part([7, 5], [10, 2])])
    assert total.keys.tolist() == [5, 7, 9]
    assert total.counts.tolist() == [5, 2**32 - 1, 1]
    assert native.sum_rows([part([5], None), part([5], None)]).counts.tolist() == [2]
    with pytest.raises(ConfigError, match="2 keys need as many counts"):
        part([1, 2], [1])


def test_unique_keys_keep_the_order_of_first_appearance():
    unique, inverse = native.unique_keys(np.array([7, 3, 7, 9, 3], np.uint64))
    assert unique.tolist() == [7, 3, 9]
    assert inverse.tolist() == [0, 1, 0, 2, 1]


@given(st.lists(st.lists(KEYS, max_size=8, unique=True), min_size=1, max_size=4), st.sampled_from([1, 3, 8]))
def test_rows_of_equal_keys_are_added_in_the_order_of_the_parts(lists, dim):
    random = np.random.default_rng(0)
    parts = [KeyedRows(np.array(keys, np.uint64), random.normal(size=(len(keys), dim)).astype("f")) for keys in lists]
    want: dict[int, np.ndarray] = {}
    for part in parts:
        for key, row in zip(part.keys.tolist(), part.rows, strict=True):
            want[key] = want[key] + row if key in want else row
    total = native.sum_rows(parts)
    assert total.keys.tolist() == list(want)
    np.testing.assert_array_equal(total.rows, np.array(list(want.values()), np.float32).reshape(-1, dim))


@given(bags())
def test_select_slots_agree(case):
    keys, offsets, slots, chosen, _, _ = case
    got, want = (module.select_slots(keys, offsets, slots, chosen) for module in (native, reference))
    np.testing.assert_array_equal(got[0], want[0])
    np.testing.assert_array_equal(got[1], want[1])


@settings(max_examples=200)
@given(bags())
def test_pooling_agrees(case):
    keys, offsets, slots, chosen, dim, mean = case
    unique, inverse = native.unique_keys(keys)
    random = np.random.default_rng(0)
    rows = random.standard_normal((len(unique), dim), np.float32)
    batch = (len(offsets) - 1) // slots
    wide = [np.full((batch, len(chosen) * dim + 3), 7, np.float32) for _ in range(2)]  # rows that lie apart
    grads = random.standard_normal((batch, len(chosen) * dim + 3), np.float32)
    back = [np.zeros_like(rows) for _ in range(2)]
    for module, out, grad_rows in zip((native, reference), wide, back, strict=True):
        module.pool_forward(rows, inverse, offsets, slots, chosen, mean, out[:, : len(chosen) * dim])
        module.pool_backward(grads[:, 3:], inverse, offsets, slots, chosen, mean, grad_rows)
    np.testing.assert_allclose(wide[0], wide[1], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(back[0], back[1], rtol=1e-5, atol=1e-5)


@given(st.lists(st.tuples(st.floats(-0.5, 1.5, width=32), st.sampled_from([0.0, 1.0, 0.5, float("nan")]))))
def test_click_counts_agree(rows):
    probabilities = np.array([p for p, _ in rows], np.float32)
    labels = np.array([label for _, label in rows], np.float32)
    histograms = [(np.zeros(65, np.int64), np.zeros(65, np.int64)) for _ in range(2)]
    got = native.count_clicks(probabilities, labels, *histograms[0])
    want = reference.count_clicks(probabilities, labels, *histograms[1])
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1)  # a logarithm's last bit may decide how a part is rounded
    np.testing.assert_array_equal(histograms[0], histograms[1])


def test_broken_bags_are_refused():
    rows, inverse = np.zeros((1, 2), np.float32), np.zeros(3, np.int32)
    good, chosen = np.array([0, 1, 3], np.int64), np.array([0], np.int32)
    out = np.zeros((2, 2), np.float32)
    native.pool_forward(rows, inverse, good, 1, chosen, False, out)
    for offsets, places, shape in [
        (np.array([0, 1, 9], np.int64), chosen, (2, 2)),  # ends beyond the keys
        (np.array([0, 3], np.int64), chosen, (2, 2)),  # another number of rows than the output
        (good, np.array([1], np.int32), (2, 2)),  # a slot that is not there
        (good, chosen, (2, 3)),
    ]:
        with pytest.raises(ValueError, match="native kernel"):
            native.pool_forward(rows, inverse, offsets, 1, places, False, np.zeros(shape, np.float32))


def test_pooled_columns_whose_number_overflows_are_refused():
    """16 slots of 2**60 values are 0 columns, for 2**64 values: none may be written."""
    rows, none, offsets = np.empty((0, 2**60), np.float32), np.empty(0, np.int32), np.zeros(17, np.int64)
    for pool, one, other in (
        (native.pool_forward, rows, np.empty((1, 0), np.float32)),
        (native.pool_backward, np.empty((1, 0), np.float32), rows),
    ):
        with pytest.raises(ValueError, match="sizes are too large"):
            pool(one, none, offsets, 16, np.arange(16, dtype=np.int32), False, other)


HOSTILE = [
    ({"offsets": np.array([0, 100000000, 2])}, "offsets must never decrease"),
    ({"offsets": np.array([0, -(2**62), 2])}, "offsets must never decrease"),
    ({"offsets": np.array([0, 2**63 - 1, 2])}, "offsets must never decrease"),
    ({"offsets": np.array([1, 1, 2])}, "offsets must run from 0"),
    ({"offsets": np.array([0, 1, 3])}, "offsets must run from 0"),
    ({"offsets": np.array([0, 2])}, "offsets do not fit the slots"),
    ({"offsets": np.empty(0, np.int64)}, "offsets do not fit the slots"),
    ({"inverse": np.array([0, 3], np.int32)}, "place is not among the rows"),
    ({"inverse": np.array([-1, 0], np.int32)}, "place is not among the rows"),
    ({"inverse": np.array([0, 2**31 - 1], np.int32)}, "place is not among the rows"),
    ({"chosen": np.array([0, 2], np.int32)}, "chosen slot out of range"),
    ({"chosen": np.array([-1, 0], np.int32)}, "chosen slot out of range"),
    ({"slots": 0}, "offsets do not fit the slots"),
    ({"inverse": np.array([0.0, 1.0])}, "incompatible function arguments"),
    ({"offsets": np.array([0, 1, 2], np.int32)}, "incompatible function arguments"),
    ({"rows": np.zeros((3, 4))}, "incompatible function arguments"),
    ({"rows": np.zeros((3, 8), np.float32)[:, ::2]}, "incompatible function arguments"),
    ({"rows": np.zeros((0, 4), np.float32)}, "place is not among the rows"),
]


@pytest.mark.parametrize(("change", "message"), HOSTILE)
def test_no_array_makes_pooling_read_or_write_elsewhere(change, message):
    good = {
        "rows": np.ones((3, 4), np.float32),
        "inverse": np.array([0, 2], np.int32),
        "offsets": np.array([0, 1, 2]),
        "slots": 2,
        "chosen": np.array([0, 1], np.int32),
    }
    pooled = np.ones((1, 8), np.float32)
    rows, *bags = good.values()
    native.pool_forward(rows, *bags, False, pooled)
    native.pool_backward(pooled, *bags, False, rows)
    rows, *bags = {**good, **change}.values()
    with pytest.raises((ValueError, TypeError), match=message):
        native.pool_forward(rows, *bags, False, pooled)
    with pytest.raises((ValueError, TypeError), match=message):
        native.pool_backward(pooled, *bags, False, rows)


@pytest.mark.parametrize(
    ("offsets", "chosen", "message"),
    [
        ([0, 100000000, 2], [0], "offsets must never decrease"),
        ([0, -5, 2], [0], "offsets must never decrease"),
        ([0, 1, 3], [0], "offsets must run from 0"),
        ([0, 1, 2], [2], "chosen slot out of range"),
    ],
)
def test_no_array_makes_a_selection_read_elsewhere(offsets, chosen, message):
    keys = np.arange(2, dtype=np.uint64)
    assert native.select_slots(keys, np.array([0, 1, 2]), 2, np.array([1], np.int32))[0].tolist() == [1]
    with pytest.raises(ValueError, match=message):
        native.select_slots(keys, np.array(offsets), 2, np.array(chosen, np.int32))


@given(
    st.integers(1, 2), st.lists(st.tuples(st.floats(-80, 80, width=32), st.floats(-80, 80, width=32), st.booleans()))
)
def test_click_loss_agrees(width, rows):
    logits = np.array([row[:width] for row in rows], np.float32).reshape(-1, width)
    labels = np.array([row[2] for row in rows], np.float32)
    got, want = (module.click_loss(logits, labels) for module in (native, reference))
    assert got[0] == pytest.approx(want[0], rel=1e-5, abs=1e-5)
    np.testing.assert_allclose(got[1], want[1], rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(got[2], want[2], rtol=1e-4, atol=1e-6)
