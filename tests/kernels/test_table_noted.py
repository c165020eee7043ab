"""Rows that note what others know of them: `take` and `rebase`, native against the twin, and what they promise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from level_faces import others
from table_cases import (
    ADAM,
    BOTH,
    CONSTANT,
    NOTED,
    NOTING_ADAGRAD,
    NOTING_FTRL,
    NOTING_SGD,
    SGD,
    all_rows,
    hyper,
    keys_of,
    make,
    pulled,
    run_threads,
    u64,
)

from sparsefleet.kernels import table as native
from sparsefleet.kernels.reference import table as reference


def taken(table, keys, shares):
    return taken_with_counts(table, keys, shares)[0]


def taken_with_counts(table, keys, shares):
    out, counts = np.full((len(keys), table.dim), np.nan, np.float32), np.full(len(keys), 77, np.uint32)
    table.take(keys, shares, out, counts)
    return out, counts


def zeros(kernels):
    return kernels.RowTable(2, 2, 0, CONSTANT, 0.0, 0.0, notes=True)


def rebase(table, keys, values, create, kind=NOTING_SGD, step=1):
    table.rebase(keys, values, create, kind, 0.05, hyper(kind), step)


def change(table, keys, by):
    table.push(keys, np.full((len(keys), 2), -by, np.float32), NOTING_SGD, 1.0, np.zeros(1), 1)


@pytest.mark.parametrize("kernels", [pytest.param(native, id="native"), *others("table")])
@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(NOTED),
    st.integers(1, 70),
    st.lists(st.tuples(st.sampled_from(["push", "take", "rebase", "hear", "pull"]), keys_of), max_size=10),
    st.sampled_from([1.0, 2.0, 3.0, 7.0]),
    st.integers(0, 2**32 - 1),
)
def test_any_history_leaves_the_rows_of_the_twin(kernels, kind, dim, history, shares, seed):
    tables = [make(kernels, dim, kind, 0.1), make(reference, dim, kind, 0.1)]
    rng = np.random.default_rng(seed)
    for step, (call, keys) in enumerate(history, start=1):
        keys = u64(keys)
        values = rng.standard_normal((len(keys), dim)).astype(np.float32)
        answers = []
        for table in tables:
            if call == "push":
                counts = (keys % np.uint64(5)).astype(np.uint32)
                table.push(keys, values, kind, 0.05, hyper(kind), step, counts)
            elif call == "take":
                answers.append([array.tobytes() for array in taken_with_counts(table, keys, shares)])
            elif call == "pull":
                answers.append(pulled(table, keys).tobytes())
            else:
                rebase(table, keys, values, call == "rebase", kind, step)
        assert answers[1:] == answers[:-1]
    assert all_rows(tables[0], 7) == all_rows(tables[1], 7)


@BOTH
@pytest.mark.parametrize("kind", NOTED)
@pytest.mark.parametrize("dim", [5, 8, 100])
def test_a_rule_that_notes_moves_rows_as_the_plain_one_does(kernels, kind, dim):
    plainly = kind - native.NOTING
    plain, noting, keys = make(kernels, dim, plainly, 0.2), make(kernels, dim, kind, 0.2), u64([3, 9])
    begin, rng = pulled(noting, keys), np.random.default_rng(1)
    for step in range(1, 4):
        grads = rng.standard_normal((2, dim)).astype(np.float32)
        plain.push(keys, grads, plainly, 0.1, hyper(plainly), step)
        noting.push(keys, grads, kind, 0.1, hyper(kind), step)
    np.testing.assert_array_equal(pulled(noting, keys), pulled(plain, keys))
    np.testing.assert_allclose(taken(noting, keys, 1), pulled(plain, keys) - begin, atol=1e-6)
    states = [np.frombuffer(all_rows(table)[3][1], np.float32) for table in (plain, noting)]
    np.testing.assert_array_equal(states[1][:-dim], states[0])


@BOTH
@pytest.mark.parametrize("kind", NOTED)
def test_state_stays_when_others_change_a_row(kernels, kind):
    table, keys = make(kernels, 4, kind), u64([3])
    began = pulled(table, keys)
    table.push(keys, np.ones((1, 4), np.float32), kind, 0.1, hyper(kind), 1)
    before, change = np.frombuffer(all_rows(table)[3][1], np.float32), pulled(table, keys) - began
    rebase(table, keys, np.full((1, 4), 7, np.float32), False, kind)
    after = np.frombuffer(all_rows(table)[3][1], np.float32)
    np.testing.assert_array_equal(before[-4:], began[0])
    np.testing.assert_array_equal(after[-4:], 7)
    np.testing.assert_allclose(pulled(table, keys), 7 + change, rtol=1e-6)
    before, after = before[:-4], after[:-4]
    if kind == NOTING_FTRL:  # but for z, which the next step makes the value of
        table.push(keys, np.zeros((1, 4), np.float32), kind, 0.05, hyper(kind), 2)
        np.testing.assert_allclose(pulled(table, keys), 7 + change, rtol=1e-5)
        before, after = before[4:], after[4:]
    np.testing.assert_array_equal(after, before)


@BOTH
def test_state_begins_as_told_and_others_know_how_a_row_begins(kernels):
    table = make(kernels, 3, NOTING_ADAGRAD, 0.1)
    pulled(table, u64([1]))
    rebase(table, u64([2]), np.ones((1, 3), np.float32), True, NOTING_ADAGRAD)
    for key in (1, 2):
        state = np.frombuffer(all_rows(table)[key][1], np.float32)
        np.testing.assert_array_equal(state[:3], np.float32(0.1))
        np.testing.assert_array_equal(state[3:], pulled(table, u64([key]))[0])
    assert (taken(table, u64([1, 2]), 1) == 0).all()


@BOTH
def test_shares_are_taken_of_what_is_left(kernels):
    table, keys = zeros(kernels), u64([5])
    change(table, keys, 8)
    assert [taken(table, keys, 2)[0, 0] for _ in range(3)] == [4, 2, 1]
    assert taken(table, keys, 1)[0, 1] == 1
    assert taken(table, keys, 1)[0, 1] == 0
    assert pulled(table, keys)[0, 0] == 8


@BOTH
def test_a_rebased_row_keeps_what_was_changed_since_it_was_taken(kernels):
    table, keys = zeros(kernels), u64([5])
    change(table, keys, 8)
    taken(table, keys, 2)
    change(table, keys, 1)
    rebase(table, keys, np.full((1, 2), 100, np.float32), False)
    assert pulled(table, keys)[0].tolist() == [105, 105]
    assert taken(table, keys, 1)[0].tolist() == [5, 5]


@BOTH
def test_rows_that_are_not_there(kernels):
    table, keys = zeros(kernels), u64([5, 6])
    assert (taken(table, keys, 2) == 0).all()
    rebase(table, keys, np.ones((2, 2), np.float32), False)
    assert len(table) == 0
    rebase(table, keys[:1], np.ones((1, 2), np.float32), True)
    assert table.contains(keys).tolist() == [True, False]
    assert pulled(table, keys[:1])[0].tolist() == [1, 1]


@BOTH
def test_other_tables_are_refused(kernels):
    table = make(kernels, 4, ADAM)
    with pytest.raises(ValueError, match="does not note"):
        table.take(u64([1]), 2.0, np.empty((1, 4), np.float32), np.empty(1, np.uint32))
    with pytest.raises(ValueError, match="does not note"):
        rebase(table, u64([1]), np.empty((1, 4), np.float32), True)
    noting, grads = zeros(kernels), np.zeros((1, 2), np.float32)
    with pytest.raises(ValueError, match=r"notes what was changed; the rule does not|another state width"):
        noting.push(u64([1]), grads, SGD, 0.1, hyper(SGD), 1)
    plain = kernels.RowTable(2, 2, 0, CONSTANT, 0.0, 0.0)
    with pytest.raises(ValueError, match="does not note what was changed; the rule does"):
        plain.push(u64([1]), grads, NOTING_SGD, 0.1, hyper(NOTING_SGD), 1)


def test_arrays_of_a_wrong_size_are_refused():
    table = make(native, 4, NOTING_SGD)
    with pytest.raises((ValueError, TypeError), match="keys, dim"):
        table.take(u64([1]), 2.0, np.empty((2, 4), np.float32), np.empty(1, np.uint32))
    with pytest.raises((ValueError, TypeError), match="keys, dim"):
        rebase(table, u64([1]), np.empty((1, 3), np.float32), True)


def test_threads_lose_no_change():
    """What is taken while others push, and what is left, is what they changed (but for the rounding of halves)."""
    table, keys, rounds = zeros(native), np.arange(500, dtype=np.uint64), 200
    sums = []

    def push():
        for _ in range(rounds):
            change(table, keys, 1)

    def take():
        sums.append(sum(taken(table, keys, 2) for _ in range(rounds)))

    run_threads([push, push, take])
    np.testing.assert_allclose(sums[0] + taken(table, keys, 1), 2 * rounds, atol=0.01)


@BOTH
def test_occurrences_are_told_whole_and_once(kernels):
    table, keys = zeros(kernels), u64([1, 2])
    for step, counts in enumerate(([3, 1], [2, 70_000]), start=1):
        table.push(keys, np.ones((2, 2), np.float32), NOTING_SGD, 1.0, np.zeros(1), step, np.array(counts, np.uint32))
    assert taken_with_counts(table, u64([2, 9, 1]), 4.0)[1].tolist() == [70_001, 0, 5]
    assert taken_with_counts(table, u64([2, 9, 1]), 1.0)[1].tolist() == [0, 0, 0]
