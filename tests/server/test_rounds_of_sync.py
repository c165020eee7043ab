"""Sync rounds: three trainers on servers are one process on the joint batch; nobody waits for ever."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from test_saving_after_a_loss import registered_again
from waiting import wait_until

from sparsefleet import optim
from sparsefleet.core.errors import StoreError
from sparsefleet.core.initializer import Uniform
from sparsefleet.core.keyed_rows import KeyedRows
from sparsefleet.fleet.facade import Fleet
from sparsefleet.server import ServerConfig
from sparsefleet.server.holdings import BoundRows
from sparsefleet.server.ledger import Step
from sparsefleet.server.members import Registration
from sparsefleet.server.state import ServerState
from sparsefleet.table import DenseTable, SparseTable, TableSpec

SPEC = TableSpec("ads", 3, optim.Adam(0.05), Uniform(-1, 1), seed=3)
LAYOUT = [("w", (11,))]


def on_all(stores, act):
    """act(store, worker) in one thread per trainer; their results, or the first error."""
    results, errors = {}, {}

    def run(worker):
        try:
            results[worker] = act(stores[worker], worker)
        except BaseException as error:
            errors[worker] = error

    threads = [threading.Thread(target=run, args=(worker,), daemon=True) for worker in range(len(stores))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive(), "a trainer hangs"
    if errors:
        raise errors[min(errors)]
    return results


def part(step: int, worker: int) -> tuple[KeyedRows, np.ndarray]:
    rng = np.random.default_rng([step, worker])
    keys = rng.permutation(40)[: rng.integers(0, 25)].astype(np.uint64)
    rows = rng.standard_normal((len(keys), 3)).astype(np.float32)
    return KeyedRows(keys, rows), rng.standard_normal(11).astype(np.float32)


@pytest.mark.parametrize("count", [1, 3])
def test_three_trainers_equal_one_process_to_the_bit(fleet, count):
    stores = fleet.start(count).stores_of_all(3)

    def train(store, worker):
        store.create_table(SPEC)
        store.create_dense("net", np.zeros(11, np.float32), optim.Adam(0.05), LAYOUT)
        rounds = []
        for step in range(20):
            rows, dense = part(step, worker)
            rounds.append(store.rounds.push({"ads": rows}, {"net": dense}).wait())
        return rounds

    rounds = on_all(stores, train)
    assert set(map(tuple, rounds.values())) == {tuple(range(1, 21))}

    table, block = SparseTable(SPEC), DenseTable("net", np.zeros(11, np.float32), optim.Adam(0.05))
    for step in range(20):
        total, dense = np.zeros((40, 3), np.float32), np.zeros(11, np.float32)
        touched = np.zeros(40, bool)
        for worker in range(3):
            rows, more = part(step, worker)
            total[rows.keys.astype(int)] += rows.rows
            touched[rows.keys.astype(int)] = True
            dense = dense + more
        keys = np.flatnonzero(touched).astype(np.uint64)
        table.push(keys, total[touched])
        block.push(dense)
    everything, values = np.arange(40, dtype=np.uint64), np.empty(11, np.float32)
    np.testing.assert_array_equal(stores[1].pull("ads", everything).wait(), table.pull(everything))
    stores[2].pull_dense("net", values).wait()
    np.testing.assert_array_equal(values, block.values)


def test_a_trainer_without_rows_leaves_and_comes_back(fleet):
    stores = fleet.start(2).stores_of_all(2)
    one = KeyedRows(np.array([1], np.uint64), np.full((1, 3), -1.0, np.float32))
    spec = TableSpec("ads", 3, optim.SGD(1.0), Uniform(0, 0))

    def train(store, worker):
        store.create_table(spec)
        for _ in range(3 if worker == 0 else 7):
            store.rounds.push({"ads": one}).wait()
        store.rounds.leave()
        store.crew.barrier("epoch")
        return store.rounds.push({"ads": one}).wait()

    assert on_all(stores, train) == {0: 8, 1: 8}
    assert (stores[0].pull("ads", one.keys).wait() == 3 + 7 + 2).all()


def test_a_lost_trainer_is_named_and_nobody_hangs(fleet):
    stores = fleet.start(1, "--timeout", "2").stores_of_all(2, heartbeat=0.2)
    stores[0].create_table(SPEC)
    stores[1].connection.heartbeats.stop()  # as if it had been killed
    start = time.monotonic()
    with pytest.raises(StoreError, match=r"round 1: lost worker 1 \(process \d+ on .*last heard of .* time-out is 2 s"):
        stores[0].rounds.push({"ads": part(0, 0)[0]}).wait()
    assert 1 < time.monotonic() - start < 10


def test_a_trainer_that_never_came_is_named(fleet):
    store = fleet.start(1, "--timeout", "5", "--join-timeout", "1").store(0, 2, heartbeat=0.2)
    store.create_table(SPEC)
    with pytest.raises(StoreError, match=r"lost worker 1 \(never registered\)"):
        store.rounds.push({"ads": part(0, 0)[0]}).wait()


def test_lost_trainers_are_left_out_when_asked(fleet):
    stores = fleet.start(1, "--timeout", "1.5", "--lost-trainer", "drop").stores_of_all(2, heartbeat=0.2)
    stores[0].create_table(SPEC)
    stores[1].create_table(SPEC)
    stores[1].connection.heartbeats.stop()
    assert stores[0].rounds.push({"ads": part(0, 0)[0]}).wait() == 1
    assert stores[0].rounds.push({"ads": part(1, 0)[0]}).wait() == 2
    stores[0].crew.barrier("end", timeout=10)
    with pytest.raises(StoreError, match=r"the others went on without worker 1: it was silent for more than 1\.5 s"):
        stores[1].pull("ads", np.array([1], np.uint64)).wait()
    assert stores[0].stats()["workers"]["1"]["state"] == "dropped"


def stop_worker(store):
    script = Fleet()
    script._remote = store
    script.stop_worker()


@pytest.mark.parametrize("policy", ["error", "drop"])
def test_a_trainer_that_is_cut_off_and_says_good_bye_has_not_run_out_of_rows(fleet, caplog, policy):
    stores = fleet.start(2, "--lost-trainer", policy).stores_of_all(2)  # the time-out plays no part
    on_all(stores, lambda store, worker: store.rounds.push({}).wait())
    stores[1].crew.give_up(StoreError("cut off"))  # as `fit` does where it fails
    stop_worker(stores[1])  # as a script does in its `finally`
    start = time.monotonic()
    if policy == "drop":
        assert stores[0].rounds.push({}).wait() == 2
    else:
        with pytest.raises(
            StoreError, match=r"round 2: lost worker 1 \(process \d+ on .*\), which failed: cut off; the time-out is"
        ):
            stores[0].rounds.push({}).wait()
        with pytest.raises(StoreError, match=r"barrier 'end': lost worker 1"):
            stores[0].crew.barrier("end")
    assert time.monotonic() - start < 10
    assert stores[0].stats()["workers"]["1"]["state"] == ("dropped" if policy == "drop" else "lost")
    assert [name.split(" (")[0] for name in stores[0].crew.lost()] == ["worker 1"]
    stop_worker(stores[0])
    assert "the job ends without worker 1 (process " in caplog.text
    assert [process.wait(timeout=20) for process in fleet.processes] == [3, 3]


def test_waiting_longer_than_the_time_out_is_fine_while_all_are_alive(fleet):
    stores = fleet.start(1, "--timeout", "3").stores_of_all(2, timeout=1.5, heartbeat=0.2)
    for store in stores:
        store.create_table(SPEC)
    pending = stores[0].rounds.push({"ads": part(0, 0)[0]})
    timer = threading.Timer(4, lambda: stores[1].rounds.push({"ads": part(0, 1)[0]}).wait())
    timer.start()
    assert pending.wait() == 1
    timer.join()


def test_when_the_one_that_applies_dies_during_a_checkpoint_another_does():
    state = ServerState(ServerConfig(workers=2, endpoints=("a:1",)))
    table, key = SparseTable(TableSpec("ads", 1, optim.SGD(1.0), Uniform(0, 0))), np.array([1], np.uint64)
    one, ended = BoundRows(table, key, np.full((1, 1), -1.0, np.float32)), []

    def contribute(worker, on_wait):
        state.sessions.register("life", Registration(worker, 2, ("a:1",), 0, "x"))
        account = state.account(worker, "life", 0)
        ended.append(state.rounds.contribute(Step(account, 1, 1), [one], on_wait))

    def dead(reason):
        raise OSError("the client is gone")  # as writing to its stream says

    state.ledger.gate.hold("saver", None, 1.0)
    other = threading.Thread(target=contribute, args=(0, lambda reason: None), daemon=True)
    other.start()
    wait_until(lambda: state.rounds.waiting, 20, "a part of a round that waits")
    with pytest.raises(OSError, match="the client is gone"):
        contribute(1, dead)
    state.ledger.gate.open("saver")
    other.join(10)
    assert ended == [1]
    assert table.pull(key) == 2, "both parts, each once"
    contribute(1, dead)  # had it lived after all, and sent its part again
    assert ended == [1, 1]
    assert table.pull(key) == 2


def test_a_job_that_died_within_a_round_leaves_the_servers_to_the_next_one(fleet):
    """Its last round was applied on one server only, so the servers' own counts differ for ever."""
    fleet.start(2, "--timeout", "1")
    first = fleet.stores_of_all(2, timeout=4.0, heartbeat=0.2)
    for store in first:
        store.create_table(SPEC)
    whole, half = part(0, 0)[0], part(0, 1)[0]
    first[0].rounds.push({"ads": whole})
    calls = first[1]._calls
    messages = calls.messages("sync", [calls.row_item("ads", half.keys, half.rows)], steps=1)
    first[1].connection.callers.mine().send("sync", {0: messages[0]})[0].wait(5)  # killed before server 1 had its part
    for store in first:
        store.connection.heartbeats.stop()
    second = [registered_again(fleet, worker, 2) for worker in range(2)]
    for store in second:
        store.create_table(SPEC)
    for expected in (1, 2):
        rounds = on_all(second, lambda store, worker: store.rounds.push({"ads": part(1, worker)[0]}).wait())
        assert rounds == {0: expected, 1: expected}


