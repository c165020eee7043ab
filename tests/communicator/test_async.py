"""Async: a queue that is sent in the background, merged, within its bounds."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest
from communicator_contract import (
    CommunicatorContract,
    OnServers,
    Recorder,
    gradients,
    parameters_in,
    rows_of,
    run_lanes,
    u64,
)
from server_processes import servers
from waiting import stands_waiting, wait_until

from sparsefleet import optim
from sparsefleet.communicator import AsyncCommunicator, CommunicatorConfig, Parameters, StepGradients
from sparsefleet.core.errors import ConfigError, StoreError
from sparsefleet.core.initializer import Constant
from sparsefleet.core.keyed_rows import KeyedRows
from sparsefleet.store import LocalStore
from sparsefleet.store.remote.callers import Caller
from sparsefleet.table import TableSpec


class TestAsync(CommunicatorContract):
    kind = AsyncCommunicator
    config = CommunicatorConfig()


class TestAsyncMerging(CommunicatorContract):
    kind = AsyncCommunicator
    config = CommunicatorConfig(max_merge=4, send_queue_size=8, dense_refresh=3)


class TestAsyncOnServers(OnServers, CommunicatorContract):
    kind = AsyncCommunicator
    config = CommunicatorConfig()


class TestAsyncMergingOnServers(OnServers, CommunicatorContract):
    kind = AsyncCommunicator
    config = CommunicatorConfig(max_merge=3, send_queue_size=3, staleness=2)


@pytest.fixture
def begun():
    """A function that starts a communicator whose sends are recorded, and gives its lanes."""
    made = []

    def begin(config, rule=None, lanes=1):
        store = LocalStore()
        communicator = AsyncCommunicator(store, config)
        communicator.start(parameters_in(store, rule or optim.SGD(1.0)))
        made.append((communicator, Recorder(store)))
        return communicator, made[-1][1], communicator.begin_epoch(0, lanes)

    yield begin
    for communicator, recorder in made:
        recorder.open.set()
        communicator.abandon()


def hold_first(recorder, lane):
    """Push a step whose sending does not end before the recorder is opened."""
    recorder.open.clear()
    lane.push(gradients(1.0, 1))
    wait_until(lambda: len(recorder.sent) == 1, 20, "a step that is being sent")


@pytest.mark.parametrize(("rule", "merged"), [(optim.SGD(1.0), 3.0), (optim.Adam(1.0), 1.0), (optim.Adagrad(1.0), 1.0)])
def test_at_most_max_merge_steps_are_one_message(begun, rule, merged):
    communicator, recorder, (lane,) = begun(CommunicatorConfig(max_merge=3, send_queue_size=10), rule)
    hold_first(recorder, lane)
    for _ in range(7):
        lane.push(gradients(1.0, 1))
    recorder.open.set()
    communicator.flush()
    assert recorder.values == [1.0, merged, merged, 1.0]


def test_the_queue_takes_no_more_than_its_size(begun):
    communicator, recorder, (lane,) = begun(CommunicatorConfig(max_merge=2, send_queue_size=3))
    hold_first(recorder, lane)
    pushed = []

    def push_on():
        for count in range(5):
            lane.push(gradients(1.0, 1))
            pushed.append(count)

    thread = threading.Thread(target=push_on, daemon=True)
    thread.start()
    wait_until(lambda: len(pushed) == 3 and stands_waiting(thread), 20, "a push that waits for room in the queue")
    assert len(pushed) == 3
    recorder.open.set()
    thread.join(10)
    communicator.flush()
    assert sum(recorder.values) == 6


@pytest.mark.parametrize("staleness", [0, 1, 2])
def test_a_thread_waits_at_its_staleness_bound(begun, staleness):
    communicator, recorder, (lane, other) = begun(
        CommunicatorConfig(max_merge=2, send_queue_size=50, staleness=staleness), lanes=2
    )
    recorder.open.clear()
    pushed = []

    def push_on():
        for count in range(6):
            lane.push(gradients(1.0, 1))
            pushed.append(count)

    thread = threading.Thread(target=push_on, daemon=True)
    thread.start()
    wait_until(lambda: len(pushed) == staleness and stands_waiting(thread), 20, "a push that waits to be sent")
    assert len(pushed) == staleness
    if staleness:
        other.push(gradients(1.0, 2))  # the bound is each thread's own
    recorder.open.set()
    thread.join(10)
    assert not thread.is_alive()
    communicator.flush()
    assert sum(recorder.values) == 6 + (staleness > 0)


def test_without_merging_a_step_goes_with_the_next_batchs_pull(begun):
    _, recorder, (lane,) = begun(CommunicatorConfig(max_merge=1))
    for count in range(1, 4):
        lane.push(gradients(1.0, 1))
        assert len(recorder.sent) == count - 1
        lane.pull("ads", np.array([5], np.uint64)).wait()
        assert len(recorder.sent) == count


def test_a_step_and_the_next_pull_of_all_tables_are_one_message(monkeypatch):
    with servers() as fleet:
        store = fleet.start(2).store()
        communicator = AsyncCommunicator(store, CommunicatorConfig())
        parameters, users = parameters_in(store), TableSpec("users", 3, optim.SGD(1.0), Constant(0.0))
        store.create_table(users)
        communicator.start(replace(parameters, tables={**parameters.tables, "users": users}))
        (lane,) = communicator.begin_epoch(0, 1)
        asked = {"ads": np.arange(1, 50, dtype=np.uint64), "users": np.arange(3, dtype=np.uint64)}
        before = lane.pull_all(asked).wait()
        sent, send = [], Caller.send

        def noted(self, operation, messages, *more):
            sent.append(operation)
            return send(self, operation, messages, *more)

        monkeypatch.setattr(Caller, "send", noted)
        for _ in range(3):
            step = {name: KeyedRows(keys, np.full_like(before[name], -1.0)) for name, keys in asked.items()}
            lane.push(StepGradients(step, np.zeros(3, np.float32)))
            after = lane.pull_all(asked).wait()
            for name in asked:
                np.testing.assert_allclose(after[name], before[name] + 1)
            before = after
        assert sent == ["push of a step, and pull from 'ads', 'users'"] * 3
        communicator.close()


def test_a_thread_that_fails_still_hands_in_the_step_it_made(begun):
    communicator, recorder, (lane,) = begun(CommunicatorConfig(max_merge=1))
    lane.push(gradients(1.0, 1))
    lane.give_up(ValueError("a bad row"))
    assert len(recorder.sent) == 1
    communicator.flush()
    assert len(recorder.sent) == 1


def test_a_step_that_a_save_could_not_send_ends_the_thread_that_made_it(begun, monkeypatch):
    """A save that fails is told, and training goes on: not where a step is missing then."""
    communicator, _, (lane,) = begun(CommunicatorConfig(max_merge=1))
    lane.push(gradients(1.0, 1))

    def silent(*arguments, **settings):
        raise StoreError("server 1 did not answer push of a step within 60 s")

    with monkeypatch.context() as patched:
        patched.setattr(communicator.store, "push_step", silent)
        with pytest.raises(StoreError, match="server 1 did not answer"):
            communicator.flush()
    for call in (communicator.flush, lambda: lane.push(gradients(1.0, 1)), lambda: lane.pull("ads", u64(1)).wait()):
        with pytest.raises(StoreError, match="server 1 did not answer"):
            call()
    assert lane.outstanding == 1


class Slow(LocalStore):
    """Steps are applied when they are waited for."""

    def push_step(self, sparse, dense=None, **settings):
        return Later(lambda: super(Slow, self).push_step(sparse, dense, **settings).wait())


class Later:
    def __init__(self, act):
        self._act = act

    def wait(self, timeout=None):
        act, self._act = self._act, lambda: None
        act()


@pytest.mark.parametrize("how", ["pull", "push", "leave", "flush"])
def test_without_merging_a_step_is_applied_before_the_next_begins(how):
    communicator = AsyncCommunicator(Slow(), CommunicatorConfig())
    communicator.start(parameters_in(communicator.store))
    (lane,) = communicator.begin_epoch(0, 1)
    lane.push(gradients(-1.0, 1))
    assert communicator.staleness() == 1
    act = {
        "pull": lambda: lane.pull("ads", np.array([5], np.uint64)).wait(),
        "push": lambda: lane.push(gradients(0.0, 2)),
        "leave": lane.leave,
        "flush": communicator.flush,
    }[how]
    act()
    assert rows_of(communicator.store, 1) == [1]
    assert (communicator.parameters.dense_values == 1).all()
    assert communicator.staleness() == (how == "push")
    communicator.close()


def test_a_model_without_tables_waits_for_its_own_step():
    store = Slow()
    values = np.zeros(3, np.float32)
    store.create_dense("dense", values, optim.SGD(1.0), [("w", (3,))])
    communicator = AsyncCommunicator(store, CommunicatorConfig())
    communicator.start(Parameters({}, "dense", values, optim.SGD(1.0)))
    (lane,) = communicator.begin_epoch(0, 1)
    lane.push(StepGradients({}, np.full(3, -1.0, np.float32)))
    assert (values == 1).all()
    communicator.close()


def test_dense_values_are_read_every_so_many_messages(begun):
    _, recorder, (lane,) = begun(CommunicatorConfig(max_merge=1, dense_refresh=3))
    for _ in range(7):
        lane.push(gradients(1.0, 1))
    lane.leave()
    assert (len(recorder.sent), recorder.fresh) == (7, 2)


def test_lanes_that_wait_are_woken_when_training_is_given_up(begun):
    communicator, recorder, lanes = begun(CommunicatorConfig(max_merge=2, send_queue_size=1), lanes=3)
    recorder.open.clear()
    threading.Timer(0.2, communicator.abandon).start()
    errors = run_lanes(lanes, lambda index, lane: [lane.push(gradients(1.0, index)) for _ in range(10)])
    assert all(isinstance(error, StoreError) and "given up" in str(error) for error in errors)


@pytest.mark.parametrize("name", ["max_merge", "send_queue_size", "dense_refresh", "k_steps", "trainers"])
def test_settings_out_of_range_are_refused(name):
    with pytest.raises(ConfigError, match=f"{name}=0 must be 1 or above"):
        CommunicatorConfig(**{name: 0})
    with pytest.raises(ConfigError, match="staleness=-1 must be 0 or above"):
        CommunicatorConfig(staleness=-1)
