"""CommunicatorContract: what every communicator must do. Subclass it, name the `kind`, and give it a `store`.

One table of two values a row and one dense block of three, with SGD of rate 1: what is applied can be read off.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from small_jobs import cluster

from sparsefleet import optim
from sparsefleet.communicator import Communicator, CommunicatorConfig, Lane, Parameters, StepGradients
from sparsefleet.core.batch import Mark
from sparsefleet.core.errors import StoreError
from sparsefleet.core.initializer import Constant
from sparsefleet.core.keyed_rows import KeyedRows
from sparsefleet.optim.base import UpdateRule
from sparsefleet.store import LocalStore, ParameterStore
from sparsefleet.store.base import Done
from sparsefleet.table import TableSpec

LIMIT = 20.0
"""Seconds that lanes may take."""


def u64(*keys: int) -> np.ndarray:
    return np.array(keys, np.uint64)


def senders(store: ParameterStore) -> list[tuple[object, str]]:
    """The calls of a store that carry gradients: whose they are, and their names."""
    if isinstance(store, LocalStore):  # its rounds end in push_step, too
        return [(store, "push_step")]
    both = [(store, "push_and_pull"), (store.rounds, "push_and_pull")]
    return [(store, "push_step"), (store.rounds, "push"), (store.geo, "exchange"), *both]


def parameters_in(
    store: ParameterStore, rule: UpdateRule | None = None, kept: Callable[[UpdateRule], UpdateRule] = lambda rule: rule
) -> Parameters:
    """kept: the rule as the store is to have it."""
    rule = rule or optim.SGD(1.0)
    spec, values = TableSpec("ads", 2, rule, Constant(0.0)), np.zeros(3, np.float32)
    store.create_table(replace(spec, rule=kept(rule)))
    store.create_dense("dense", values, kept(rule), [("w", (3,))])
    return Parameters({"ads": spec}, "dense", values, rule)


def gradients(value: float, *keys: int) -> StepGradients:
    """A step that takes `value` from each of the rows and from the dense block."""
    rows = KeyedRows(u64(*keys), np.full((len(keys), 2), value, np.float32))
    return StepGradients({"ads": rows}, np.full(3, value, np.float32))


def rows_of(store: ParameterStore, *keys: int) -> list[float]:
    return [float(row[0]) for row in store.pull("ads", u64(*keys), create=False).wait()]


def run_lanes(lanes: Sequence[Lane], work: Callable[[int, Lane], None]) -> list[BaseException | None]:
    """What a training thread does, on every lane at once; returns each one's error. Nobody may hang."""
    errors: list[BaseException | None] = [None] * len(lanes)

    def run(index: int) -> None:
        try:
            work(index, lanes[index])
        except BaseException as error:
            errors[index] = error
            lanes[index].give_up(error)
        else:
            lanes[index].leave()

    threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(len(lanes))]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + LIMIT
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    hanging = [index for index, thread in enumerate(threads) if thread.is_alive()]
    assert not hanging, f"lanes {hanging} still wait after {LIMIT} s"
    return errors


def train(lane: Lane, steps: int, key: int) -> None:
    for _ in range(steps):
        lane.pull("ads", u64(key, 0)).wait()
        lane.push(gradients(-1.0, key, 0))


def break_store(store: ParameterStore, after: int = 0) -> None:
    """From the nth call on, nothing that carries gradients gets through."""
    calls = threading.Lock()
    count = [0]

    def broken(owner: object, name: str) -> Callable[..., object]:
        send = getattr(owner, name)

        def call(*arguments: object, **settings: object) -> object:
            with calls:
                count[0] += 1
                if count[0] > after:
                    raise StoreError("server 1 (127.0.0.1:9) cannot be reached")
            return send(*arguments, **settings)

        return call

    for owner, name in senders(store):
        setattr(owner, name, broken(owner, name))


class Recorder:
    """Notes what is sent, and can hold it back."""

    def __init__(self, store: ParameterStore) -> None:
        self.sent: list[StepGradients] = []
        self.fresh = 0
        """Messages that asked for the dense values."""
        self.open = threading.Event()
        self.open.set()
        for owner, name in senders(store)[:2]:
            setattr(owner, name, self._call)

    def _call(
        self,
        sparse: dict[str, KeyedRows],
        dense: dict[str, np.ndarray],
        *,
        steps: int,
        fresh: dict[str, np.ndarray],
        marks: Sequence[Mark] = (),
    ) -> Done[None]:
        self.fresh += len(fresh)
        self.sent.append(StepGradients(sparse, dense["dense"].copy()))
        assert self.open.wait(LIMIT)
        return Done(None)

    @property
    def values(self) -> list[float]:
        return [float(step.dense[0]) for step in self.sent]


