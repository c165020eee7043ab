"""Errors of a trainer's own end the job; kills and cuts are the policy's; launchers tell of both."""

from __future__ import annotations

import signal
import threading
import time

import numpy as np
import pytest
from small_jobs import in_threads
from waiting import wait_until

from sparsefleet import optim
from sparsefleet.core.errors import Disagreement, StoreError
from sparsefleet.core.initializer import Constant
from sparsefleet.core.keyed_rows import KeyedRows
from sparsefleet.store.base import RunFacts
from sparsefleet.store.remote.config import RemoteConfig
from sparsefleet.store.remote.link import ServerLink
from sparsefleet.store.remote.stream import Call, Stream
from sparsefleet.table import TableSpec

SPEC = TableSpec("ads", 2, optim.SGD(1.0), Constant(0.0))
KEYS = np.arange(10, dtype=np.uint64)
ONES = np.ones((10, 2), np.float32)
BROKEN = r"the job has ended: worker 1 \(process \d+ on .*\) failed: row 7 is bad\. Once that is mended, start the job"


def launcher_says(fleet, worker: int, how: str, *, failed: bool) -> list[bool]:
    config = RemoteConfig(tuple(fleet.endpoints), timeout=10.0)
    links = [ServerLink(config, index) for index in range(len(fleet.endpoints))]
    return [link.action("ended", {"worker": worker, "how": how, "failed": failed})["goes_on"] for link in links]


@pytest.mark.parametrize("policy", ["error", "drop"])
def test_an_error_of_its_own_ends_the_job_whatever_the_policy(fleet, tmp_path, policy):
    stores = fleet.start(2, "--lost-trainer", policy).stores_of_all(2)
    for store in stores:
        store.create_table(SPEC)
    stores[0].save(str(tmp_path / "before"), RunFacts())
    stores[1].crew.give_up(ValueError("row 7 is bad"))
    step = {"ads": KeyedRows(KEYS, ONES)}
    for call in (
        lambda: stores[0].pull("ads", KEYS).wait(),
        lambda: stores[0].push_step(step).wait(),
        lambda: stores[0].rounds.push(step).wait(),
        lambda: stores[0].crew.barrier("end"),
        lambda: stores[0].save(str(tmp_path / "after"), RunFacts()),
    ):
        start = time.monotonic()
        with pytest.raises(StoreError, match=BROKEN + f".* and resume from .*{tmp_path.name}/before"):
            call()
        assert time.monotonic() - start < 5
    assert not (tmp_path / "after").exists()
    stores[0].crew.stop()  # a script's `finally` may still say good-bye
    stores[0].close()
    assert [process.wait(timeout=20) for process in fleet.processes] == [3, 3]


def test_who_waits_hears_of_the_error_at_once(fleet):
    waiting, failing = fleet.start(1, "--lost-trainer", "drop").stores_of_all(2)
    pending = waiting.rounds.push({})
    start = time.monotonic()
    failing.crew.give_up(ValueError("row 7 is bad"))
    with pytest.raises(StoreError, match=BROKEN):
        pending.wait()
    assert time.monotonic() - start < 5


def test_a_killed_trainer_is_lost_as_soon_as_its_launcher_says_so(fleet):
    stores = fleet.start(2, "--lost-trainer", "drop").stores_of_all(2)
    stores[1].connection.heartbeats.stop()
    assert launcher_says(fleet, 1, "killed by SIGKILL", failed=False) == [True, True]
    start = time.monotonic()
    stores[0].crew.barrier("end")
    assert time.monotonic() - start < 5
    assert [name.split(" (")[0] for name in stores[0].crew.lost()] == ["worker 1"]


def test_with_the_other_policy_the_error_says_how_it_ended(fleet):
    stores = fleet.start(1).stores_of_all(2)
    assert launcher_says(fleet, 1, "killed by SIGKILL", failed=False) == [False]
    with pytest.raises(
        StoreError, match=r"lost worker 1 \(process .*\), which failed: killed by SIGKILL; .*--lost-trainer drop"
    ):
        stores[0].crew.barrier("end")


@pytest.mark.parametrize("policy", ["error", "drop"])
def test_a_trainer_that_fails_before_it_registers_ends_the_job(fleet, policy):
    alone = fleet.start(1, "--lost-trainer", policy).store(0, 2)
    assert launcher_says(fleet, 1, "exit status 2", failed=True) == [False]
    with pytest.raises(
        StoreError, match=r"the job has ended: worker 1 \(ended before it registered: exit status 2\)\. Once"
    ):
        alone.crew.barrier("begin")


def test_a_trainer_killed_before_it_registers_is_not_waited_for(fleet):
    alone = fleet.start(1, "--lost-trainer", "drop").store(0, 2)
    assert launcher_says(fleet, 1, "killed by SIGKILL", failed=False) == [True]
    alone.crew.barrier("begin")
    assert alone.crew.lost() == ["worker 1 (killed by SIGKILL)"]


