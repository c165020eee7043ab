"""Who waits for other trainers says so; trainers that wait for each other at different places end with an error."""

from __future__ import annotations

import threading
import time
from functools import partial

import pytest
from small_jobs import in_threads

from sparsefleet.core.errors import StoreError
from sparsefleet.store.remote import long_wait


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(long_wait, "TELL_AFTER", 0.5)


def test_who_waits_at_a_meeting_says_for_whom(fleet, impatient, caplog):
    stores = fleet.start(1, "--workers", "2").stores_of_all(2)
    late = threading.Timer(2.5, stores[1].crew.barrier, ["end"])
    late.start()
    stores[0].crew.barrier("end")
    late.join()
    said = [record.message for record in caplog.records]
    assert any("barrier 'end': waiting, " in line and "s so far: without worker 1 (process " in line for line in said)
    assert len(said) < 4, "ever more seldom"


def test_who_waits_in_a_round_says_for_whom(fleet, impatient, caplog):
    stores = fleet.start(1, "--workers", "2").stores_of_all(2)
    late = threading.Timer(2.5, lambda: stores[1].rounds.push({}).wait())
    late.start()
    stores[0].rounds.push({}).wait()
    late.join()
    assert any("round 1 waits for worker 1 (process " in record.message for record in caplog.records)


def test_trainers_that_wait_at_different_places_end_with_an_error(fleet, monkeypatch):
    monkeypatch.setattr(threading, "main_thread", threading.current_thread)  # each stands for a process
    stores = fleet.start(1, "--workers", "2", "--timeout", "3").stores_of_all(2)
    where = (
        "worker 0 at barrier 'exchange 1', worker 1 at barrier 'sync epoch 0'. All trainers must make the same calls"
    )
    start = time.monotonic()

    def wait(worker: int, place: str) -> None:
        with pytest.raises(StoreError, match="the job has ended: its trainers wait for each other") as found:
            stores[worker].crew.barrier(place)
        assert where in str(found.value)

    in_threads([partial(wait, 0, "exchange 1"), partial(wait, 1, "sync epoch 0")])
    assert 3 <= time.monotonic() - start < 15


def test_one_that_does_not_wait_for_ever_is_no_deadlock(fleet, monkeypatch):
    monkeypatch.setattr(threading, "main_thread", threading.current_thread)
    stores = fleet.start(1, "--workers", "2", "--timeout", "2").stores_of_all(2)

    def wait_a_while_elsewhere() -> None:
        with pytest.raises(StoreError, match=r"after 4 s still without worker 1 .*, which waits at barrier 'end'"):
            stores[0].crew.barrier("interrupted", timeout=4)
        stores[0].crew.barrier("end")

    in_threads([wait_a_while_elsewhere, partial(stores[1].crew.barrier, "end")])


def test_who_waits_in_a_thread_beside_the_main_one_may_still_come_elsewhere(fleet):
    stores = fleet.start(1, "--workers", "2", "--timeout", "2").stores_of_all(2)

    def after_a_while(worker: int, place: str) -> None:
        time.sleep(5)  # longer than the time-out, after which a deadlock would be told
        stores[worker].crew.barrier(place)

    early = [partial(stores[0].crew.barrier, "exchange"), partial(stores[1].crew.barrier, "epoch")]
    in_threads([*early, partial(after_a_while, 1, "exchange"), partial(after_a_while, 0, "epoch")])