def test_to_a_trainer_started_again_rounds_count_from_its_first_on_every_server():
    """Its former life died when one server had applied the round that it was in, and the other had not."""
    ahead, behind = (ServerState(ServerConfig(workers=2, endpoints=("a:1",))) for _ in range(2))

    def life(state, worker, incarnation):
        state.sessions.register(incarnation, Registration(worker, 2, ("a:1",), 0, "x"))
        return state.account(worker, incarnation, 0)

    def round_of(state, lives, sequences):
        """One part of each trainer; the number of the round as each is told it."""
        accounts = [life(state, worker, incarnation) for worker, incarnation in enumerate(lives)]
        steps = [Step(account, number, 1) for account, number in zip(accounts, sequences, strict=True)]
        return on_all(steps, lambda step, worker: state.rounds.contribute(step, [], lambda reason: None))

    for state in (ahead, behind):
        life(state, 0, "stays"), life(state, 1, "first")
    assert round_of(ahead, ("stays", "first"), (1, 1)) == {0: 1, 1: 1}
    for state in (ahead, behind):
        state.sessions.leave(1, "first", True)  # its number is free
    assert round_of(ahead, ("stays", "second"), (2, 1)) == {0: 2, 1: 1}
    assert round_of(behind, ("stays", "second"), (1, 1)) == {0: 1, 1: 1}