def test_what_launchers_say_of_trainers_that_are_done_changes_nothing(fleet):
    stores = fleet.start(1, "--lost-trainer", "drop").stores_of_all(2)
    stores[1].crew.stop()
    stores[1].close()
    assert launcher_says(fleet, 1, "exit status 1", failed=True) == [True]
    stores[0].crew.barrier("end")
    assert stores[0].crew.lost() == []
    with pytest.raises(StoreError, match=r"worker 9 has ended \(exit status 1\), but there are 2 workers"):
        launcher_says(fleet, 9, "exit status 1", failed=True)


def test_trainers_of_different_modes_are_refused(fleet):
    fleet.start(1).store(0, 2, mode="sync")
    with pytest.raises(
        StoreError,
        match=r"modes differ: worker 1 \(process .*\) trains in mode geo; this server and its other trainers in sync",
    ):
        fleet.store(1, 2, mode="geo")
    fleet.store(1, 2, mode="sync")


def test_a_second_job_may_have_another_mode(fleet):
    for store in fleet.start(1).stores_of_all(2, mode="sync"):
        store.close()
    fleet.store(0, 2, mode="geo")
    with pytest.raises(StoreError, match=r"modes differ: .* trains in mode sync; .* in geo"):
        fleet.store(1, 2, mode="sync")


def test_a_trainer_comes_back_while_the_others_round_is_applied(fleet, tmp_path):
    """Its part belongs to the next round; it is not taken for one that was applied."""
    stores = fleet.start(1).stores_of_all(3)
    for store in stores:
        store.create_table(SPEC)
    stores[2].rounds.leave()
    link, saver = stores[0]._links[0], stores[0].connection.identity
    link.action("freeze", {**saver, "seconds": 30.0})  # the round stands complete, and is not applied yet
    step = {"ads": KeyedRows(KEYS, ONES)}
    first = [stores[worker].rounds.push(step) for worker in (0, 1)]
    wait_until(lambda: link.action("stats", {})["queues"]["held_by_cut"] == 1, 30, "a push that waits for the save")
    late = stores[2].rounds.push(step)
    wait_until(lambda: link.action("stats", {})["workers"]["2"]["state"] == "present", 30, "its push")
    link.action("thaw", saver)
    assert [pending.wait() for pending in first] == [1, 1]
    second = [stores[worker].rounds.push(step) for worker in (0, 1)]
    assert late.wait() == 2
    assert [pending.wait() for pending in second] == [2, 2]
    assert set(np.unique(stores[0].pull("ads", KEYS).wait())) == {-5.0}


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_after_a_job_that_broke_before_all_had_come_the_next_one_begins_anew(fleet, order):
    fleet.start(1, "--workers", "2")
    launcher_says(fleet, 1, "exit status 2", failed=True)
    first = fleet.store(0, 2)
    with pytest.raises(StoreError, match="the job has ended"):
        first.crew.barrier("begin")
    first.crew.give_up(StoreError("the job has ended"))
    second = {worker: fleet.store(worker, 2) for worker in order}
    in_threads([lambda s=store: s.crew.barrier("begin", timeout=20) for store in second.values()])


def test_the_only_trainer_of_a_broken_job_may_come_again(fleet):
    fleet.start(1, "--workers", "1")
    launcher_says(fleet, 0, "exit status 2", failed=True)
    fleet.store(0, 1).crew.barrier("begin", timeout=20)


def test_a_trainer_that_leaves_the_rounds_and_is_lost_then_has_not_run_out_of_rows(fleet):
    """As one is that is interrupted alone: its threads have ended, and it waits in vain for the others to save."""
    stores = fleet.start(1).stores_of_all(2)
    stores[1].rounds.leave()
    assert stores[0].rounds.push({}).wait() == 1
    stores[1].crew.give_up(KeyboardInterrupt())
    with pytest.raises(StoreError, match=r"round 2: lost worker 1 \(process .*\), which failed: KeyboardInterrupt"):
        stores[0].rounds.push({}).wait()


def test_ctrl_c_while_an_answer_is_waited_for_loses_no_answer(fleet):
    store = fleet.start(1).store()
    store.create_table(SPEC)
    link, saver = store._links[0], store.connection.identity
    link.action("freeze", {**saver, "seconds": 30.0})
    pending = store.push("ads", KEYS, ONES)

    def queues():
        return link.action("stats", {})["queues"]

    def interrupt():
        wait_until(lambda: queues()["held_by_cut"] == 1, 20, "a push that waits at the server")
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    def wait_for_the_answer():
        threading.Thread(target=interrupt, daemon=True).start()
        pending.wait()

    with pytest.raises(KeyboardInterrupt):
        wait_for_the_answer()
    link.action("thaw", saver)
    wait_until(lambda: queues()["under_way"] == 0, 20, "an answer that nobody waits for")
    pending.wait(timeout=10)
    assert set(np.unique(store.pull("ads", KEYS).wait())) == {-1.0}  # sent again, counted once


