"""Attempts on servers: whoever speaks for one that is over is told to rejoin, and changes nothing."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from small_jobs import cluster, in_threads
from waiting import wait_until

from sparsefleet import optim
from sparsefleet.core.errors import ConfigError, Rejoin, StoreError
from sparsefleet.core.initializer import Constant
from sparsefleet.core.keyed_rows import KeyedRows
from sparsefleet.fleet.healing import HealingVariables
from sparsefleet.launch.attempts import Attempts, RestartPolicy
from sparsefleet.store.base import RunFacts
from sparsefleet.store.remote import RemoteStore
from sparsefleet.store.remote.attempts import furthest_fit
from sparsefleet.table import TableSpec

SPEC = TableSpec("t", 1, optim.SGD(1.0), Constant(0.0))
KEYS = np.arange(100, dtype=np.uint64)


def begin(store: RemoteStore, attempt: int, cut: str | None = None, stopped: tuple[int, ...] = ()) -> None:
    told = {"attempt": attempt, "cut": cut, "stopped": list(stopped), "why": "server 1 was lost"}
    for link in store.connection.links:
        link.action("begin_attempt", told)


def push(store: RemoteStore) -> None:
    step = {"t": KeyedRows(KEYS, np.full((len(KEYS), 1), -1.0, np.float32))}
    store.push_step(step, steps=1).wait()


def test_a_new_attempt_begins_from_the_cut_and_old_calls_are_told_to_rejoin(tmp_path: Path) -> None:
    cut = str(tmp_path / "cut")
    with cluster(2, attempt=1) as servers:
        old = servers.store(attempt=1)
        old.create_table(SPEC)
        push(old)
        old.save(cut, RunFacts(step=1))
        push(old)
        begin(old, 2, cut)
        for call in (lambda: push(old), lambda: old.crew.barrier("x"), lambda: old.create_table(SPEC)):
            with pytest.raises(Rejoin, match=r"attempt 2 of the job has begun: server 1 was lost|this is 2"):
                call()
        new = servers.store(attempt=2)
        assert (new.connection.attempt, new.connection.cut) == (2, cut)
        new.create_table(SPEC)
        assert set(new.pull("t", KEYS).wait().reshape(-1)) == {1.0}
        with pytest.raises(Rejoin):
            push(old)
        push(new)
        assert set(new.pull("t", KEYS).wait().reshape(-1)) == {2.0}
        begin(new, 2, None)  # said again, it changes nothing
        assert set(new.pull("t", KEYS).wait().reshape(-1)) == {2.0}


def test_those_that_wait_for_others_are_told_at_once() -> None:
    with cluster(1, attempt=1) as servers:
        waiting = servers.store(0, 2, attempt=1)
        told: list[BaseException] = []

        def wait() -> None:
            try:
                waiting.crew.barrier("never")
            except Rejoin as error:
                told.append(error)

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        wait_until(lambda: servers.servers[0].state.meetings._meetings, 10, "a trainer that waits")
        begin(waiting, 2)
        thread.join(10)
        assert len(told) == 1


def test_who_saves_when_another_is_lost_is_told_to_rejoin_not_that_it_failed() -> None:
    """Also before the next attempt has begun: a script that ends with this error is started again."""
    with cluster(1, attempt=1) as servers:
        saves, lost = (servers.store(index, 2, attempt=1) for index in (0, 1))
        link = saves.connection.links[0]
        for store in (saves, lost):
            link.action("attend", {**store.connection.identity, "patience": 1.0})
        cut = link.action("open_cut", saves.connection.identity)["cut"]
        lost.connection.abandon()  # it says nothing more
        sessions = servers.servers[0].state.sessions
        with sessions.changed:
            sessions._trainers[1].last_seen = -1e9  # as if that had been long ago
        with pytest.raises(Rejoin, match="a checkpoint's cut: lost worker 1"):
            link.action("ask_all", {"cut": cut, "phase": "pause", "patience": 5.0})


def test_a_number_is_taken_once_in_an_attempt_and_a_trainer_joins_when_all_servers_have() -> None:
    with cluster(2, attempt=1) as servers:
        first = servers.store(attempt=1)
        joined: list[RemoteStore] = []
        again = threading.Thread(target=lambda: joined.append(servers.store(attempt=1)), daemon=True)
        again.start()  # its former life may still send something: it must wait for the next attempt
        links = first.connection.links
        told = {"attempt": 2, "cut": None, "why": "worker 0 was lost"}
        links[0].action("begin_attempt", told)
        again.join(0.5)
        assert not joined
        links[1].action("begin_attempt", told)
        again.join(20)
        assert joined[0].connection.attempt == 2


def test_a_trainer_that_cannot_go_on_asks_for_a_new_attempt() -> None:
    with cluster(1, attempt=1) as servers:
        store = servers.store(attempt=1)
        joined: list[RemoteStore] = []

        def rejoin() -> None:
            joined.append(RemoteStore(store.config.__class__(servers.endpoints, attempt=2), "the link was down"))

        thread = threading.Thread(target=rejoin, daemon=True)
        thread.start()
        wait_until(lambda: servers.servers[0].state.wanted, 20, "the wish for an attempt")
        assert store.connection.links[0].action("look", {})["wanted"] == "the link was down"
        begin(store, 2)
        thread.join(20)
        servers.stores += joined
        assert joined[0].connection.attempt == 2


def test_trainers_that_stopped_in_an_earlier_attempt_are_not_waited_for() -> None:
    with cluster(1, attempt=1) as servers:
        old = servers.store(0, 2, attempt=1)
        begin(old, 2, stopped=(1,))
        new = servers.store(0, 2, attempt=2)
        new.crew.barrier("alone", 10)
        assert not servers.servers[0].state.sessions.finished()
        new.crew.stop()
        assert servers.servers[0].state.sessions.finished()


def test_a_trainer_that_catches_up_goes_past_meetings_but_exchanges_no_samples() -> None:
    with cluster(1) as servers:
        stores = [servers.store(worker, 2) for worker in range(2)]
        stores[0].crew.catching_up = True
        stores[0].crew.barrier("of long ago")
        assert stores[0].crew.reduce("sums", {"n": 1}) == [{"n": 1}]
        with pytest.raises(StoreError, match="cannot have its own back"):
            stores[0].crew.send_letter("box", 1, np.zeros(1, np.uint8))
        stores[0].crew.catching_up = False
        in_threads([lambda store=store: store.crew.barrier("now", 20) for store in stores])


def test_servers_and_trainers_must_agree_on_whether_the_job_heals() -> None:
    with cluster(1) as servers:
        with pytest.raises(StoreError, match="no attempt 1 of the job began within"):
            servers.store(attempt=1, connect_timeout=0.5)
        with pytest.raises(StoreError, match="does not heal: it knows of no attempts"):
            begin(servers.store(), 2)
    with cluster(1, attempt=1) as servers, pytest.raises(StoreError, match="disagree on whether the job heals"):
        servers.store()


def test_restarts_are_counted_within_their_window(tmp_path: Path) -> None:
    attempts = Attempts(("127.0.0.1:1",), {}, RestartPolicy(2, within=1000.0), tmp_path)
    assert attempts.another("a") is None
    assert attempts.another("b") is None
    error = attempts.another("c")
    assert error is not None
    assert [error.index(f"s ago: {cause}") for cause in "abc"] == sorted(error.index(f"s ago: {c}") for c in "abc")
    brief = Attempts(("127.0.0.1:1",), {}, RestartPolicy(1, within=1e-9), tmp_path)
    assert [brief.another(cause) for cause in "abc"] == [None] * 3


def test_what_a_policy_refuses() -> None:
    for settings, message in (
        ({"restarts": -1}, "0 or above"),
        ({"restarts": 1, "within": 0}, "within=0 must be"),
        ({"restarts": 1, "cut_every": 0}, "cut_every=0 must be above 0"),
        ({"cut_every": 3}, "say how many restarts"),
    ):
        with pytest.raises(ConfigError, match=message):
            RestartPolicy(**settings)  # type: ignore[arg-type]


def test_the_variables_say_what_they_were_made_of() -> None:
    told = HealingVariables("/cuts", 3, 0.5, "/cuts/a/step-1", (0, 2), (1, 3))
    for variables in (HealingVariables("/cuts"), told):
        assert HealingVariables.from_environment(variables.environment()) == variables
    assert HealingVariables.from_environment({}) is None
    with pytest.raises(ConfigError, match="are set by a launcher"):
        HealingVariables.from_environment({"SPARSEFLEET_CUTS": "/cuts", "SPARSEFLEET_ATTEMPT": "two"})


def test_a_trainer_killed_between_two_stops_has_come_to_its_end() -> None:
    with cluster(2, attempt=1) as servers:
        store = servers.store(attempt=1)
        first, second = store.connection.links
        first.action("stop", store.connection.identity)
        assert first.action("look", {})["stopped"] == [0]
        assert second.action("look", {})["stopped"] == []
        second.action("note_stopped", {"worker": 0})
        assert second.action("look", {})["stopped"] == [0]
        assert servers.servers[1].state.sessions.finished()


def test_a_trainer_follows_its_job_to_other_servers(tmp_path: Path) -> None:
    """Server 0 stays, and knows the others of its attempt."""
    cut = str(tmp_path / "cut")
    with cluster(2, attempt=1) as servers:
        old = servers.store(attempt=1)
        old.create_table(SPEC)
        push(old)
        old.save(cut, RunFacts(step=1))
        with cluster(2, first=1, attempt=2, cut=cut) as more:
            listed = [servers.endpoints[0], *more.endpoints]
            told = {"attempt": 2, "cut": cut, "stopped": [], "why": "more servers", "servers": listed}
            old.connection.links[0].action("begin_attempt", told)
            new = servers.store(attempt=2)  # with the addresses that it was started with
            assert new.config.endpoints == tuple(listed)
            assert new.servers == 3
            new.create_table(SPEC)
            assert set(new.pull("t", KEYS).wait().reshape(-1)) == {1.0}
            push(new)
            assert set(new.pull("t", KEYS).wait().reshape(-1)) == {2.0}
            assert sum(table.rows for server in more.servers for table in server.state.holdings.tables()) > 0


def test_a_job_without_restarts_refuses_another_number_of_servers() -> None:
    with cluster(1) as servers:
        link = servers.store().connection.links[0]
        with pytest.raises(StoreError, match="it was started without --restarts, so nobody takes cuts of it"):
            link.action("scale", {"servers": 2})
    with cluster(1, attempt=1) as servers:
        store = servers.store(attempt=1)
        link = store.connection.links[0]
        for count, why in ((0, "servers=0 must be 1 to"), (1, "the job has 1 servers already")):
            with pytest.raises(StoreError, match=why):
                link.action("scale", {"servers": count})
        ticket = link.action("scale", {"servers": 2})["ticket"]
        with pytest.raises(StoreError, match="is about to go on with 2 servers: wait for that"):
            link.action("scale", {"servers": 3})
        wait_until(lambda: store.connection.heartbeats.cut_wanted == ticket, 20, "the wish for a cut")
        link.action("scale_step", {"ticket": "another", "cut": "x"})
        assert link.action("look", {})["scale"]["cut"] is None
        link.action("scale_step", {"ticket": ticket, "error": "the disk is full"})
        assert link.action("look", {})["scale"]["error"] == "the disk is full"
        wait_until(lambda: store.connection.heartbeats.cut_wanted is None, 20, "no more wish for a cut")
        link.action("scale", {"servers": 3})


def test_the_launcher_passes_over_a_cut_that_a_server_cannot_read(tmp_path: Path) -> None:
    folder = tmp_path / "cuts" / "attempt-0001"
    folder.mkdir(parents=True)
    with cluster(1, attempt=1) as servers:
        attempts = Attempts(servers.endpoints, {}, RestartPolicy(3), tmp_path / "cuts")
        attempts.start()
        try:
            store = servers.store(attempt=1)
            store.create_table(SPEC)
            for step in (1, 2):
                push(store)
                store.save(str(folder / f"step-0000000{step}"), RunFacts(step=step))
            (file,) = (folder / "step-00000002" / "sparse" / "t").iterdir()
            data = bytearray(file.read_bytes())
            data[len(data) // 3] ^= 0xFF
            file.write_bytes(data)
            attempts.begin("a loss", [], [])
            assert attempts.cut == str(folder / "step-00000002"), "its size is right"
            with pytest.raises(Rejoin, match="cannot be read"):
                servers.store(attempt=2).create_table(SPEC)
            wait_until(attempts.wanted, 20, "the wish for another attempt")
            why = str(attempts.wanted())
            assert why.startswith(f"the cut {attempts.cut} cannot be read (")
            attempts.begin(why, [], [])
            assert attempts.cut == str(folder / "step-00000001")
            assert attempts.wanted() is None
            last = servers.store(attempt=3)
            last.create_table(SPEC)
            assert set(last.pull("t", KEYS).wait().reshape(-1)) == {1.0}
        finally:
            attempts.close()


def test_the_launcher_goes_on_with_other_servers(tmp_path: Path) -> None:
    with cluster(2, attempt=1) as servers:
        attempts = Attempts(servers.endpoints, {}, RestartPolicy(3), tmp_path / "cuts")
        attempts.start()
        try:
            store = servers.store(attempt=1)
            store.create_table(SPEC)
            ticket = store.connection.links[0].action("scale", {"servers": 3})["ticket"]
            assert attempts.look_now()
            assert attempts.scale_wanted() is None, "there is no cut yet"
            store.connection.links[0].action("scale_step", {"ticket": ticket, "cut": "a cut"})
            wait_until(attempts.scale_wanted, 20, "the cut")
            assert attempts.scale_wanted() == (3, ticket)
            with cluster(2, first=1, attempt=2) as more:
                attempts.begin("another number of servers", [], [], [servers.endpoints[0], *more.endpoints])
                wider = servers.store(attempt=2)
                assert wider.servers == 3
                attempts.begin("fewer", [], [], servers.endpoints[:1])
                narrow = servers.store(attempt=3)
                assert narrow.servers == 1
                narrow.create_table(SPEC)
                push(narrow)
                wait_until(lambda: attempts.healed() is not None, 20, "a step of the new attempt")
                attempts.begin("more again", [], [], [servers.endpoints[0], more.endpoints[0]])
                assert servers.store(attempt=4).servers == 2
        finally:
            attempts.close()


def test_where_a_trainer_that_lives_has_begun_the_next_call_of_fit_all_others_know_it() -> None:
    with cluster(1, attempt=2, workers=2) as servers:
        started_again = servers.store(0, 2, attempt=2)
        told: list[int] = []
        asking = threading.Thread(target=lambda: told.append(furthest_fit(started_again.connection)), daemon=True)
        asking.start()
        assert started_again.connection.links[0].action("look", {})["awaited"] == [1]
        assert not told, "the other may be anywhere"
        servers.store(1, 2, attempt=2, fits=3)
        asking.join(20)
        assert told == [3]
        begin(started_again, 3, None)
        with pytest.raises(Rejoin, match="attempt 3 of the job has begun, after 2"):
            furthest_fit(started_again.connection)


def test_the_place_that_kills_is_told_first_though_other_samples_of_its_piece_were_in_the_model_each_time(
    tmp_path: Path,
) -> None:
    """Line 16 kills; pieces have 6 lines of 10 bytes. Those read ahead stand at their beginning at each death."""
    data = tmp_path / "part"
    data.write_text("123456789\n" * 60)
    attempts, file = Attempts(("127.0.0.1:1",), {}, RestartPolicy(9), tmp_path / "cuts"), str(data)

    def held(first: int, samples: int, last: int) -> list[tuple[str, int, int, int]]:
        begun = (file, samples, 60 * first + 10 * samples, 60 * first)
        return [begun, *((file, 0, 60 * piece, 60 * piece) for piece in range(first + 1, last + 1))]

    assert attempts.same_place(0, held(2, 2, 5)) is None, "from line 15 on"
    assert attempts.same_place(1, held(2, 0, 4)) is None, "from line 13 on"
    told = attempts.same_place(0, held(1, 3, 5))
    assert told is not None
    assert f"It was about to read {file} from line 15 on, {file} from line 19 on" in told
    assert attempts.same_place(1, held(2, 2, 5)) is None, "once is enough"