class CommunicatorContract:
    kind: type[Communicator]
    config = CommunicatorConfig(k_steps=1)

    @pytest.fixture
    def store(self) -> ParameterStore:
        return LocalStore()

    @pytest.fixture
    def communicator(self, store: ParameterStore) -> Iterator[Communicator]:
        made = self.kind(store, self.config, getattr(store, "crew", None))
        yield made
        made.abandon()

    @pytest.mark.parametrize("lanes", [1, 3])
    def test_all_pushes_are_applied_after_flush(self, store, communicator, lanes):
        communicator.start(parameters_in(store))
        errors = run_lanes(communicator.begin_epoch(0, lanes), lambda index, lane: train(lane, 20, index + 1))
        assert errors == [None] * lanes
        communicator.flush()
        assert rows_of(store, 0, *range(1, lanes + 1)) == [20 * lanes] + [20] * lanes
        # The dense values that threads read are as fresh as the store.
        assert (communicator.parameters.dense_values == 20 * lanes).all()

    @pytest.mark.parametrize("lanes", [1, 3])
    @pytest.mark.parametrize("right", [True, False])
    def test_a_lane_may_be_told_what_comes_next(self, store, communicator, lanes, right):
        """Rows are those after all of the lane's own steps, whether or not what it was told comes true."""
        communicator.start(parameters_in(store))

        def work(index: int, lane: Lane) -> None:
            own, asked = index + 1, {"ads": u64(index + 1)}
            for step in range(6):
                rows = lane.pull_all(asked).wait()["ads"]
                assert rows.shape == (1, 2)
                assert rows[0, 0] <= step  # nobody else touches it; variants that keep back may show less
                asked = {"ads": u64(own)}
                lane.expect(asked if right else {"ads": u64(own, 99)})
                lane.push(gradients(-1.0, own, 0))

        assert run_lanes(communicator.begin_epoch(0, lanes), work) == [None] * lanes
        communicator.flush()
        assert rows_of(store, 0, *range(1, lanes + 1)) == [6 * lanes] + [6] * lanes

    def test_lanes_that_leave_early_block_nobody(self, store, communicator):
        communicator.start(parameters_in(store))
        errors = run_lanes(communicator.begin_epoch(0, 3), lambda index, lane: train(lane, 6 * index, index + 1))
        assert errors == [None] * 3
        communicator.flush()
        assert rows_of(store, 0, 2, 3) == [18, 6, 12]

    def test_epochs_follow_each_other(self, store, communicator):
        communicator.start(parameters_in(store))
        for number in range(3):
            run_lanes(communicator.begin_epoch(number, 2), lambda index, lane: train(lane, 5 + index, index + 1))
            communicator.flush()
            assert rows_of(store, 0) == [11 * (number + 1)]

    def test_an_error_of_the_store_reaches_every_lane(self, store, communicator):
        communicator.start(parameters_in(store))
        break_store(store, after=3)
        errors = run_lanes(communicator.begin_epoch(0, 3), lambda index, lane: train(lane, 200, index + 1))
        assert all(isinstance(error, StoreError) for error in errors), errors
        assert all("server 1 (127.0.0.1:9) cannot be reached" in str(error) for error in errors)

    def test_a_lane_that_fails_hangs_nobody(self, store, communicator):
        communicator.start(parameters_in(store))

        def work(index: int, lane: Lane) -> None:
            train(lane, 3, index + 1)
            if index == 1:
                raise ValueError("a bad row")
            train(lane, 5, index + 1)

        errors = run_lanes(communicator.begin_epoch(0, 3), work)
        assert isinstance(errors[1], ValueError)

    @pytest.mark.parametrize("end", ["close", "abandon"])
    def test_no_thread_is_left(self, store, end):
        before = set(threading.enumerate())
        communicator = self.kind(store, self.config)
        communicator.start(parameters_in(store))
        lanes = communicator.begin_epoch(0, 2)
        run_lanes(lanes, lambda index, lane: train(lane, 5, index + 1))
        getattr(communicator, end)()
        left = {thread.name for thread in set(threading.enumerate()) - before}
        # "Dummy": a thread of gRPC's, in which a server of this process answers.
        assert not [name for name in left if "sparsefleet" not in name and not name.startswith("Dummy")]
        if end == "close":
            assert rows_of(store, 0) == [10]

    def test_abandon_before_start_is_fine(self, store):
        self.kind(store, self.config).abandon()

    def test_an_error_in_the_block_is_not_masked(self, store):
        def fail() -> None:
            with self.kind(store, self.config) as communicator:
                communicator.start(parameters_in(store))
                break_store(store)
                raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            fail()

    def test_a_model_without_dense_parameters(self, store, communicator):
        spec = TableSpec("ads", 2, optim.SGD(1.0), Constant(0.0))
        store.create_table(spec)
        store.create_dense("dense", np.zeros(0, np.float32), optim.SGD(1.0), [])
        communicator.start(Parameters({"ads": spec}, "dense", np.zeros(0, np.float32), optim.SGD(1.0)))
        (lane,) = communicator.begin_epoch(0, 1)
        lane.pull("ads", u64(1)).wait()
        lane.push(StepGradients(gradients(-1.0, 1).sparse, np.zeros(0, np.float32)))
        lane.leave()
        communicator.flush()
        assert rows_of(store, 1) == [1]


class OnServers:
    """The store is two servers."""

    @pytest.fixture
    def store(self) -> Iterator[ParameterStore]:
        with cluster(2) as fleet:
            yield fleet.store()
