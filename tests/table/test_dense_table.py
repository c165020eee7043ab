"""DenseTable: the block that it adopts, and what it refuses."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from sparsefleet import optim
from sparsefleet.core.errors import StoreError
from sparsefleet.table import DenseTable


def test_updates_happen_in_the_array_that_was_given():
    values = np.zeros(5, np.float32)
    block = DenseTable("net", values, optim.SGD(0.5))
    block.push(np.full(5, -1.0, np.float32))
    assert (values == 0.5).all()
    assert block.values is values
    assert (block.step, len(block), block.state.size) == (1, 5, 0)


def test_state_starts_where_the_rule_says_and_can_be_restored():
    block = DenseTable("net", np.zeros(4, np.float32), optim.Adagrad(0.5, initial_accumulator=0.25))
    assert (block.state == 0.25).all()
    rowwise = DenseTable("net", np.zeros(4, np.float32), optim.RowwiseAdagrad(0.5))
    assert rowwise.rule == optim.Adagrad(0.5)

    one, two = (DenseTable("net", np.zeros(4, np.float32), optim.Adam(0.5)) for _ in range(2))
    grads = np.arange(4, dtype=np.float32)
    one.push(grads)
    two.values[:], two.state[:], two.step = one.values, one.state, one.step
    for block in (one, two):
        block.push(grads)
    np.testing.assert_array_equal(one.values, two.values)
    assert two.memory_bytes == 4 * 4 * 3


def test_threads_lose_no_update_and_no_step():
    block = DenseTable("net", np.zeros(3000, np.float32), optim.SGD(1.0))
    grads = np.full(3000, -0.5, np.float32)
    threads = [threading.Thread(target=lambda: [block.push(grads) for _ in range(200)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert block.step == 800
    assert (block.values == 400).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: DenseTable("net", np.zeros((2, 2), np.float32), optim.SGD()),
            "dense block 'net': values must be one flat array of float32; got float32 of shape [2, 2]",
        ),
        (lambda: DenseTable("net", np.zeros(2), optim.SGD()), "got float64 of shape [2]"),
        (
            lambda: DenseTable("net", np.zeros(4, np.float32)[::2], optim.SGD()),
            "they must be contiguous and writable",
        ),
        (
            lambda: DenseTable("net", np.zeros(2, np.float32), optim.SGD()).push(np.zeros(3, np.float32)),
            "dense block 'net' has 2 values: gradients must be float32 of shape [2]; got float32 of shape [3]",
        ),
        (
            lambda: setattr(DenseTable("net", np.zeros(2, np.float32), optim.SGD()), "step", -1),
            "dense block 'net': step=-1 must be 0 or above",
        ),
    ],
)
def test_wrong_arrays_get_an_error_that_names_the_block(call, message):
    with pytest.raises(StoreError) as error:
        call()
    assert message in str(error.value)