@pytest.mark.parametrize("when", ["before", "after"])
def test_ctrl_c_as_an_answer_is_taken_in_loses_no_answer(fleet, monkeypatch, when):
    """The answer has been read: before it is the call's, the call is sent again; afterwards it is not."""
    store = fleet.start(1).store()
    store.create_table(SPEC)
    pending, real, interrupts = store.push("ads", KEYS, ONES), Call.take_in, [KeyboardInterrupt()]

    def interrupted(call, frame):
        if when == "after":
            real(call, frame)
        if interrupts:
            raise interrupts.pop()
        if when == "before":
            real(call, frame)

    monkeypatch.setattr(Call, "take_in", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pending.wait()
    pending.wait(timeout=10)
    assert set(np.unique(store.pull("ads", KEYS).wait())) == {-1.0}
    assert not store.connection.callers.mine()._streams[0]._unanswered


def test_ctrl_c_as_an_answer_is_let_go_of_leaves_it_as_it_was(fleet, monkeypatch):
    """Its room in shared memory is another answer's by the time that it is asked for again."""
    store, keys = fleet.start(1).store(), np.arange(5000, dtype=np.uint64)
    store.create_table(SPEC)
    store.pull("ads", KEYS).wait()  # the stream is open: what follows goes through shared memory
    pending, real, interrupts = store.pull("ads", keys), Call.release, [KeyboardInterrupt()]

    def interrupted(call):
        real(call)
        while interrupts:
            raise interrupts.pop()

    with monkeypatch.context() as patched:
        patched.setattr(Call, "release", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pending.wait()
    store.push("ads", keys, np.ones((5000, 2), np.float32)).wait()
    assert set(np.unique(store.pull("ads", keys).wait())) == {-1.0}
    assert set(np.unique(pending.wait())) == {0.0}


@pytest.mark.parametrize("where", ["_write_on", "_unread"])
def test_ctrl_c_while_a_step_is_sent_leaves_it_on_no_server_alone(fleet, tmp_path, monkeypatch, where):
    """As within a geo trainer's flush, which the main thread does: it saves then."""
    store = fleet.start(2).store()
    store.create_table(SPEC)
    store.push("ads", KEYS, ONES).wait()
    stream = store.connection.callers.mine()._streams[1]  # the first server has its part by then
    under_way = store.pull("ads", KEYS)  # so that there is an answer to be read first
    real, interrupts = getattr(Stream, where), [KeyboardInterrupt()]

    def interrupted(self, *arguments):
        if self is stream and interrupts:
            raise interrupts.pop()
        return real(self, *arguments)

    monkeypatch.setattr(Stream, where, interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.push("ads", KEYS, ONES)
    under_way.wait()
    store.push("ads", KEYS, ONES).wait()
    store.save(str(tmp_path / "model"), RunFacts())
    assert set(np.unique(store.pull("ads", KEYS).wait())) == {-3.0}


def test_one_that_comes_late_to_a_broken_job_is_no_new_job(fleet):
    fleet.start(1, "--workers", "3", "--lost-trainer", "drop")
    fleet.store(0, 3).crew.give_up(StoreError("the job has ended"))
    fleet.store(1, 3).crew.give_up(ValueError("row 7 is bad"))
    with pytest.raises(StoreError, match=BROKEN):
        fleet.store(2, 3).crew.barrier("begin")


def test_another_model_than_the_others_is_an_error_of_its_own(fleet):
    stores = fleet.start(1, "--lost-trainer", "drop").stores_of_all(2)
    stores[0].create_table(SPEC)
    with pytest.raises(Disagreement, match="table 'ads' exists with another spec: dim is 2 there and 8 here") as found:
        stores[1].create_table(TableSpec("ads", 8, optim.SGD(1.0), Constant(0.0)))
    stores[1].crew.give_up(found.value)
    with pytest.raises(StoreError, match=r"the job has ended: worker 1 .* exists with another spec"):
        stores[0].pull("ads", KEYS).wait()


@pytest.mark.parametrize("saves_itself", [True, False])
def test_a_trainer_killed_while_it_saves_keeps_nobody_else_waiting(fleet, tmp_path, saves_itself):
    stores = fleet.start(1, "--lost-trainer", "drop").stores_of_all(2)
    stores[1].create_table(SPEC)
    stores[0]._links[0].action("freeze", {**stores[0].connection.identity, "seconds": 60.0})
    launcher_says(fleet, 0, "killed by SIGKILL", failed=False)
    start = time.monotonic()
    if saves_itself:
        stores[1].save(str(tmp_path / "model"), RunFacts())
    stores[1].push("ads", KEYS, ONES).wait()
    assert time.monotonic() - start < 5


def test_after_a_meeting_a_trainer_knows_at_once_that_it_is_the_first_of_those_left(fleet):
    """A script that asks after `fit` must not hear what was true at the last sign of life: nobody would save."""
    first, second = fleet.start(1, "--lost-trainer", "drop").stores_of_all(2, heartbeat=30.0)
    first.connection.links[0].action("ended", {"worker": 0, "how": "killed by SIGKILL", "failed": False})
    assert second.crew.first() == 0
    second.crew.barrier("the epoch's end")
    assert second.crew.first() == 1
