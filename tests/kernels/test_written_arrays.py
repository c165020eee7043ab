"""Arrays that kernels write to: one of another type or layout, or a read-only one, is refused and left as it is."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from table_cases import ADAM, UNIFORM, hyper, u64
from test_bundle_rows import written
from test_served_tower import PLAIN, layers

from sparsefleet.kernels import _native, levels
from sparsefleet.serving.kernels.request import PlainRequests

BINDINGS = Path(__file__).parents[2] / "native" / "bindings"


@dataclass
class Out:
    """An argument that is written to."""

    array: np.ndarray
    rows_apart: bool = False
    """Its rows may lie apart, so another layout is not an error of its type."""
    kept: bool = False
    """A good call may leave it as it is."""


def full(shape, dtype=np.float32, **options) -> Out:
    return Out(np.full(shape, 7, dtype), **options)


KEYS, FLOATS = u64([5, 3]), np.ones((2, 4), np.float32)
REPLY = np.frombuffer(b"*2\r\n$12\r\n" + (5).to_bytes(8, "little") + b"rows\r\n$-1\r\n", np.uint8)
HOT_REPLY = np.frombuffer(b"*1\r\n$8\r\nhot rows\r\n", np.uint8)
BODY = b'{"rows": [[1, 2, "x", "y", "z"], [3, 4, "x", "y", "z"]]}'


def file_of(folder: Path):
    return written(folder, KEYS, FLOATS)


def parser_of(kernels: ModuleType):
    return kernels.RequestParser(*PlainRequests(PLAIN, max_samples=9, max_text=9, max_values=9)._plan)


def network_of(kernels: ModuleType, folder: Path):
    tower, file = kernels.ServedTower(*layers((14, 3, 2), 0), 1), file_of(folder)
    return kernels.MappedNetwork(tower, [([], [([0, 1, 2], False, 0)])], 3, 2, 12, [(file.data, tuple(file.layout))])


def take_of_subscriptions(kernels, _):
    subscriptions = kernels.Subscriptions()
    subscriptions.subscribe(KEYS, 0)
    subscriptions.subscribe(KEYS, 1)
    subscriptions.note(KEYS, 1)
    return subscriptions.take, 0, full(4, np.uint64)


def backward_of_tower(kernels, _):
    weights, biases = layers((4, 3, 2), 0)
    space = kernels.TowerSpace(2, [4, 3, 2])
    space.forward(FLOATS, weights, biases, np.zeros((2, 2), np.float32), False)
    grads = [full(one.shape) for one in weights], [full(one.shape) for one in biases], full((2, 4))
    return space.backward, FLOATS, weights, np.ones((2, 2), np.float32), *grads, False


def write_of_words(kernels, _):
    counter = kernels.WordCounter(100)
    counter.feed(np.frombuffer(b"b a b ", np.uint8), True)
    return counter.write, 1, full(counter.bytes_from(1), np.uint8), full(counter.words_from(1), np.uint64)


def take_of_request(kernels, _):
    parser = parser_of(kernels)
    assert parser.parse(BODY) == (2, 6)
    return parser.take, full((2, 2)), full(6, np.uint64), full(7, np.int64)


def get_of_cache(kernels, _):
    cache = kernels.RowCache(4, 1 << 20)
    cache.put(KEYS, np.array([0]), np.zeros((2, 4), np.uint8), np.ones(2, np.uint8))
    return cache.get, KEYS, full((2, 4), np.uint8), full(2, np.uint8), full(2, np.int64)


def pull_of_table(kernels, _):
    table = kernels.RowTable(4, 8, 11, UNIFORM, -0.5, 0.5, 0.0, False, -1, hyper(ADAM))
    return table.pull, KEYS, full((2, 4)), True, 0


CASES: dict[str, Callable[[Any, Path], tuple[Any, ...]]] = {
    "hash_strings": lambda k, _: (
        partial(k.hash_strings, np.frombuffer(b"ab" + bytes(16), np.uint8), np.arange(3), b"", 0, 0),
        full(2, np.uint64),
    ),
    "unique_keys": lambda k, _: (k.unique_keys, KEYS, full(2, np.uint64), full(2, np.int32), full(2, np.uint32)),
    "pool_forward": lambda k, _: (
        partial(k.pool_forward, FLOATS, np.zeros(2, np.int32), np.arange(3), 1, np.zeros(1, np.int32), False),
        full((2, 4), rows_apart=True),
    ),
    "click_loss": lambda k, _: (k.click_loss, FLOATS[:, :1].copy(), np.ones(2, np.float32), full(2), full((2, 1))),
    "init_rows": lambda k, _: (k.init_rows, 1, KEYS, UNIFORM, -0.5, 0.5, full((2, 4))),
    "apply_rule": lambda k, _: (
        partial(k.apply_rule, ADAM, 0.1, hyper(ADAM), 1),
        full(4),
        full(8),
        np.ones(4, np.float32),
        k.BlockLocks(),
    ),
    "RowTable.pull": pull_of_table,
    "Subscriptions.take": take_of_subscriptions,
    "to_int8": lambda k, _: (k.to_int8, np.ones(300, np.float32), full(300), full(2), full(300, np.int8)),
    "WordCounter.write": write_of_words,
    "TowerSpace.backward": backward_of_tower,
    "places": lambda k, _: (k.places, KEYS, 1, full(2, np.uint64)),
    "lookup_rows": lambda k, folder: (
        partial(k.lookup_rows, (file := file_of(folder)).data, *file.layout, KEYS),
        full((2, 4)),
        full(2, np.uint8),
    ),
    "bucket_numbers": lambda k, _: (k.bucket_numbers, KEYS, 1, 32, full(2, np.uint32)),
    "encode_buckets": lambda k, folder: (
        partial(k.encode_buckets, (file := file_of(folder)).data, *file.layout, 1, b"h", b"p", 0, 0, 8, 300),
        full(1000, np.uint8),
    ),
    "encode_names": lambda k, _: (
        partial(k.encode_names, b"HMGET", b"h", b"p", np.arange(2, dtype=np.uint32), 8),
        full(200, np.uint8),
    ),
    "read_buckets": lambda k, _: (
        partial(k.read_buckets, REPLY, 0, len(REPLY), KEYS, np.arange(2), 8, 0),
        full((2, 4), np.uint8),
        full(2, np.uint8),
    ),
    "read_hot_rows": lambda k, _: (
        partial(k.read_hot_rows, HOT_REPLY, 0, len(HOT_REPLY), np.arange(2, dtype=np.uint32), 0),
        full((2, 4), np.uint8),
    ),
    "receive_buckets": lambda k, _: (
        partial(k.receive_buckets, -1, 1.0),
        Out(REPLY.copy(), kept=True),
        *(0, len(REPLY), KEYS, np.arange(2), 8, 0),
        full((2, 4), np.uint8),
        full(2, np.uint8),
    ),
    "decode_rows": lambda k, _: (
        partial(k.decode_rows, np.zeros((2, 16), np.uint8), np.ones(2, np.uint8), 1),
        full((2, 4)),
    ),
    "RowCache.get": get_of_cache,
    "RequestParser.take": take_of_request,
    "hash_column": lambda k, _: (k.hash_column, ["a", "b"], b"", 0, 0, full(2, np.uint64)),
    "format_floats": lambda k, _: (k.format_floats, np.ones(2, np.float32), full(42, np.uint8)),
    "ServedTower.probabilities": lambda k, _: (k.ServedTower(*layers((4, 3, 2), 0), 1).probabilities, FLOATS, full(2)),
    "MappedNetwork.score": lambda k, folder: (
        partial(network_of(k, folder).score, u64([5] * 6), np.arange(7), np.ones((2, 2), np.float32)),
        full(2),
    ),
    "MappedNetwork.score_bodies": lambda k, folder: (
        partial(network_of(k, folder).score_bodies, [parser_of(k)], [BODY], [2]),
        full(2),
    ),
}
"""A call and its arguments, by the kernels of a level and an empty folder."""


def outputs_of(arguments) -> list[Out]:
    """Those within lists, too."""
    nested = [outputs_of(one) if isinstance(one, list) else [one] for one in arguments]
    return [one for ones in nested for one in ones if isinstance(one, Out)]


def with_arrays(one, arrays: dict[int, np.ndarray]):
    """An argument, and in place of each `Out` its array, or what `arrays` has for its id."""
    if isinstance(one, list):
        return [with_arrays(each, arrays) for each in one]
    return arrays.get(id(one), one.array) if isinstance(one, Out) else one


def of_another_type(array):
    return array.astype(np.float64)


def apart(array):
    wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
    wide[..., ::2] = array
    return wide[..., ::2]


def read_only(array):
    kept = array.copy()
    kept.setflags(write=False)
    return kept


@pytest.mark.parametrize("level", levels.chosen.available)
@pytest.mark.parametrize("case", CASES)
def test_an_output_is_written_in_place_or_refused(tmp_path, level, case):
    """A converted copy would swallow what is written to it, and nobody would notice."""
    call, *arguments = CASES[case](_native.kernels(level), tmp_path)
    outputs = outputs_of(arguments)
    before = [out.array.copy() for out in outputs]
    for out in outputs:
        for spoil in (of_another_type, apart, read_only):
            if spoil is apart and out.rows_apart:
                continue
            spoilt = spoil(out.array)
            with pytest.raises(TypeError, match="incompatible function arguments"):
                call(*with_arrays(arguments, {id(out): spoilt}))
            np.testing.assert_array_equal(spoilt, out.array)
            for other, was in zip(outputs, before, strict=True):
                np.testing.assert_array_equal(other.array, was)
    call(*with_arrays(arguments, {}))
    for out, was in zip(outputs, before, strict=True):
        assert out.kept or not np.array_equal(out.array, was)


def test_bindings_write_to_no_other_arrays():
    """`Out` and `Written` (bindings.h) are what nanobind must not convert; a plain ndarray is for reading."""
    for path in BINDINGS.rglob("*.*"):
        for found in re.findall(r"nb::ndarray<[^>]*>", path.read_text()):
            assert found.startswith(("nb::ndarray<const ", "nb::ndarray<Args")), f"{path.name}: {found}"
