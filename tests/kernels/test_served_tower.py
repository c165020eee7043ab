"""Served towers: native kernels against their twins, whatever the widths, and whatever samples share."""

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_bundle_rows import KEYS, written

from sparsefleet.core.errors import BundleError
from sparsefleet.core.schema import DenseFeature, Schema, Slot
from sparsefleet.kernels import _native, levels
from sparsefleet.serving.kernels import tower as native
from sparsefleet.serving.kernels.reference import tower as reference
from sparsefleet.serving.kernels.request import PlainRequests
from sparsefleet.serving.kernels.tower import MappedTable, PooledColumns


@pytest.fixture(params=levels.chosen.available)
def level(request, monkeypatch):
    monkeypatch.setattr(native, "_native", _native.kernels(request.param))


def layers(widths, seed):
    draw = np.random.default_rng(seed)
    weights = [draw.normal(0, a**-0.5, (b, a)).astype(np.float32) for a, b in pairwise(widths)]
    return weights, [draw.normal(size=b).astype(np.float32) for b in widths[1:]]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_towers_agree(data):
    agree_on_towers(data)


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("seed", range(3))
def test_towers_agree_on_every_level(seed):
    widths = [(5, 7, 1), (40, 33, 16, 2), (273, 64, 48, 2)][seed]
    weights, biases = layers(widths, seed)
    x = np.random.default_rng(seed).normal(size=(130, widths[0])).astype(np.float32)
    x[:, : widths[0] // 2] = x[0, : widths[0] // 2]
    towers = [kind.ServedTower(weights, biases, widths[-1] - 1) for kind in (native, reference)]
    np.testing.assert_allclose(*(tower.probabilities(x) for tower in towers), rtol=0, atol=2e-6)


def agree_on_towers(data):
    hidden = data.draw(st.lists(st.integers(1, 70), min_size=1, max_size=3))
    widths = [data.draw(st.integers(1, 90)), *hidden, data.draw(st.integers(1, 2))]
    weights, biases = layers(widths, data.draw(st.integers(0, 99)))
    column = data.draw(st.integers(0, widths[-1] - 1))
    samples = data.draw(st.sampled_from([0, 1, 7, 8, 20, 129, 300]))
    x = np.random.default_rng(samples).normal(size=(samples, widths[0])).astype(np.float32)
    shared = data.draw(st.lists(st.integers(0, widths[0] - 1), max_size=2 * widths[0]))
    if samples:
        x[:, shared] = x[0, shared]
    towers = [kind.ServedTower(weights, biases, column) for kind in (native, reference)]
    for _ in range(2):  # room of the first call must not show in the second
        np.testing.assert_allclose(*(tower.probabilities(x) for tower in towers), rtol=0, atol=2e-6)


@pytest.mark.parametrize("shared", [False, True])
def test_what_is_not_a_number_stays_none(shared):
    weights, biases = layers((20, 17, 2), 0)
    x = np.ones((10, 20), np.float32) if shared else np.random.default_rng(0).normal(size=(10, 20)).astype(np.float32)
    weights[0][3, 5] = np.nan
    for kind in (native, reference):
        assert np.isnan(kind.ServedTower(weights, biases, 1).probabilities(x)).all()


def test_wrong_shapes_are_refused():
    weights, biases = layers((4, 3, 2), 0)
    tower = native.ServedTower(weights, biases, 1)
    with pytest.raises(ValueError, match="wrong shape"):
        tower.probabilities(np.zeros((2, 5), np.float32))
    for given_weights, given_biases, column in (
        (weights[1:], biases[1:], 1),
        (weights[::-1], biases[::-1], 1),
        (weights, biases[::-1], 1),
        (weights, biases, 2),
    ):
        with pytest.raises(ValueError, match="native kernel"):
            native.ServedTower(given_weights, given_biases, column)


def network_of(kind, files, slots, dense, seed=0):
    """Two tables: one of all slots, summed; one of the last two slots in turn, their mean. Dense features between."""
    first, second = files
    width = slots * first.dim + dense + 2 * second.dim
    tower = kind.ServedTower(*layers((width, 24, 2), seed), 1)
    tables = [
        MappedTable(first.data, first.layout, [], [PooledColumns(list(range(slots)), False, 0)]),
        MappedTable(
            second.data,
            second.layout,
            [slots - 1, slots - 2],
            [PooledColumns([1], True, slots * first.dim + dense), PooledColumns([0], True, width - second.dim)],
        ),
    ]
    return kind.MappedNetwork(tower, tables, slots, dense, slots * first.dim)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_networks_over_mapped_rows_agree(tmp_path_factory, data):
    folder, draw, slots, dense = tmp_path_factory.mktemp("rows"), np.random.default_rng(0), 3, 2
    held = data.draw(st.lists(KEYS, unique=True, min_size=1, max_size=40))
    files = [written(folder, held, draw.normal(size=(len(held), dim)).astype(np.float32)) for dim in (4, 3)]
    bags = data.draw(st.lists(st.lists(st.one_of(KEYS, st.sampled_from(held)), max_size=3), max_size=60))
    bags = bags[: len(bags) // slots * slots]
    keys = np.array([key for bag in bags for key in bag], np.uint64)
    offsets = np.cumsum([0, *map(len, bags)]).astype(np.int64)
    numbers = draw.normal(size=(len(bags) // slots, dense)).astype(np.float32)
    found = [network_of(kind, files, slots, dense).score(keys, offsets, numbers) for kind in (native, reference)]
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=0, atol=2e-6)
    assert found[0][1:] == found[1][1:]


PLAIN = Schema((DenseFeature("age", 10, 5), DenseFeature("size")), (Slot("a"), Slot("b"), Slot("c")))
WORDS = st.lists(st.sampled_from(["x", "y", "z", "long" * 9]), max_size=3)
SAMPLES = st.lists(st.tuples(st.integers(-99, 99), st.none(), WORDS, WORDS, WORDS), max_size=40)


@settings(max_examples=40, deadline=None)
@given(several=st.lists(st.tuples(SAMPLES, st.booleans()), min_size=1, max_size=4), most=st.integers(0, 40))
def test_networks_score_bodies_alike(tmp_path_factory, several, most):
    folder, draw = tmp_path_factory.mktemp("rows"), np.random.default_rng(0)
    bodies = [json.dumps({"rows": samples}).encode()[: None if whole else -1] for samples, whole in several]
    requests = PlainRequests(PLAIN, max_samples=100, max_text=100, max_values=100)
    parsed = [requests.parse(json.dumps({"rows": samples}).encode()) for samples, _ in several]
    held = np.unique(np.concatenate([np.arange(3, dtype=np.uint64), *(one[1] for one in parsed if one)]))[::2]
    files = [written(folder, held, draw.normal(size=(len(held), dim)).astype(np.float32)) for dim in (4, 3)]
    network, room = network_of(native, files, 3, 2), [most] * len(bodies)
    found, want = (kind.score_bodies(requests, bodies, room) for kind in (network, network_of(reference, files, 3, 2)))
    assert found[1:] == want[1:]
    pairs = zip(found.probabilities, want.probabilities, strict=True)
    for (samples, whole), body, (got, wanted) in zip(several, bodies, pairs, strict=True):
        assert (got is None) == (wanted is None) == (not whole or not 0 < len(samples) <= most)
        if got is not None:
            np.testing.assert_allclose(got, wanted, rtol=0, atol=2e-6)
            (alone,) = network.score_bodies(requests, [body], [most]).probabilities
            assert got.tobytes() == alone.tobytes()


def test_a_body_of_another_schema_is_refused(tmp_path):
    files = [written(tmp_path, np.arange(50), np.ones((50, dim), np.float32)) for dim in (4, 3)]
    other = PlainRequests(Schema((), (Slot("a"),)), max_samples=9, max_text=9, max_values=9)
    with pytest.raises(ValueError, match="another schema"):
        network_of(native, files, 3, 2).score_bodies(other, [b'{"rows": [{"a": "x"}]}'], [1])


def test_a_damaged_directory_and_wrong_bags_are_refused(tmp_path):
    files = [written(tmp_path, np.arange(50), np.ones((50, dim), np.float32)) for dim in (4, 3)]
    network = network_of(native, files, 3, 2)
    keys, offsets, dense = np.arange(6, dtype=np.uint64), np.arange(7, dtype=np.int64), np.zeros((2, 2), np.float32)
    assert network.score(keys, offsets, dense)[1:] == (10, 0)
    for wrong in (offsets[:-1], offsets[::-1].copy(), offsets + 1):
        with pytest.raises(ValueError, match="native kernel"):
            network.score(keys, wrong, dense)
    data = files[0].data.copy()
    at = files[0].layout.directory
    data[at : at + 8 * 2 ** files[0].layout.bits] = 255
    files[0].data = data
    with pytest.raises(BundleError, match="directory is damaged"):
        network_of(native, files, 3, 2).score(keys, offsets, dense)
    requests = PlainRequests(PLAIN, max_samples=9, max_text=9, max_values=9)
    with pytest.raises(BundleError, match="directory is damaged"):
        network_of(native, files, 3, 2).score_bodies(requests, [b'{"rows": [[1, 2, "x", "y", "z"]]}'], [1])


@pytest.mark.parametrize(
    ("slots", "column", "dense_column", "said"),
    [
        ([0] * 4000, 0, 4, "a slot is chosen twice"),  # more values would be chosen than there are
        ([], 2**64 - 4, 4, "an embedding stands outside"),  # 2**64 - 4 and 4 columns are 0
        ([], 0, 2**64 - 2, "dense features stand outside"),
    ],
)
def test_a_network_that_would_write_beyond_its_arrays_is_refused(tmp_path, slots, column, dense_column, said):
    file = written(tmp_path, np.arange(50), np.ones((50, 4), np.float32))
    table = MappedTable(file.data, file.layout, slots, [PooledColumns([0], False, column)])
    with pytest.raises(ValueError, match=said):
        native.MappedNetwork(native.ServedTower(*layers((6, 24, 2), 0), 1), [table], 3, 2, dense_column)
