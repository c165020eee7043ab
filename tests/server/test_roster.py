"""The roster: who of a job's trainers is there, and who is lost."""

from __future__ import annotations

from typing import Any

import pytest

from sparsefleet.core.errors import StoreError
from sparsefleet.server import ServerConfig
from sparsefleet.server.meetings import KEPT_TOLD
from sparsefleet.server.members import Registration
from sparsefleet.server.state import ServerState


def test_a_trainer_whose_messages_come_is_not_lost_though_its_signs_of_life_do_not() -> None:
    """The other way round is `tests/store/test_heartbeats.py`: a server that is too busy for them."""
    state = ServerState(ServerConfig(workers=1, endpoints=("a:1",)))
    state.sessions.register("life", Registration(0, 1, ("a:1",), 0, "x"))
    with state.sessions.changed:
        state.sessions.check(0, "life").last_seen -= 2 * state.config.timeout
        assert state.sessions.lost_among([0]) == [0]
        state.sessions.check(0, "life")  # as each message of a stream does
        assert state.sessions.lost_among([0]) == []


def test_all_that_met_are_told_of_the_same_first_though_one_is_slow_to_give_signs_of_life() -> None:
    state = ServerState(ServerConfig(workers=2, endpoints=("a:1",)))
    for worker in (0, 1):
        state.sessions.register(f"life {worker}", Registration(worker, 2, ("a:1",), 0, "x"))
    place = ("barrier", "end", 1)
    assert "missing" in state.meetings.meet(place, 0, "life 0", None, patience=0.0)
    with state.sessions.changed:
        state.sessions.check(0, "life 0").last_seen -= 2 * state.config.timeout
    told = [state.meetings.meet(place, worker, f"life {worker}", None, patience=0.0)["first"] for worker in (1, 0)]
    assert told == [0, 0]


def test_what_was_handed_in_is_let_go_of_once_all_have_been_told() -> None:
    state = ServerState(ServerConfig(workers=2, endpoints=("a:1",)))
    for worker in (0, 1):
        state.sessions.register(f"life {worker}", Registration(worker, 2, ("a:1",), 0, "x"))

    def meet(worker: int, turn: int) -> dict[str, Any]:
        return state.meetings.meet(("reduce", "sums", turn), worker, f"life {worker}", f"{worker}", patience=0.0)

    assert "missing" in meet(0, 1)
    assert meet(1, 1)["all"] == ["0", "1"]
    for turn in range(2, 20):  # from other threads of both
        assert "missing" in meet(0, turn)
        assert meet(1, turn)["all"] == meet(0, turn)["all"] == ["0", "1"]
    assert len(state.meetings._meetings) == KEPT_TOLD + 1, "the first one is worker 0's to ask for again"
    assert meet(0, 1)["all"] == ["0", "1"]
    assert meet(0, 19)["all"] == ["0", "1"], "where the answer got lost"
    with pytest.raises(StoreError, match="comes too late"):
        meet(0, 1)


def test_in_a_job_that_heals_a_silent_trainer_stays_the_first_until_it_is_lost() -> None:
    state = ServerState(ServerConfig(workers=2, endpoints=("a:1",), attempt=1))
    for worker in (0, 1):
        state.sessions.register(f"life {worker}", Registration(worker, 2, ("a:1",), 0, "x", attempt=1))
    with state.sessions.changed:
        state.sessions.check(0, "life 0").last_seen -= 2 * state.config.timeout
        assert state.sessions.lost_among([0, 1]) == [0]
        assert state.sessions.first() == 0
    for worker in (0, 1):
        state.leases.begin_run(worker, f"life {worker}", leased=True)
    state.retire(0)
    with state.sessions.changed:
        assert state.sessions.first() == 1


@pytest.mark.parametrize("attempt", [None, 1])
def test_servers_of_a_job_that_heals_do_not_end_without_a_silent_trainer(attempt: int | None) -> None:
    """Its launcher starts it again: it may have been about to save for all."""
    state = ServerState(ServerConfig(workers=2, endpoints=("a:1",), attempt=attempt))
    for worker in (0, 1):
        state.sessions.register(f"life {worker}", Registration(worker, 2, ("a:1",), 0, "x", attempt=attempt))
    state.sessions.stop(1, "life 1")
    with state.sessions.changed:
        state.sessions.check(0, "life 0").last_seen -= 2 * state.config.timeout
    assert state.sessions.finished() == (attempt is None)
    state.sessions.note_stopped(0)
    assert state.sessions.finished()


@pytest.mark.parametrize("end", ["killed", "left out", "stopped"])
def test_a_checkpoint_has_no_word_of_an_earlier_call_from_a_trainer_that_was_lost_since(end: str) -> None:
    """It would say that the job stands where that one's last call ended: a resume would train the next one twice."""
    state = ServerState(ServerConfig(workers=2, endpoints=("a:1",), lost_trainer="drop"))
    for worker in (0, 1):
        life = f"life {worker}"
        state.sessions.register(life, Registration(worker, 2, ("a:1",), 0, "x"))
        state.joint_cuts.attend(worker, life, 0.0)
        state.joint_cuts.depart(worker, life, {"epoch": 1}, 0.0)
    if end == "stopped":
        state.sessions.stop(1, "life 1")
    elif end == "killed":
        state.sessions.ended(1, "killed by SIGKILL", failed=False)
    else:
        with state.sessions.changed:
            assert state.sessions.go_on_without("a barrier", [1]) is None
    cuts = state.joint_cuts
    cuts.attend(0, "life 0", 0.0)
    cut = cuts.open(0, "life 0")["cut"]
    for phase in ("pause", "report"):
        reports = cuts.ask(cut, phase, 0.0)["reports"]
        assert reports == ({"1": {"epoch": 1}} if end == "stopped" else {}), phase
