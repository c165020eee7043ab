"""The trainers' part in a checkpoint, at the server: nobody stays paused for one that is gone."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest
from small_jobs import in_threads

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
        deadline = time.monotonic() + 10
        while word not in self.heard:
            assert time.monotonic() < deadline, self.heard
            time.sleep(0.01)


class Reports:
    """Takes the place of the checkpoint's facts."""

    def __call__(self, reports):
        self.steps = {worker: report["step"] for worker, report in reports.items()}
        return RunFacts()


def test_every_trainer_is_asked_and_one_that_is_through_has_left_word(fleet, tmp_path):
    stores = fleet.start(2).stores_of_all(3)
    members, facts = [Member(step) for step in (10, 20, 30)], Reports()
    with stores[2].attending(members[2]):
        stores[2].push_step({}, steps=4).wait()
    with stores[0].attending(members[0]), stores[1].attending(members[1]):
        stores[1].push_step({}, steps=5).wait()
        stores[0].save_together(str(tmp_path / "model"), members[0], facts)
        members[1].wait_for("resume")
    assert facts.steps == {0: 10, 1: 20, 2: 30}
    assert members[1].heard == ["pause", "report 5", "resume", "report None"]
    assert members[0].heard == ["pause", "report 0", "resume", "report None"]
    assert members[2].heard == ["report None"], "what it said as it departed"


def test_a_save_waits_for_a_trainer_that_has_not_begun(fleet, tmp_path):
    stores, facts = fleet.start(1).stores_of_all(2), Reports()

    def begins_late():
        time.sleep(0.5)
        with stores[1].attending(member):
            member.wait_for("resume")

    member = Member(7)
    with stores[0].attending(Member(6)):
        in_threads([begins_late, lambda: stores[0].save_together(str(tmp_path / "model"), Member(6), facts)])
    assert facts.steps == {0: 6, 1: 7}


def test_what_fails_in_one_trainer_fails_the_save_and_all_go_on(fleet, tmp_path):
    stores, other = fleet.start(1).stores_of_all(2), Member(failure="no more room")
    with stores[0].attending(Member()), stores[1].attending(other):
        with pytest.raises(StoreError, match="worker 1: no more room"):
            stores[0].save_together(str(tmp_path / "model"), Member(), Reports())
        other.wait_for("resume")
        other.failure = None
        stores[0].save_together(str(tmp_path / "model"), Member(), Reports())


def test_when_the_one_that_saves_is_lost_the_others_go_on(fleet, tmp_path):
    stores, other = fleet.start(1, "--timeout", "1", "--lost-trainer", "drop").stores_of_all(2, timeout=4), Member()
    with stores[1].attending(other):
        name = stores[0]._links[0].action("open_cut", stores[0]._identity())["cut"]
        stores[0]._links[0].action("ask_all", {"cut": name, "phase": "pause", "patience": 0})
        other.wait_for("pause")
        with pytest.raises(StoreError, match=r"worker 0 \(process .* is saving a checkpoint right now"):
            stores[1].save_together(str(tmp_path / "model"), Member(), Reports())
        stores[0]._heartbeats.stop()
        other.wait_for("resume")
        stores[1].barrier("the loss is noticed")
        stores[1].save_together(str(tmp_path / "model"), Member(), Reports())


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_who_stands_still_when_the_server_dies_hears_of_it(fleet, how):
    """Its training threads ask nobody anything: they wait to be let on."""
    stores, other = fleet.start(1).stores_of_all(2, timeout=2), Member()
    attending = stores[1].attending(other)
    attending.__enter__()
    name = stores[0]._links[0].action("open_cut", stores[0]._identity())["cut"]
    stores[0]._links[0].action("ask_all", {"cut": name, "phase": "pause", "patience": 0})
    other.wait_for("pause")
    os.kill(fleet.processes[0].pid, how)
    other.wait_for("resume")
    assert any(word.startswith(f"fail: server 0 ({fleet.endpoints[0]})") for word in other.heard), other.heard
    with pytest.raises(StoreError, match="server 0"):
        attending.__exit__(None, None, None)
