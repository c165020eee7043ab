"""A slot's values one by one: in training, and as a bundle's network gets them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sparsefleet.kernels.sequences import sequence_input, spread_slot

BAGS = st.lists(st.lists(st.lists(st.integers(0, 9), max_size=6), min_size=2, max_size=2), max_size=6)


@given(BAGS, st.integers(1, 5), st.integers(0, 1))
def test_the_last_values_side_by_side(bags, most, place):
    flat = [bag for sample in bags for bag in sample]
    offsets = np.cumsum([0, *map(len, flat)]).astype(np.int64)
    inverse = np.array([value for bag in flat for value in bag], np.int32)
    rows = np.arange(1, 21, dtype=np.float32).reshape(10, 2)
    made = sequence_input(rows, inverse, offsets, 2, place, most)
    assert made.shape == (len(bags), most * 3)
    tight = spread_slot(inverse, offsets, 2, place, most, tight=True)
    for sample, line in enumerate(made):
        values = bags[sample][place][-most:]
        wanted = [*rows[values].ravel(), *[0.0] * (2 * (most - len(values)))]
        assert line.tolist() == [*wanted, *[1.0] * len(values), *[0.0] * (most - len(values))]
        assert tight.mask[sample].sum() == len(values)
    assert len(tight.places) == max([1, *(min(most, len(sample[place])) for sample in bags)])
