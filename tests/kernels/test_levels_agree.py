"""Every level that this machine runs: the same bits from all but the dense tower, and nearly the same from that."""

from __future__ import annotations

import numpy as np
import pytest
from level_faces import EVERY_LEVEL, face
from table_cases import HYPER, NORMAL, NOTED, PLAIN, UNIFORM, all_rows, hyper, make, width
from test_text import criteo
from test_tower_kernel import passes

from sparsefleet.datasets.synth import SynthSpec, synth
from sparsefleet.kernels import levels
from sparsefleet.kernels.text_types import Block, Columns, Reason

each_level = pytest.mark.parametrize("level", EVERY_LEVEL)
POOREST = levels.chosen.available[0]


def same(mine, theirs) -> None:
    for a, b in zip(mine, theirs, strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


@each_level
@pytest.mark.parametrize("kind", sorted(HYPER))
@pytest.mark.parametrize("dim", [1, 7, 8, 10, 33])
def test_rows_of_tables(level, kind, dim):
    rng = np.random.default_rng(dim)
    keys = rng.integers(0, 2**64 - 1, 500, np.uint64, endpoint=True)
    rounds = [(rng.permutation(keys)[:300], rng.standard_normal((300, dim)).astype(np.float32)) for _ in range(5)]
    found = []
    for each in (POOREST, level):
        table = make(face("table", each), dim, kind, 0.1)
        for step, (chosen, grads) in enumerate(rounds, 1):
            table.push(chosen, grads, kind, 0.05, hyper(kind), step)
            if kind in NOTED:
                table.take(chosen[:100], 3.0, np.empty((100, dim), np.float32), np.empty(100, np.uint32))
                table.rebase(chosen[50:], grads[50:], step % 2 == 0, kind, 0.05, hyper(kind), step)
        found.append(all_rows(table))
    assert found[0] == found[1]


@each_level
@pytest.mark.parametrize("kind", PLAIN)
def test_blocks_of_dense_parameters(level, kind):
    rng = np.random.default_rng(kind)
    values, grads = rng.standard_normal((2, 1003)).astype(np.float32)
    found = []
    for each in (POOREST, level):
        table = face("table", each)
        now, state = values.copy(), np.zeros(width(kind, len(values)), np.float32)
        for step in (1, 2, 3):
            table.apply_rule(kind, 0.05, hyper(kind), step, now, state, grads, table.BlockLocks())
            table.shift_block(kind, 0.05, hyper(kind), step, now, state, grads[::-1].copy(), table.BlockLocks())
        found.append((now, state))
    same(*found)


@each_level
def test_dense_numbers_in_fewer_bits(level):
    values = np.random.default_rng(5).standard_normal(1003).astype(np.float32) * np.float32(1e-3)
    found = []
    for each in (POOREST, level):
        coarse, rest = face("coarse", each), np.zeros(1003, np.float32)
        halves, scales, bytes_ = np.empty(1003, np.uint16), np.empty(4, np.float32), np.empty(1003, np.int8)
        coarse.to_bfloat16(values, halves)
        coarse.to_int8(values, rest, scales, bytes_)
        total = values.copy()
        coarse.add_int8(scales, bytes_, total)
        told, told_scales, told_bytes = values[::-1].copy(), np.empty(4, np.float32), np.empty(1003, np.int8)
        coarse.tell_int8(values, told, told_scales, told_bytes)
        found.append((halves, scales, bytes_, rest, total, told, told_scales, told_bytes))
    same(*found)


@each_level
@pytest.mark.parametrize("kind", [UNIFORM, NORMAL])
def test_first_values_of_rows(level, kind):
    keys = np.arange(1000, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    same(*([face("table", each).init_rows(3, keys, 10, kind, -0.5, 0.5)] for each in (POOREST, level)))


@each_level
@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("dim", [1, 3, 8, 10, 17])
def test_pooling(level, mean, dim):
    rng = np.random.default_rng(dim)
    samples, slots, chosen = 100, 5, np.array([0, 2, 4], np.int32)
    offsets = np.concatenate([[0], np.cumsum(rng.integers(0, 5, samples * slots))]).astype(np.int64)
    inverse = rng.integers(0, 50, offsets[-1]).astype(np.int32)
    rows = rng.standard_normal((50, dim)).astype(np.float32)
    grad = rng.standard_normal((samples, 3 * dim)).astype(np.float32)
    found = []
    for each in (POOREST, level):
        kernels, out, grad_rows = face("rows", each), np.empty_like(grad), np.zeros_like(rows)
        kernels.pool_forward(rows, inverse, offsets, slots, chosen, mean, out)
        kernels.pool_backward(grad, inverse, offsets, slots, chosen, mean, grad_rows)
        found.append((out, grad_rows))
    same(*found)


@each_level
def test_unique_keys_losses_and_counts(level):
    rng = np.random.default_rng(0)
    keys = rng.integers(0, 3000, 10_000).astype(np.uint64)
    labels = rng.integers(0, 2, 5000).astype(np.float32)
    found = []
    for each in (POOREST, level):
        kernels, results = face("rows", each), list(face("rows", each).unique_keys(keys))
        for columns in (1, 2):
            logits = 3 * np.random.default_rng(columns).standard_normal((5000, columns)).astype(np.float32)
            loss, probabilities, gradient = kernels.click_loss(logits, labels)
            positive, negative = np.zeros((2, 4096), np.int64)
            sums = kernels.count_clicks(probabilities, labels, positive, negative)
            results += [loss, probabilities, gradient, positive, negative, list(sums)]
        found.append(results)
    same(*found)


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> bytes:
    folder = tmp_path_factory.mktemp("text")
    synth(folder / "data", SynthSpec(rows=2000, test_rows=10, parts=1, seed=3))
    return (folder / "data" / "train" / "part-0").read_bytes()


@each_level
def test_parsed_text(level, text):
    data, found = np.frombuffer(text, np.uint8), []
    for each in (POOREST, level):
        out = Columns.allocate(2000, 13, 26)
        done = criteo(face("text", each)).parse(Block(data, 0, len(text), len(text), True), out)
        assert (done.filled, done.reason) == (2000, Reason.FINE)
        found.append((out.labels, out.dense, out.keys, out.lines, out.ends))
    same(*found)


@each_level
def test_hashes(level):
    values = [bytes(range(size % 256)) * (1 + size // 256) for size in range(600)]
    offsets = np.cumsum([0] + [len(value) for value in values]).astype(np.int64)
    data = np.frombuffer(b"".join(values), np.uint8)
    same(*([face("text", each).hash_strings(data, offsets, b"p", 5, 1_000_001)] for each in (POOREST, level)))


@each_level
@pytest.mark.parametrize("half", [False, True])
def test_the_dense_tower(level, half):
    mine, theirs = (
        passes(face("tower", each).TowerSpace, 100, [273, 400, 400, 400, 2], half=half, seed=1)
        for each in (level, POOREST)
    )
    for a, b in zip(mine, theirs, strict=True):
        # A sum near zero may fall on the other side of relu: single values may differ, all together must not.
        assert np.linalg.norm(a - b) <= 1e-3 * np.linalg.norm(b)
    # Whole numbers: every sum is exact in any order, and so in every level.
    same(*(passes(face("tower", each).TowerSpace, 37, [31, 90, 3], half, 2, whole=True) for each in (POOREST, level)))
