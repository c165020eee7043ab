"""The trainers' part in a checkpoint, at the server: nobody stays paused for one that is gone."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import pytest
from server_processes import save_together
from waiting import wait_until

from sparsefleet.core.errors import StoreError
from sparsefleet.store.base import RunFacts


class Member:
    """A trainer that writes down what it is asked."""

    def __init__(self, step: int = 0, failure: str | None = None) -> None:
        self.step, self.failure = step, failure
        self.heard: list[str] = []

    def pause(self) -> None:
        self.heard.append("pause")
        if self.failure:
            raise StoreError(self.failure)

    def report(self, applied: int | None) -> dict[str, Any]:
        self.heard.append(f"report {applied}")
        return {"step": self.step}

    def fail(self, error: BaseException) -> None:
        self.heard.append(f"fail: {error}")

    def resume(self) -> None:
        self.heard.append("resume")

    def wait_for(self, word: str) -> None:
        wait_until(lambda: word in self.heard, 20, lambda: f"{word!r}; heard so far: {self.heard}")


class Reports:
    """Takes the place of the checkpoint's facts."""

    def __call__(self, reports):
        self.steps = {worker: report["step"] for worker, report in reports.items()}
        return RunFacts()


def test_every_trainer_is_asked_and_one_that_is_through_has_left_word(fleet, tmp_path):
    stores = fleet.start(2).stores_of_all(3)
    members, facts = [Member(step) for step in (10, 20, 30)], Reports()
    with stores[2].crew.attending(members[2]):
        stores[2].push_step({}, steps=4).wait()
    with stores[0].crew.attending(members[0]), stores[1].crew.attending(members[1]):
        stores[1].push_step({}, steps=5).wait()
        save_together(stores[0], str(tmp_path / "model"), members[0], facts)
        members[1].wait_for("resume")
    assert facts.steps == {0: 10, 1: 20, 2: 30}
    assert members[1].heard == ["pause", "report 5", "resume", "report None"]
    assert members[0].heard == ["pause", "report 0", "resume", "report None"]
    assert members[2].heard == ["report None"], "what it said as it departed"


def test_a_save_does_not_wait_for_a_trainer_that_has_not_begun(fleet, tmp_path):
    """It loads its data, say, for an hour: it stands at a known start, and the others need not stand still for it."""
    stores, facts, trains = fleet.start(1).stores_of_all(3, timeout=2), Reports(), Member(8)
    with stores[0].crew.attending(Member(6)), stores[1].crew.attending(trains):
        save_together(stores[0], str(tmp_path / "model"), Member(6), facts)
        trains.wait_for("resume")
        assert stores[0].crew.not_begun() == [2]
        with stores[2].crew.attending(Member(7)):
            save_together(stores[0], str(tmp_path / "model"), Member(6), late := Reports())
    assert facts.steps == {0: 6, 1: 8}
    assert late.steps == {0: 6, 1: 8, 2: 7}


def test_who_begins_to_train_while_a_cut_is_named_waits_for_its_end(fleet, tmp_path):
    stores, late = fleet.start(1).stores_of_all(2), Member(7)
    link, identity = stores[0]._links[0], stores[0].connection.identity
    name = link.action("open_cut", identity)["cut"]
    link.action("ask_all", {"cut": name, "phase": "pause", "patience": 5})
    began = threading.Event()

    def begin():
        with stores[1].crew.attending(late):
            began.set()

    thread = threading.Thread(target=begin, daemon=True)
    thread.start()
    assert link.action("ask_all", {"cut": name, "phase": "report", "patience": 5})["reports"] == {}
    assert not began.wait(0.5), "its steps would be in the tables, and its position in no report"
    link.action("close_cut", {"cut": name})
    thread.join(10)
    assert began.is_set()


def test_what_fails_in_one_trainer_fails_the_save_and_all_go_on(fleet, tmp_path):
    stores, other = fleet.start(1).stores_of_all(2), Member(failure="no more room")
    with stores[0].crew.attending(Member()), stores[1].crew.attending(other):
        with pytest.raises(StoreError, match="worker 1: no more room"):
            save_together(stores[0], str(tmp_path / "model"), Member(), Reports())
        other.wait_for("resume")
        other.failure = None
        save_together(stores[0], str(tmp_path / "model"), Member(), Reports())


def test_when_the_one_that_saves_is_lost_the_others_go_on(fleet, tmp_path):
    stores, other = fleet.start(1, "--timeout", "1", "--lost-trainer", "drop").stores_of_all(2, timeout=4), Member()
    with stores[1].crew.attending(other):
        name = stores[0]._links[0].action("open_cut", stores[0].connection.identity)["cut"]
        stores[0]._links[0].action("ask_all", {"cut": name, "phase": "pause", "patience": 0})
        other.wait_for("pause")
        with pytest.raises(StoreError, match=r"worker 0 \(process .* is saving a checkpoint right now"):
            save_together(stores[1], str(tmp_path / "model"), Member(), Reports())
        stores[0].connection.heartbeats.stop()
        other.wait_for("resume")
        stores[1].crew.barrier("the loss is noticed")
        save_together(stores[1], str(tmp_path / "model"), Member(), Reports())


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_who_stands_still_when_the_server_dies_hears_of_it(fleet, how):
    """Its training threads ask nobody anything: they wait to be let on."""
    stores, other = fleet.start(1).stores_of_all(2, timeout=2), Member()
    attending = stores[1].crew.attending(other)
    attending.__enter__()
    name = stores[0]._links[0].action("open_cut", stores[0].connection.identity)["cut"]
    stores[0]._links[0].action("ask_all", {"cut": name, "phase": "pause", "patience": 0})
    other.wait_for("pause")
    os.kill(fleet.processes[0].pid, how)
    other.wait_for("resume")
    assert any(word.startswith(f"fail: server 0 ({fleet.endpoints[0]})") for word in other.heard), other.heard
    with pytest.raises(StoreError, match="server 0"):
        attending.__exit__(None, None, None)


def test_one_that_leaves_the_job_waits_for_no_cut_any_more_when_its_connection_is_closed(fleet, monkeypatch):
    """A Flight client that is closed while a thread is in a call of it can end the process with SIGSEGV."""
    store, waiting = fleet.start(1).stores_of_all(1)[0], list[str]()
    close = store.connection.close

    def closing() -> None:
        waiting.extend(thread.name for thread in threading.enumerate() if thread.name == "sparsefleet-cuts")
        close()

    monkeypatch.setattr(store.connection, "close", closing)
    with pytest.raises(SystemExit) as left, store.crew.attending(Member()):
        store.crew.leave_job()
    assert left.value.code == 0
    assert waiting == []
