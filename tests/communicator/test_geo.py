"""Geo: local copies, deltas divided by the trainers, and in the end nothing left behind."""

from __future__ import annotations

import contextlib
import signal
import threading
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import pytest
from communicator_contract import (
    CommunicatorContract,
    OnServers,
    gradients,
    parameters_in,
    rows_of,
    run_lanes,
    train,
    u64,
)
from small_jobs import cluster

from sparsefleet import optim
from sparsefleet.communicator import CommunicatorConfig, DirectCommunicator, GeoCommunicator, StepGradients
from sparsefleet.communicator.geo import _LocalCopy
from sparsefleet.core.errors import StoreError
from sparsefleet.core.keyed_rows import KeyedRows
from sparsefleet.store import LocalStore
from sparsefleet.store.base import RunFacts
from sparsefleet.table import TableSpec


class TestGeo(OnServers, CommunicatorContract):
    kind = GeoCommunicator


class TestGeoRarely(OnServers, CommunicatorContract):
    kind = GeoCommunicator
    config = CommunicatorConfig(k_steps=7)


@pytest.fixture
def pair():
    """Two trainers on two servers that exchange after every step, and a server's view."""
    with cluster(2) as fleet:
        made = []
        for worker in range(2):
            communicator = GeoCommunicator(fleet.store(worker, 2), CommunicatorConfig(k_steps=1, trainers=2))
            communicator.start(parameters_in(communicator.store))
            made.append((communicator, *communicator.begin_epoch(0, 1)))
        yield made


def local(lane, key):
    return float(lane.pull("ads", u64(key)).wait()[0, 0])


def dense(communicator):
    return float(communicator.parameters.dense_values[0])


def test_the_formulas(pair):
    """delta = (local - old) / trainers, old += delta; on pull local += server - old. A row that no answer has told of
    yet: delta = local - old."""
    (a, lane_a), (b, lane_b) = pair
    assert local(lane_a, 5) == 0
    lane_a.push(gradients(-4.0, 5))  # all of it; dense: delta 2
    assert (local(lane_a, 5), dense(a), rows_of(a.store, 5)) == (4, 4, [4])
    assert local(lane_b, 5) == 0
    lane_b.push(gradients(-1.0, 5))  # all of it; dense: old 0, local 1, delta 0.5, server 2.5, local 1 + 2.5 - 0.5
    assert (local(lane_b, 5), dense(b), rows_of(b.store, 5)) == (5, 3, [5])
    lane_a.push(gradients(-2.0, 5))  # delta (6 - 4) / 2, server 6, local 6 + 6 - 5; dense: (6 - 2) / 2, 6 + 4.5 - 4
    assert (local(lane_a, 5), dense(a), rows_of(a.store, 5)) == (7, 6.5, [6])
    lane_b.push(gradients(0.0, 5))  # delta 0; dense: (3 - 2.5) / 2, server 4.75, local 3 + 4.75 - 2.75
    assert (local(lane_b, 5), dense(b), rows_of(a.store, 5)) == (6, 5, [6])
    lane_a.push(gradients(0.0, 5))  # delta (7 - 6) / 2; dense: (6.5 - 4.5) / 2, server 5.75, local 6.5 + 5.75 - 5.5
    assert (local(lane_a, 5), dense(a), rows_of(a.store, 5)) == (7, 6.75, [6.5])
    a.flush()  # the rest
    assert (local(lane_a, 5), dense(a), rows_of(a.store, 5)) == (7, 6.75, [7])
    b.flush()
    a.flush()
    b.flush()
    # The dense block ends as the servers have it, the same for all.
    there = np.zeros(3, np.float32)
    a.store.pull_dense("dense", there).wait()
    assert dense(a) == dense(b) == there[0] == 7


