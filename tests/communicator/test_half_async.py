"""Half-async: the threads of a trainer push once a round."""

from __future__ import annotations

import pytest
from communicator_contract import (
    CommunicatorContract,
    OnServers,
    Recorder,
    gradients,
    parameters_in,
    run_lanes,
    train,
)

from sparsefleet import optim
from sparsefleet.communicator import HalfAsyncCommunicator
from sparsefleet.store import LocalStore


class TestHalfAsync(CommunicatorContract):
    kind = HalfAsyncCommunicator


class TestHalfAsyncOnServers(OnServers, CommunicatorContract):
    kind = HalfAsyncCommunicator


@pytest.mark.parametrize(("rule", "merged"), [(optim.SGD(1.0), 3.0), (optim.Adam(1.0), 1.5), (optim.FTRL(1.0), 1.5)])
def test_one_push_a_round_summed_for_sgd_and_averaged_otherwise(rule, merged):
    store = LocalStore()
    communicator = HalfAsyncCommunicator(store)
    communicator.start(parameters_in(store, rule))
    recorder = Recorder(store)
    run_lanes(communicator.begin_epoch(0, 2), lambda index, lane: lane.push(gradients(1.0 + index, index, 7)))
    (step,) = recorder.sent
    assert set(step.dense) == {merged}
    rows = dict(zip(step.sparse["ads"].keys.tolist(), step.sparse["ads"].rows[:, 0].tolist(), strict=True))
    assert rows == {0: merged / 3, 1: merged * 2 / 3, 7: merged}


def test_a_thread_that_failed_fails_the_others():
    store = LocalStore()
    communicator = HalfAsyncCommunicator(store)
    communicator.start(parameters_in(store))

    def work(index, lane):
        if index == 1:
            raise ValueError("a bad row")
        train(lane, 5, 1)

    errors = run_lanes(communicator.begin_epoch(0, 2), work)
    assert isinstance(errors[0], RuntimeError)
    assert "another thread of this trainer failed" in str(errors[0])
    assert isinstance(errors[0].__cause__, ValueError)
