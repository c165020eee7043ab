"""Exact tables: rows that steps did not touch, caught up. Against dense torch, and native against twin bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from table_cases import ADAGRAD, ADAM, BOTH, FTRL, ROWWISE, SGD, UNIFORM, u64, width

from sparsefleet.kernels import table as native
from sparsefleet.kernels.reference import table as reference

STEPS = 200


def exact_table(kernels, dim, kind, numbers, spread=0.05):
    hyper = np.array(numbers, np.float64)
    return kernels.RowTable(dim, width(kind, dim), 11, UNIFORM, -spread, spread, idle=(kind, hyper)), hyper


def pulled(table, keys, step, create=True):
    out = np.full((len(keys), table.dim), np.nan, np.float32)
    table.pull(keys, out, create, step)
    return out


def scanned(table, step):
    """By key: values, state, touched."""
    keys, values, state, _, touched, _ = table.scan(0, 1000, step)
    order = np.argsort(keys)
    return keys[order], values[order], state[order], touched[order]


def a_rate(step):
    """Warm-up, then a fall by ten, then level."""
    return 1e-3 * min(step / 20, 1.0) * (0.1 if step > 120 else 1.0)


PAIRS = {
    "adam with L2": (ADAM, (0.9, 0.999, 1e-8, 1e-5), lambda p: torch.optim.Adam(p, 1e-3, weight_decay=1e-5)),
    "adam": (ADAM, (0.9, 0.999, 1e-8, 0.0), lambda p: torch.optim.Adam(p, 1e-3)),
    "sgd with L2": (SGD, (0.5,), lambda p: torch.optim.SGD(p, 1e-3, weight_decay=0.5)),
    "adagrad with L2": (ADAGRAD, (1e-10, 0.1), lambda p: torch.optim.Adagrad(p, 1e-3, weight_decay=0.1)),
}


@BOTH
@pytest.mark.parametrize("case", PAIRS)
@pytest.mark.parametrize("dim", [3, 16])
def test_rows_move_as_in_a_dense_table(kernels, case, dim):
    kind, numbers, make_optimizer = PAIRS[case]
    table, hyper = exact_table(kernels, dim, kind, numbers)
    other, _ = exact_table(native, dim, kind, numbers)
    rng, everything = np.random.default_rng(0), np.arange(12, dtype=np.uint64)
    theirs = torch.nn.Parameter(torch.from_numpy(pulled(other, everything, 0)))
    optimizer = make_optimizer([theirs])
    for step in range(1, STEPS + 1):
        rows = np.array([0] if step % 3 else [0, 1 + step % 9])  # 10 and 11 never; others now and then
        np.testing.assert_allclose(pulled(table, u64(rows), step - 1), theirs.detach().numpy()[rows], atol=1e-5)
        grads = (rng.standard_normal((len(rows), dim)) * 1e-3).astype(np.float32)
        dense = torch.zeros_like(theirs)
        dense[rows] = torch.from_numpy(grads)
        theirs.grad, optimizer.param_groups[0]["lr"] = dense, a_rate(step)
        optimizer.step()
        table.note_steps(step, step, a_rate(step))
        table.push(u64(rows), grads, kind, a_rate(step), hyper, step, None, step)
    np.testing.assert_allclose(pulled(table, everything, STEPS), theirs.detach().numpy(), atol=1e-5)


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from([(ADAM, 1e-2), (ADAM, 1e-5), (ADAM, 0.0), (SGD, 0.3), (ADAGRAD, 0.1), (ROWWISE, 0.1)]),
    st.sampled_from([1, 5, 8, 10, 16, 19]),
    st.integers(0, 2**32 - 1),
)
def test_native_gives_the_bits_of_the_twin(rule, dim, seed):
    kind, decay = rule
    numbers = {ADAM: (0.9, 0.999, 1e-8, decay), SGD: (decay,)}.get(kind, (1e-10, decay))
    rng, tables = np.random.default_rng(seed), [exact_table(each, dim, kind, numbers) for each in (native, reference)]
    step = 0
    for _ in range(6):
        gap = int(rng.integers(1, 60))
        keys = u64(rng.permutation(6)[: rng.integers(1, 4)])
        grads = (rng.standard_normal((len(keys), dim)) * 10.0 ** rng.integers(-6, 1)).astype(np.float32)
        rates = rng.choice([0.0, 1e-4, 1e-3], gap)
        for table, hyper in tables:
            for i, rate in enumerate(rates.tolist()):
                table.note_steps(step + 1 + i, step + 1 + i, rate)
            table.push(keys, grads, kind, float(rates[-1]), hyper, step + gap, None, step + gap)
        step += gap
        ours, twins = (pulled(table, keys, step) for table, _ in tables)
        np.testing.assert_array_equal(ours, twins)
    for mine, twin in zip(*(scanned(table, step) for table, _ in tables), strict=True):
        np.testing.assert_array_equal(mine, twin)


@BOTH
@pytest.mark.parametrize("decay", [1e-5, 0.0])
def test_where_a_catch_up_stops_on_its_way_makes_no_difference(kernels, decay):
    """Reading, saving and resuming at any step leave the same bits as going there at once, in rest and out of it."""
    numbers, keys = (0.9, 0.999, 1e-8, decay), u64([1, 2, 3])
    grads = np.random.default_rng(1).standard_normal((3, 4)).astype(np.float32) * np.float32(1e-4)
    ends, rested = [], []
    for stops in ([], [7, 100, 333], [512, 700, 701, 1100]):
        table, hyper = exact_table(kernels, 4, ADAM, numbers)
        table.note_steps(1, 1200, 1e-3)
        table.push(keys, grads, ADAM, 1e-3, hyper, 3, None, 3)
        for stop in stops:
            pulled(table, keys, stop)
            rows = table.scan(0, 10, stop)  # and a checkpoint of that moment
            table, hyper = exact_table(kernels, 4, ADAM, numbers)
            table.note_steps(1, 1200, 1e-3)
            table.insert(rows.keys, rows.values, rows.state, rows.seen, rows.touched)
        rested.append(scanned(table, 1150)[3].tolist())
        table.push(keys, grads, ADAM, 1e-3, hyper, 1200, None, 1200)
        ends.append(b"".join(array.tobytes() for array in scanned(table, 1200)))
    assert ends[0] == ends[1] == ends[2]
    assert rested[0] == rested[1] == rested[2]
    if not decay:  # momentum is gone within some 200 steps
        assert max(rested[0]) < 300


def test_a_row_at_rest_costs_nothing_and_its_squares_fade():
    table, hyper = exact_table(native, 16, ADAM, (0.9, 0.999, 1e-8, 1e-5))
    key, far = u64([5]), 2_000_000_000
    table.note_steps(1, far + 1, 1e-3)
    np.testing.assert_array_equal(pulled(table, key, far), 0.0)  # would take minutes, step by step
    _, _, state, touched = scanned(table, far)
    assert touched[0] < 2000
    assert (state[0, 16:] > 0).all()
    table.push(key, np.full((1, 16), 1e-3, np.float32), ADAM, 1e-3, hyper, far + 1, None, far + 1)
    _, _, state, touched = scanned(table, far + 1)
    np.testing.assert_allclose(state[0, 16:], 1e-9, rtol=1e-5)
    assert touched[0] == far + 1


@BOTH
def test_reading_a_copy_leaves_the_row(kernels):
    table, _ = exact_table(kernels, 4, ADAM, (0.9, 0.999, 1e-8, 1e-5))
    table.note_steps(1, 100, 1e-3)
    first, key = pulled(table, u64([5]), 0), u64([5])
    table.begin_cut()
    later = scanned(table, 100)[1]
    at_the_cut = table.scan_cut(10, 0)
    np.testing.assert_array_equal(at_the_cut.values, first)
    table.end_cut()
    assert not np.array_equal(later, first)
    np.testing.assert_array_equal(pulled(table, key, 100), later)


@BOTH
def test_missing_rows_read_as_zeros_and_new_ones_as_if_they_had_always_been_there(kernels):
    table, _ = exact_table(kernels, 4, SGD, (0.5,))
    table.note_steps(1, 3, 0.1)
    np.testing.assert_array_equal(pulled(table, u64([7]), 3, create=False), 0.0)
    start = pulled(exact_table(kernels, 4, SGD, (0.5,))[0], u64([7]), 0)
    np.testing.assert_allclose(pulled(table, u64([7]), 3), start * 0.95**3, rtol=1e-6)


@BOTH
def test_misuse_is_refused(kernels):
    with pytest.raises(ValueError, match="kind 4 has no steps"):
        exact_table(kernels, 4, FTRL, (0.0, 0.0, 1.0))
    table, hyper = exact_table(kernels, 4, ADAM, (0.9, 0.999, 1e-8, 0.0))
    with pytest.raises(ValueError, match="does not know this step yet"):
        pulled(table, u64([1]), 1)
    with pytest.raises(ValueError, match="does not know this step yet"):
        table.push(u64([1]), np.zeros((1, 4), np.float32), ADAM, 1e-3, hyper, 1, None, 1)
    with pytest.raises(ValueError, match="in order"):
        table.note_steps(2, 2, 1e-3)
    with pytest.raises(ValueError, match="not exact"):
        kernels.RowTable(4, 0, 11, UNIFORM, -0.5, 0.5).note_steps(1, 1, 1e-3)
