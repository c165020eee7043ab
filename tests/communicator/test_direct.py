"""Direct: every push is applied when it returns."""

from __future__ import annotations

from communicator_contract import CommunicatorContract, gradients, parameters_in, rows_of

from sparsefleet.communicator import DirectCommunicator
from sparsefleet.store import LocalStore


class TestDirect(CommunicatorContract):
    kind = DirectCommunicator


def test_a_push_is_applied_when_it_returns():
    store = LocalStore()
    communicator = DirectCommunicator(store)
    communicator.start(parameters_in(store))
    (lane,) = communicator.begin_epoch(0, 1)
    lane.push(gradients(-2.0, 5))
    assert rows_of(store, 5) == [2]
    assert (communicator.parameters.dense_values == 2).all()
