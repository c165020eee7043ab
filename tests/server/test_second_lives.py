"""A number that is taken again: by a second job on the same servers, or by a trainer that was started again."""

from __future__ import annotations

import time

import numpy as np
import pytest
from server_processes import save_together
from small_jobs import in_threads
from test_cuts import Member, Reports
from waiting import wait_until

from sparsefleet import optim
from sparsefleet.core.errors import StoreError
from sparsefleet.core.initializer import Constant
from sparsefleet.core.keyed_rows import KeyedRows
from sparsefleet.fleet.shuffle import exchange
from sparsefleet.table import TableSpec


def reduced(stores, offset: int, late: float = 0.0):
    """What each trainer gets where trainer w hands in offset + w, the second one later."""
    got = {}

    def meet(worker):
        time.sleep(late * worker)  # the first waits there meanwhile
        got[worker] = stores[worker].crew.reduce("clicks", {"n": offset + worker}, timeout=20)

    in_threads([lambda: meet(0), lambda: meet(1)])
    return [[part["n"] for part in got[worker]] for worker in range(2)]


@pytest.mark.parametrize("end", ["close", "killed", "failed"])
def test_a_second_job_meets_anew(fleet, end):
    first = fleet.start(1, "--timeout", "2").stores_of_all(2, heartbeat=0.2)
    assert reduced(first, 10) == [[10, 11], [10, 11]]
    for store in first:
        if end == "killed":
            store.connection.heartbeats.stop()
        elif end == "failed":
            store.crew.give_up(ValueError("a bad row"))
        else:
            store.close()
    if end == "killed":
        time.sleep(2.3)  # longer than the time-out: their numbers are free
    zero = fleet.store(0, 2, heartbeat=0.2)
    assert zero.stats()["lost"] == []
    with pytest.raises(StoreError, match=r"reduce 'alone': after 0.5 s still without worker 1 \(never registered\)"):
        zero.crew.reduce("alone", {}, timeout=0.5)
    second = [zero, fleet.store(1, 2, heartbeat=0.2)]
    assert reduced(second, 20, late=0.5) == [[20, 21], [20, 21]]


def test_a_trainer_started_again_is_not_given_what_its_first_life_met(fleet):
    stores = fleet.start(1).stores_of_all(2)
    assert reduced(stores, 10) == [[10, 11], [10, 11]]
    stores[1].close()
    again = fleet.store(1, 2)
    with pytest.raises(StoreError, match=r"reduce 'clicks': worker 1 comes too late: the others have been there, with"):
        again.crew.reduce("clicks", {"n": 5})
    for turn in range(70):  # more than servers remember
        in_threads([lambda t=turn: stores[0].crew.barrier(f"more {t}"), lambda t=turn: again.crew.barrier(f"more {t}")])
    again.close()
    with pytest.raises(StoreError, match=r"barrier 'more 0': worker 1 comes too late"):
        fleet.store(1, 2).crew.barrier("more 0")


def test_what_a_first_life_handed_in_and_nobody_met_is_forgotten(fleet):
    stores = fleet.start(1).stores_of_all(2)
    with pytest.raises(StoreError, match=r"after 0.3 s still without worker 0"):
        stores[1].crew.reduce("clicks", {"n": 5}, timeout=0.3)
    stores[1].close()
    assert reduced([stores[0], fleet.store(1, 2)], 10, late=0.5) == [[10, 11], [10, 11]]


def test_a_round_takes_the_part_of_the_second_life(fleet):
    stores = fleet.start(1).stores_of_all(2)
    keys, minus = np.array([1], np.uint64), np.full((1, 1), -1.0, np.float32)
    spec = TableSpec("ads", 1, optim.SGD(1.0), Constant(0.0))
    for store in stores:
        store.create_table(spec)
    stores[1].rounds.push({"ads": KeyedRows(keys, 100 * minus)})
    wait_until(lambda: stores[0].stats()["servers"][0]["queues"]["waiting_in_round"], 20, "a push that waits")
    stores[1].close()
    again = fleet.store(1, 2)
    again.create_table(spec)
    parts = {"ads": KeyedRows(keys, minus)}
    in_threads([lambda: stores[0].rounds.push(parts).wait(), lambda: again.rounds.push(parts).wait()])
    assert stores[0].pull("ads", keys).wait() == 2


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_checkpoint_does_not_take_the_first_life_s_word(fleet, tmp_path, jobs):
    stores, facts = fleet.start(1).stores_of_all(2), Reports()
    with stores[1].crew.attending(Member(30)):
        pass
    stores[1].close()
    if jobs == 2:
        stores[0].close()
        stores[0] = fleet.store(0, 2)
    again = fleet.store(1, 2)
    with stores[0].crew.attending(Member(6)):
        save_together(stores[0], str(tmp_path / "model"), Member(6), facts)
        assert facts.steps == {0: 6}
        assert stores[0].crew.not_begun() == [1]
        with again.crew.attending(Member(7)):
            save_together(stores[0], str(tmp_path / "model"), Member(6), facts)
    assert facts.steps == {0: 6, 1: 7}


def letter(text: str):
    return np.frombuffer(text.encode(), np.uint8)


def test_a_second_job_s_exchange_has_no_letters_of_the_first(fleet):
    first = fleet.start(1).stores_of_all(2)
    first[0].crew.send_letter("exchange 1", 1, letter("old")).wait()
    first[0].crew.send_letter("exchange 1", 1, letter(""), last=True).wait()
    for store in first:
        store.close()
    second, got = fleet.stores_of_all(2), {}
    assert second[0].stats()["servers"][0]["queues"]["mail_bytes"] == 0

    def swap(me):
        got[me] = exchange(second[me].crew, "exchange 1", [(1 - me, letter(f"from {me}"))])

    in_threads([lambda: swap(0), lambda: swap(1)])
    assert got[0][1][0].tobytes() == b"from 1"
    assert [body.tobytes() for body in got[1][0]] == [b"from 0"]


def test_an_exchange_that_a_first_life_began_is_not_gone_on_with(fleet):
    stores = fleet.start(1).stores_of_all(2)
    stores[0].crew.send_letter("exchange 1", 1, letter("kept")).wait()
    stores[1].close()
    again = fleet.store(1, 2)
    taken = again.crew.take_letter("exchange 1", 0, [0])  # the first life had not begun to take
    assert taken is not None
    assert taken.body.tobytes() == b"kept"
    again.close()
    with pytest.raises(StoreError, match=r"exchange 'exchange 1': worker 1 comes too late"):
        fleet.store(1, 2).crew.take_letter("exchange 1", 0, [0])


def test_rows_of_a_former_job_are_not_taken_for_new_ones(fleet):
    """A geo trainer begins with its own first values only where the servers' rows are still as they began."""
    spec, key = TableSpec("ads", 2, optim.SGD(0.1), Constant(0.0)), np.array([1], np.uint64)
    first = fleet.start(1).store()
    first.create_table(spec)
    assert first.geo.begins_empty()
    first.close()
    second = fleet.store()
    assert second.geo.begins_empty(), "the first job sent nothing"
    second.create_table(spec)
    second.push("ads", key, np.ones((1, 2), np.float32)).wait()
    assert not second.geo.begins_empty()
    second.close()
    assert not fleet.store().geo.begins_empty()