@pytest.mark.parametrize("k_steps", [2, 10])
@pytest.mark.parametrize("left", [-0.8, 0.1, 0.9])
def test_geo_bears_a_rate_that_one_process_bears(k_steps, left):
    """A step leaves so much of the way to the minimum, beyond it if negative. Trainers learn the same, out of step:
    what they sum up must not go further and further beyond it."""
    with cluster(1) as fleet:
        made = []
        for worker in range(2):
            communicator = GeoCommunicator(fleet.store(worker, 2), CommunicatorConfig(k_steps=k_steps, trainers=2))
            communicator.start(parameters_in(communicator.store))
            made.append((communicator, *communicator.begin_epoch(0, 1)))
        for communicator, lane in made:  # both begin at 64
            lane.pull("ads", u64(5)).wait()
            lane.push(gradients(-32.0, 5))
            communicator.flush()
        for step in range(30 * k_steps + k_steps // 2):
            for late, (communicator, lane) in enumerate(made):
                if step >= late * (k_steps // 2):
                    row = lane.pull("ads", u64(5)).wait()
                    rows = KeyedRows(u64(5), (1 - left) * row)
                    lane.push(StepGradients({"ads": rows}, (1 - left) * communicator.parameters.dense_values))
        for communicator, lane in made:
            assert abs(local(lane, 5)) < 1, "rows"
            assert abs(dense(communicator)) < 1, "the dense block"


def test_what_others_changed_comes_with_the_next_exchange_though_not_touched_here(pair):
    (_, lane_a), (_, lane_b) = pair
    assert local(lane_a, 8) == local(lane_b, 8) == 0
    lane_a.push(gradients(-4.0, 8))
    assert local(lane_b, 8) == 0
    lane_b.push(gradients(-1.0, 9))
    assert local(lane_b, 8) == 4


def test_a_trainer_knows_what_servers_have_of_rows_that_they_do_not_tell_it(pair):
    """Servers tell of what others have changed. Of all else a trainer adds up what it sent, as they do."""
    random, lanes = np.random.default_rng(5), [lane for _, lane in pair]
    known = [np.arange(30, dtype=np.uint64), np.arange(20, 50, dtype=np.uint64)]
    for lane, keys in zip(lanes, known, strict=True):
        lane.pull("ads", keys).wait()
    for turn in range(40):
        keys = random.permutation(known[turn % 2])[: random.integers(1, 9)]
        lanes[turn % 2].pull("ads", keys).wait()
        values = random.standard_normal((len(keys), 2)).astype(np.float32)
        lanes[turn % 2].push(StepGradients({"ads": KeyedRows(keys, values)}, np.zeros(3, np.float32)))
    for communicator, _ in pair + pair:  # twice: the first has then heard of what the second still had
        communicator.flush()
    there = pair[0][0].store.pull("ads", np.arange(50, dtype=np.uint64)).wait()
    for lane, keys in zip(lanes, known, strict=True):
        np.testing.assert_allclose(lane.pull("ads", keys).wait(), there[keys.astype(int)], rtol=1e-5, atol=1e-5)


def test_rows_that_nobody_else_changes_are_sent_whole(pair):
    (a, lane_a), (b, _) = pair
    for key in range(10, 40):
        local(lane_a, key)
        lane_a.push(gradients(-2.0, key))
    assert rows_of(b.store, *range(10, 40)) == [2.0] * 30
    a.flush()
    assert rows_of(b.store, *range(10, 40)) == [2.0] * 30
    assert local(lane_a, 10) == 2


def test_rows_not_touched_again_send_the_whole_rest_with_the_next_exchange(pair):
    """Of a row that an answer told of only 1/trainers was sent with the step that touched it."""
    (a, lane_a), (b, _) = pair
    for key in range(10, 40):
        for _ in range(2):
            local(lane_a, key)
            lane_a.push(gradients(-2.0, key))
    assert rows_of(b.store, *range(10, 40)) == [4.0] * 29 + [3.0]
    lane_a.push(gradients(0.0, 99))
    assert rows_of(b.store, 39) == [4.0]
    a.flush()
    assert rows_of(b.store, *range(10, 40)) == [4.0] * 30
    assert local(lane_a, 10) == 4


def test_rows_that_two_answers_told_of_send_a_share_each(pair):
    """A flush with nothing new sends no rows, so a second answer comes before the next sending: it tells of a row more,
    and the row of the first one is still changed by others."""
    (a, lane_a), (_, lane_b) = pair
    for key in (5, 6):
        local(lane_a, key)
        lane_a.push(gradients(0.0, key))
    for key in (5, 6):
        local(lane_b, key)
        lane_b.push(gradients(-2.0, key))
        a.flush()
        assert local(lane_a, key) == 2, "the answer has told of it"
    lane_a.push(gradients(-4.0, 5))  # old 2, local 6: a share of the difference
    assert (local(lane_a, 5), rows_of(a.store, 5)) == (6, [4])
    a.flush()
    assert rows_of(a.store, 5) == [6]


def test_of_a_row_that_is_being_fetched_the_older_value_does_not_come_last():
    """An answer that tells of the row comes when the servers have read it for us, and before it is here."""
    asked, arrives = threading.Event(), threading.Event()

    class OnItsWay:
        def pull(self, table, keys):
            return self

        def wait(self):
            asked.set()
            assert arrives.wait(20)
            return np.full((1, 2), 1.0, np.float32)

    copy = _LocalCopy(TableSpec("ads", 2, optim.SGD(1.0)), OnItsWay(), fetch=True, done=0)
    fetches = threading.Thread(target=copy.pull, args=(u64(5),), daemon=True)
    tells = threading.Thread(
        target=copy.receive, args=(KeyedRows(u64(5), np.full((1, 2), 3.0, np.float32)),), daemon=True
    )
    fetches.start()
    assert asked.wait(20)
    tells.start()
    tells.join(0.3)  # as long as it may take, if it does not wait
    arrives.set()
    for thread in (fetches, tells):
        thread.join(20)
        assert not thread.is_alive()
    assert copy.pull(u64(5)).tolist() == [[3.0, 3.0]]


def test_exchanges_come_every_k_steps():
    with cluster(1) as fleet:
        store = fleet.store()
        communicator = GeoCommunicator(store, CommunicatorConfig(k_steps=4))
        communicator.start(parameters_in(store))
        (lane,) = communicator.begin_epoch(0, 1)
        seen = []
        for _ in range(9):
            train(lane, 1, 3)
            seen += rows_of(store, 3)
        assert seen == [0, 0, 0, 4, 4, 4, 4, 8, 8]


def test_threads_lose_nothing_while_one_exchanges():
    with cluster(2) as fleet:
        communicator = GeoCommunicator(fleet.store(), CommunicatorConfig(k_steps=3))
        communicator.start(parameters_in(communicator.store))
        assert run_lanes(communicator.begin_epoch(0, 4), lambda i, lane: train(lane, 50, i + 1)) == [None] * 4
        communicator.flush()
        np.testing.assert_allclose(rows_of(communicator.store, 0, 1, 2, 3, 4), [200, 50, 50, 50, 50], rtol=1e-5)
        np.testing.assert_allclose(communicator.parameters.dense_values, 200, rtol=1e-5)


RULES = [
    optim.SGD(0.1, weight_decay=0.01),
    optim.Adagrad(0.1, initial_accumulator=0.1),
    optim.RowwiseAdagrad(0.1),
    optim.Adam(0.1),
    optim.FTRL(0.1),
]
each_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)


def drawn(steps, seed=1):
    """Gradients of so many steps on rows 0 to 9."""
    random = np.random.default_rng(seed)
    for _ in range(steps):
        keys = random.permutation(10)[:4].astype(np.uint64)
        rows = KeyedRows(keys, random.standard_normal((4, 2)).astype(np.float32))
        yield StepGradients({"ads": rows}, random.standard_normal(3).astype(np.float32))


def pushed(lane, steps):
    for step in steps:
        lane.pull("ads", step.sparse["ads"].keys).wait()
        lane.push(step)


def in_one_process(rule, steps):
    """Rows 0 to 9, and the dense block."""
    store = LocalStore()
    communicator = DirectCommunicator(store)
    parameters = parameters_in(store, rule)
    communicator.start(parameters)
    pushed(*communicator.begin_epoch(0, 1), steps)
    return store.pull("ads", np.arange(10, dtype=np.uint64)).wait(), parameters.dense_values


def on_servers(communicator):
    dense = np.zeros(3, np.float32)
    communicator.store.pull_dense("dense", dense).wait()
    return communicator.store.pull("ads", np.arange(10, dtype=np.uint64)).wait(), dense


def assert_same(found, wanted):
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


@each_rule
@pytest.mark.parametrize("k_steps", [1, 7])
def test_one_trainer_does_what_one_process_does(rule, k_steps):
    with cluster(2) as fleet:
        communicator = GeoCommunicator(fleet.store(), CommunicatorConfig(k_steps=k_steps))
        communicator.start(parameters_in(communicator.store, rule, optim.values_only))
        pushed(*communicator.begin_epoch(0, 1), drawn(40))
        communicator.flush()
        assert_same(on_servers(communicator), in_one_process(rule, drawn(40)))
        for server in fleet.servers:  # the state is the trainer's
            assert [table.state_width for table in server.state.holdings.tables()] == [0]
            assert [len(block.table.state) for block in server.state.holdings.blocks()] == [0]


@each_rule
def test_another_fit_goes_on_with_the_state(rule):
    with cluster(1) as fleet:
        communicator = GeoCommunicator(fleet.store(), CommunicatorConfig(k_steps=3))
        parameters, steps = parameters_in(communicator.store, rule, optim.values_only), list(drawn(40))
        for part, done in ((steps[:25], 0), (steps[25:], 25)):
            with communicator:
                communicator.start(parameters, done)
                pushed(*communicator.begin_epoch(0, 1), part)
        assert_same(on_servers(communicator), in_one_process(rule, steps))


@pytest.mark.parametrize("how", ["loaded", "failed"])
def test_state_begins_afresh_after_a_load_and_after_a_failure(how, tmp_path, caplog):
    """Adam's own clock too: it would else take its young moments for old ones, and go six times too far."""
    rule = optim.Adam(0.1)
    with cluster(1) as fleet:
        communicator = GeoCommunicator(fleet.store(), CommunicatorConfig(k_steps=1))
        parameters = parameters_in(communicator.store, rule, optim.values_only)
        with contextlib.suppress(KeyboardInterrupt), communicator:
            communicator.start(parameters)
            pushed(*communicator.begin_epoch(0, 1), drawn(25))
            if how == "failed":
                raise KeyboardInterrupt
        if how == "loaded":
            communicator.store.save(str(tmp_path / "c"), RunFacts())
            communicator.store.load(str(tmp_path / "c"))
        before = on_servers(communicator)
        communicator.start(parameters, 25)
        assert "adam begins without state: in mode geo every trainer keeps its own" in caplog.text
        (lane,) = communicator.begin_epoch(0, 1)
        pushed(lane, [gradients(3.0, *range(10))])
        communicator.flush()
        for one, other in zip(on_servers(communicator), before, strict=True):
            np.testing.assert_allclose(one - other, -0.1, rtol=1e-4)


@each_rule
def test_what_others_change_moves_values_and_leaves_the_state(rule):
    """Two trainers: the second's steps are as long as they would be without the first's change."""
    if rule.name in ("sgd", "ftrl"):  # their steps depend on where the values are (weight decay; FTRL's shrinking)
        rule = replace(rule, weight_decay=0.0) if rule.name == "sgd" else replace(rule, beta=0.0)
    with cluster(1) as fleet:
        made = []
        for worker in range(2):
            communicator = GeoCommunicator(fleet.store(worker, 2), CommunicatorConfig(k_steps=1, trainers=2))
            communicator.start(parameters_in(communicator.store, rule, optim.values_only))
            made.append((communicator, *communicator.begin_epoch(0, 1)))
        (a, lane_a), (b, lane_b) = made
        pushed(lane_b, [gradients(1.0, 5)] * 3)
        b.flush()
        here = local(lane_b, 5)
        pushed(lane_a, [gradients(-2.0, 5)] * 2)
        a.flush()
        there = rows_of(a.store, 5)[0]
        assert there > here
        pushed(lane_b, [gradients(0.0, 9)])  # brings the news
        moved = local(lane_b, 5)
        np.testing.assert_allclose(moved, there, rtol=1e-4)
        pushed(lane_b, [gradients(1.0, 5)])
        b.flush()
        steps = [*[gradients(1.0, 5)] * 3, gradients(0.0, 9), gradients(1.0, 5)]
        alone = in_one_process(rule, steps[:-1])[0][5, 0] - in_one_process(rule, steps)[0][5, 0]
        if rule.name != "ftrl":
            np.testing.assert_allclose(moved - rows_of(b.store, 5)[0], alone, rtol=1e-4)


def test_servers_that_keep_state_are_for_other_modes():
    with cluster(1) as fleet:
        communicator = GeoCommunicator(fleet.store(), CommunicatorConfig(k_steps=1))
        communicator.start(parameters_in(communicator.store, optim.Adam()))
        (lane,) = communicator.begin_epoch(0, 1)
        with pytest.raises(StoreError, match=r"'ads' has adam's state on this server.*optim.values_only"):
            pushed(lane, drawn(2))
        store = communicator.store
        store.create_table(TableSpec("others", 2, optim.values_only(optim.Adam())))
        with pytest.raises(StoreError, match="gradients cannot be applied here: these values are of a job in mode geo"):
            store.push("others", u64(1), np.ones((1, 2), np.float32)).wait()


def test_one_process_has_nobody_to_meet():
    store = LocalStore()
    communicator = GeoCommunicator(store, CommunicatorConfig(k_steps=1))
    with pytest.raises(StoreError, match="geo needs parameter servers"):
        communicator.start(parameters_in(store))


@pytest.mark.parametrize("how", ["another fit", "loaded"])
def test_rows_that_were_learnt_before_are_fetched_when_met(how, tmp_path):
    with ExitStack() as stack:
        store = stack.enter_context(cluster(2)).store()
        parameters = parameters_in(store)
        store.push("ads", u64(5), np.full((1, 2), -3.0, np.float32)).wait()
        if how == "loaded":
            store.save(str(tmp_path / "c"), RunFacts())
            store = stack.enter_context(cluster(2)).store()
            parameters = parameters_in(store)
            store.load(str(tmp_path / "c"))
        communicator = GeoCommunicator(store, CommunicatorConfig(k_steps=100))
        communicator.start(parameters)
        (lane,) = communicator.begin_epoch(0, 1)
        assert (local(lane, 5), local(lane, 6)) == (3, 0)
        lane.push(gradients(-1.0, 5, 6))
        communicator.flush()
        assert rows_of(store, 5, 6) == [4, 1]


def test_the_learning_rate_goes_on_where_the_run_stood():
    """Each step counts once, for rows and dense parameters alike, and those of an earlier fit count too."""
    rule = optim.SGD(1.0, schedule=optim.schedule.LinearWarmup(4))
    with cluster(1) as fleet:
        store = fleet.store()
        communicator = GeoCommunicator(store, CommunicatorConfig(k_steps=1))
        communicator.start(parameters_in(store, rule), done=2)
        (lane,) = communicator.begin_epoch(0, 1)
        seen = []
        for _ in range(3):
            train(lane, 1, 3)
            seen.append((*rows_of(store, 3), dense(communicator)))
        rates = np.cumsum([rule.rate(step) for step in (3, 4, 5)])
        np.testing.assert_allclose(seen, np.stack([rates, rates], axis=1), rtol=1e-5)


@pytest.mark.parametrize("where", ["an answer is waited for", "differences are taken", "an answer is taken in"])
def test_ctrl_c_within_a_flush_loses_nothing(where, monkeypatch):
    """The main thread flushes at an epoch's end. Interrupted there it saves, and so flushes once more."""
    with cluster(2) as fleet:
        communicator = GeoCommunicator(fleet.store(), CommunicatorConfig(k_steps=10, trainers=2))
        communicator.start(parameters_in(communicator.store))
        (lane,) = communicator.begin_epoch(0, 1)
        train(lane, 10, 1)
        under_way = communicator._under_way
        assert under_way is not None
        (copy,) = communicator._copies.values()
        owner, name = {
            "an answer is waited for": (under_way, "_finish"),
            "differences are taken": (copy, "take_delta"),
            "an answer is taken in": (copy, "receive"),
        }[where]
        real, interrupts = getattr(owner, name), [signal.SIGINT]

        def interrupted(*arguments):
            while interrupts:
                signal.raise_signal(interrupts.pop())
            return real(*arguments)

        monkeypatch.setattr(owner, name, interrupted)
        with pytest.raises(KeyboardInterrupt):
            communicator.flush()
        communicator.flush()
        assert rows_of(communicator.store, 1, 0) == [10.0, 10.0]
        assert dense(communicator) == 10.0
