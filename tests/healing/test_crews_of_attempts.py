"""Attempts of elastic jobs, on servers within this process: whom each waits for, and who comes late."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from small_jobs import Cluster, cluster
from waiting import wait_until

from sparsefleet import optim
from sparsefleet.core.elastic import Elastic
from sparsefleet.core.errors import ConfigError, Rejoin, StoreError
from sparsefleet.core.initializer import Constant
from sparsefleet.core.keyed_rows import KeyedRows
from sparsefleet.launch.attempts import Attempts, RestartPolicy
from sparsefleet.server import ServerConfig
from sparsefleet.server.members import Registration
from sparsefleet.server.sessions import Sessions
from sparsefleet.store.base import RunFacts
from sparsefleet.store.remote import RemoteConfig
from sparsefleet.store.remote.connection import Connection
from sparsefleet.table import TableSpec

NUMBERS = 4
SPEC = TableSpec("t", 1, optim.SGD(1.0), Constant(0.0))
KEYS = np.arange(100, dtype=np.uint64)


def attempt(number: int = 2, workers: int = 2, crew: tuple[int, ...] | None = None) -> Sessions:
    elastic = Elastic(1, NUMBERS)
    config = ServerConfig(endpoints=("a:1",), workers=workers, elastic=elastic, attempt=number, crew=crew)
    sessions = Sessions(config)
    sessions.leased = True
    return sessions


def register(sessions: Sessions, worker: int, life: str) -> bool:
    """Whether it came late."""
    joining = Registration(worker, NUMBERS, ("a:1",), 0, "x", mode="async", attempt=sessions.config.attempt)
    sessions.register(life, joining)
    return sessions.comes_late(worker)


def waits_for(sessions: Sessions) -> set[int]:
    with sessions.changed:
        return sessions.in_meetings()


def test_an_attempt_waits_for_its_crew_and_others_come_late() -> None:
    sessions = attempt(crew=(0, 2))
    assert sessions.awaited() == [0, 2]
    assert not register(sessions, 0, "a")
    assert register(sessions, 1, "b"), "it is none of the crew"
    assert sessions.joining() == [1]
    assert sessions.awaited() == [2]
    assert waits_for(sessions) == {0, 2}
    sessions.note_not_coming(2)
    sessions.note_not_coming(0)  # it is there
    assert waits_for(sessions) == {0}
    assert register(sessions, 2, "c"), "and if it comes all the same, it comes late"


def test_the_first_attempt_waits_for_those_that_the_job_begins_with() -> None:
    assert attempt(1).awaited() == [0, 1]


def test_the_number_of_one_that_has_left_is_free_within_the_attempt() -> None:
    sessions = attempt()
    for worker, life in ((0, "a"), (1, "b")):
        assert not register(sessions, worker, life)
    with pytest.raises(Rejoin, match="worker 1 has been in attempt 2 before: it joins the next one"):
        register(sessions, 1, "c")
    sessions.leave(1, "b", True)
    assert sessions.left() == [1]
    assert register(sessions, 1, "c")
    assert sessions.left() == []
    with pytest.raises(Rejoin):  # and its former life is refused
        sessions.heartbeat(1, "b", {})
    assert waits_for(sessions) == {0}


def test_the_number_of_one_that_is_started_again_is_given_to_nobody_else() -> None:
    sessions = attempt()
    for worker, life in ((0, "a"), (1, "b")):
        register(sessions, worker, life)
    sessions.begin_run(1, "b", leased=True)
    assert sessions.retire(1) == "b"
    assert sessions.give_number("by hand") == 2


def test_one_that_is_asked_to_leave_before_it_comes_leaves_when_it_has() -> None:
    sessions = attempt(crew=(0, 1, 2))
    register(sessions, 0, "a")
    assert sessions.scale(1) == {"present": [0, 1, 2], "leaving": [1, 2]}
    assert not register(sessions, 2, "c")
    with sessions.changed:
        assert [worker for worker in range(NUMBERS) if sessions.is_leaving(worker)] == [2]
    sessions.begin_run(2, "c", leased=True)
    sessions.retire(2)
    assert register(sessions, 2, "d")
    assert register(sessions, 3, "by hand")
    with sessions.changed:
        assert sessions.is_leaving(2), "it was lost before it could leave"
        assert not sessions.is_leaving(3)


def test_crews_that_make_no_sense_are_refused() -> None:
    for settings, message in (
        ({"crew": (0,)}, "for elastic jobs"),
        ({"crew": (), "workers": 1, "elastic": Elastic(1, 2)}, "at least one of 0 to 1"),
        ({"crew": (0, 2), "workers": 1, "elastic": Elastic(1, 2)}, r"crew=\(0, 2\) lists"),
    ):
        with pytest.raises(ConfigError, match=message):
            ServerConfig(**settings)  # type: ignore[arg-type]


def test_no_cut_is_taken_until_it_is_known_that_a_lost_trainers_last_step_is_whole(tmp_path: Path) -> None:
    with cluster(2, attempt=1) as servers:
        stores = [servers.store(worker, 2, attempt=1) for worker in range(2)]
        for store in stores:
            store.create_table(SPEC)
            store.crew.begin_run(leased=True)
            rows = KeyedRows(KEYS, np.full((len(KEYS), 1), -1.0, np.float32))
            store.push_step({"t": rows}, steps=1).wait()
        links = stores[0].connection.links
        lost = {"attempt": 1, "worker": 1}
        for link in links:
            link.action("retire", lost)
        with pytest.raises(StoreError, match="whether all servers have the last step of worker 1, which was just lost"):
            stores[0].save(str(tmp_path / "torn"), RunFacts(step=1))
        assert not (tmp_path / "torn").exists()
        for link in links:
            link.action("retire", {**lost, "whole": True})
        stores[0].save(str(tmp_path / "whole"), RunFacts(step=1))
        with pytest.raises(StoreError, match="in attempt 1 of the job, not in 2"):
            links[0].action("retire", {**lost, "attempt": 2, "whole": True})


def test_no_cut_holds_a_part_of_the_last_step_of_a_trainer_that_has_failed(tmp_path: Path) -> None:
    with cluster(2, attempt=1) as servers:
        stores = [servers.store(worker, 2, attempt=1) for worker in range(2)]
        for store in stores:
            store.create_table(SPEC)
            store.crew.begin_run(leased=True)
            rows = KeyedRows(KEYS, np.full((len(KEYS), 1), -1.0, np.float32))
            store.push_step({"t": rows}, steps=1).wait()
        (account,) = servers.servers[0].state.ledger.close_life(1, stores[1].connection.incarnation)
        account.sequence, account.records = account.sequence + 1, account.records + 1  # server 1 has not had that one
        stores[1].crew.give_up(KeyboardInterrupt())
        with pytest.raises(StoreError, match="a job that heals must not go back to a part of a step"):
            stores[0].save(str(tmp_path / "torn"), RunFacts(step=1))
        assert not (tmp_path / "torn").exists()


def launcher(servers: Cluster, folder: Path) -> Attempts:
    attempts = Attempts(servers.endpoints, {}, RestartPolicy(3), folder / "cuts")
    attempts.start()
    return attempts


def test_the_launcher_says_who_is_of_the_crew_and_who_has_left_meanwhile(tmp_path: Path) -> None:
    with cluster(2, workers=1, elastic=Elastic(1, NUMBERS), attempt=1) as servers:
        attempts = launcher(servers, tmp_path)
        try:
            attempts.begin("server 1 was lost", [], [], crew={2, 0})
            assert attempts.environment()["SPARSEFLEET_CREW"] == "0,2"
            wait_until(lambda: all(one.state.attempt == 2 for one in servers.servers), 20, "attempt 2")
            states = [server.state for server in servers.servers]
            assert [state.sessions.awaited() for state in states] == [[0, 2]] * 2
            attempts.left = {2}
            wait_until(
                lambda: all(state.sessions.awaited() == [0] for state in states), 20, "nobody waits for worker 2"
            )
        finally:
            attempts.close()


def test_a_worker_has_left_everywhere_once_every_server_has_had_its_good_bye(tmp_path: Path) -> None:
    with cluster(2, workers=2, elastic=Elastic(1, NUMBERS), attempt=1) as servers:
        leaving = servers.store(1, NUMBERS, elastic=Elastic(1, NUMBERS), attempt=1)
        servers.store(0, NUMBERS, elastic=Elastic(1, NUMBERS), attempt=1)
        attempts = Attempts(servers.endpoints, {}, RestartPolicy(3), tmp_path / "cuts")  # it looks when it is told to
        assert not attempts.has_left_everywhere(1), "no server has answered yet"
        assert attempts.look_now()
        assert not attempts.has_left_everywhere(1)
        first, second = leaving.connection.links
        first.action("leave", {**leaving.connection.identity, "for_good": True})
        assert attempts.look_now()
        assert attempts.has_left(1)
        assert not attempts.has_left_everywhere(1), "server 1 may lack a part of its last step"
        second.action("leave", {**leaving.connection.identity, "for_good": True})
        assert not attempts.has_left_everywhere(1), "not before the launcher has looked again"
        assert attempts.look_now()
        assert attempts.has_left_everywhere(1)
        assert not attempts.has_left_everywhere(0)
        servers.store(1, NUMBERS, elastic=Elastic(1, NUMBERS), attempt=1)
        assert attempts.look_now()
        assert not attempts.has_left_everywhere(1), "another one has its number"


def test_who_has_left_one_of_the_servers_that_answer_has_not_left_everywhere(tmp_path: Path) -> None:
    with cluster(2, workers=1, elastic=Elastic(1, NUMBERS), attempt=1) as servers:
        store = servers.store(0, NUMBERS, elastic=Elastic(1, NUMBERS), attempt=1)
        attempts = Attempts([*servers.endpoints, "127.0.0.1:1"], {}, RestartPolicy(3), tmp_path / "cuts")
        for link in store.connection.links:
            link.action("leave", {**store.connection.identity, "for_good": True})
        assert not attempts.look_now(), "a third server does not answer"
        assert attempts.has_left(0)
        assert not attempts.has_left_everywhere(0)


def test_who_came_late_to_an_attempt_that_is_over_may_be_awaited_in_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise it would wait for the others to train, and they for it."""
    answers = iter([True, False])

    def registered(connection: Connection) -> None:
        assert not connection.late
        connection.late = next(answers)
        if connection.late:
            raise Rejoin("another process was lost meanwhile")

    monkeypatch.setattr(Connection, "_links_to_all", lambda connection: [])
    monkeypatch.setattr(Connection, "_agree_on_attempt", lambda connection, least, why: least)
    monkeypatch.setattr(Connection, "_register", registered)
    connection = Connection(RemoteConfig(("127.0.0.1:1",), attempt=1))
    connection.close()
    assert (connection.attempt, connection.late) == (2, False)


def test_one_that_does_not_come_to_the_first_attempt_in_time_is_missed_though_nobody_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparsefleet.launch.attempts.JOIN_SECONDS", 0.1)
    with cluster(1, workers=2, attempt=1, timeout=0.1, join_timeout=0.5) as servers:
        attempts = Attempts(servers.endpoints, {}, RestartPolicy(3), tmp_path / "cuts")
        assert attempts.look_now()
        assert attempts.missing_workers({0: 100.0, 1: 100.0}) == [], "nobody has come yet: all may have much to do"
        servers.store(1, 2, attempt=1)
        wait_until(lambda: attempts.look_now() and attempts.missing_workers({0: 100.0, 1: 100.0}), 20, "worker 0")
        assert attempts.missing_workers({0: 100.0, 1: 100.0}) == [0]
        assert attempts.missing_workers({0: 0.05, 1: 100.0}) == [], "it has just been started again"