def test_a_second_contribution_of_one_trainer_is_refused(fleet):
    stores = fleet.start(1).stores_of_all(2)
    stores[0].create_table(SPEC)
    errors = []

    def second():
        try:
            stores[0].rounds.push({"ads": part(0, 0)[0]}).wait()
        except StoreError as error:
            errors.append(str(error))

    first = stores[0].rounds.push({"ads": part(0, 0)[0]})
    # The two go over streams of their own: the second must not overtake the first.
    wait_until(lambda: stores[1].stats()["servers"][0]["queues"]["waiting_in_round"] == 1, 20, "the first contribution")
    thread = threading.Thread(target=second)
    thread.start()
    thread.join(timeout=20)
    assert "worker 0 contributed twice to round 1" in errors[0]
    stores[1].create_table(SPEC)
    stores[1].rounds.push({"ads": part(0, 1)[0]}).wait()
    assert first.wait() == 1


def test_barrier_and_reduce_bring_all_together(fleet):
    stores = fleet.start(2).stores_of_all(3)

    def meet(store, worker):
        for turn in range(3):
            assert store.crew.reduce("clicks", {"worker": worker, "turn": turn}) == [
                {"worker": one, "turn": turn} for one in range(3)
            ]
            store.crew.barrier("end")
        return True

    assert on_all(stores, meet) == {0: True, 1: True, 2: True}


def test_a_barrier_that_runs_out_of_time_names_who_is_missing(fleet):
    stores = fleet.start(1).stores_of_all(2)
    with pytest.raises(StoreError, match=r"barrier 'epoch': after 0.5 s still without worker 1 \(process"):
        stores[0].crew.barrier("epoch", timeout=0.5)
