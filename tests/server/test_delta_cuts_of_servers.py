"""Deltas of servers: what changed since the checkpoint before, of all servers at one moment."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from small_jobs import cluster

from sparsefleet import optim
from sparsefleet.checkpoint import Checkpoint
from sparsefleet.core.errors import Rejoin, StoreError
from sparsefleet.core.keyed_rows import KeyedRows
from sparsefleet.store.base import RunFacts
from sparsefleet.store.remote import RemoteStore, checkpoints
from sparsefleet.table import TableSpec

SPEC = TableSpec("t", 4, optim.Adam(0.1))
OTHER = TableSpec("u", 2, optim.SGD(0.1))
KEYS = np.arange(1000, dtype=np.uint64)


def push(store: RemoteStore, keys: np.ndarray, table: TableSpec = SPEC) -> None:
    store.push_step({table.name: KeyedRows(keys, np.ones((len(keys), table.dim), np.float32))}, steps=1).wait()


def save(store: RemoteStore, path: Path, since: Path | None = None, step: int = 1) -> Checkpoint:
    with store.hold():
        cut = store.cut()
    with cut:
        cut.write(str(path), RunFacts(step=step), since=None if since is None else str(since))
    return Checkpoint.open(path)


def test_servers_write_what_changed_and_others_load_the_whole(tmp_path: Path) -> None:
    first, second, third = (tmp_path / f"step-0000000{number}" for number in (1, 2, 3))
    with cluster(2) as servers:
        store = servers.store()
        store.create_table(SPEC)
        store.create_dense("net", np.zeros(7, np.float32), optim.SGD(1.0), (("w", (7,)),))
        push(store, KEYS)
        assert save(store, first).base is None
        push(store, KEYS[:10])
        delta = save(store, second, first, 2)
        assert delta.manifest.base is not None
        assert sum(len(rows) for rows in delta.own_rows("t")) == 10
        store.create_table(OTHER)  # a table that the base has not
        push(store, KEYS[5:15])
        push(store, KEYS[:3], OTHER)
        last = save(store, third, second, 3)
        assert [sum(len(rows) for rows in last.own_rows(name)) for name in ("t", "u")] == [10, 3]
        expected = [store.pull(name, KEYS[:count]).wait() for name, count in (("t", 1000), ("u", 3))]
    with cluster(3, load_from=str(third)) as servers:
        store = servers.store()
        for spec in (SPEC, OTHER):
            store.create_table(spec)
        found = [store.pull(name, KEYS[:count]).wait() for name, count in (("t", 1000), ("u", 3))]
        np.testing.assert_array_equal(found[0], expected[0])
        np.testing.assert_array_equal(found[1], expected[1])
        assert sum(table.rows for server in servers.servers for table in server.state.holdings.tables()) == 1003


def test_a_checkpoint_is_whole_where_servers_do_not_know_what_changed(tmp_path: Path, caplog) -> None:
    first, second, third, fourth = (tmp_path / f"step-0000000{number}" for number in (1, 2, 3, 4))
    with cluster(2) as servers:
        store = servers.store()
        store.create_table(SPEC)
        push(store, KEYS)
        assert save(store, first, tmp_path / "unknown").base is None
        store.load(str(first))
        assert save(store, second, first).base is None, "after a load, clocks mean nothing"
        (second / "manifest.json").write_text("{}")
        assert save(store, third, second).base is None
        assert "the next cut is whole, for the last one cannot be built upon" in caplog.text
        assert save(store, fourth, third).base is not None


@pytest.mark.parametrize("fails", ["commit", "a server"])
def test_what_was_not_committed_is_nothing_that_a_delta_stands_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    first, second = tmp_path / "step-00000001", tmp_path / "step-00000002"
    with cluster(2) as servers:
        store = servers.store()
        store.create_table(SPEC)
        push(store, KEYS)
        save(store, first)
        push(store, KEYS[:10])

        def full(*arguments: object, **more: object) -> None:
            raise OSError("no space left on device")

        with monkeypatch.context() as patched:
            whose = checkpoints if fails == "commit" else servers.servers[1].state.cuts
            patched.setattr(whose, "commit" if fails == "commit" else "write", full)
            with pytest.raises((OSError, StoreError), match="no space left"):
                save(store, first)  # at the same place once more; what some servers have written of it is not there
        push(store, KEYS[20:30])
        delta = save(store, second, first, 2)
        assert delta.base is not None
        assert sum(len(rows) for rows in delta.own_rows("t")) == 20
        expected = store.pull("t", KEYS).wait()
    with cluster(1, load_from=str(second)) as servers:
        store = servers.store()
        store.create_table(SPEC)
        np.testing.assert_array_equal(store.pull("t", KEYS).wait(), expected)


def test_a_word_that_comes_late_is_not_taken_for_the_next_checkpoint(tmp_path: Path) -> None:
    first, second = tmp_path / "step-00000001", tmp_path / "step-00000002"
    with cluster(1) as servers:
        store = servers.store()
        store.create_table(SPEC)
        push(store, KEYS)
        save(store, first)
        with store.hold():
            cut = store.cut()
        with cut:
            files = tmp_path / "files"
            cuts = servers.servers[0].state.cuts
            cuts.write(store.connection.identity["incarnation"], str(files), False)
            late = {**store.connection.identity, "path": str(second), "directory": str(tmp_path / "other")}
            store.connection.links[0].action("saved", late)
        assert save(store, tmp_path / "step-00000003", second).base is None


def test_a_damaged_cut_ends_the_attempt_and_the_launcher_hears_which(tmp_path: Path) -> None:
    cut = tmp_path / "step-00000001"
    with cluster(2, attempt=1) as servers:
        store = servers.store(attempt=1)
        store.create_table(SPEC)
        push(store, KEYS)
        save(store, cut)
        file = max((cut / "sparse" / "t").iterdir(), key=lambda one: one.stat().st_size)
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 0xFF
        file.write_bytes(data)
        told = {"attempt": 2, "cut": str(cut), "stopped": [], "why": "a loss"}
        for link in store.connection.links:
            assert link.action("begin_attempt", told) == {}
        again = servers.store(attempt=2)
        with pytest.raises(Rejoin, match=r"the cut that this attempt began from cannot be read: .*damaged"):
            again.create_table(SPEC)
        found = [link.action("look", {})["bad_cut"] for link in again.connection.links]
        assert any(one and file.name in one for one in found)
        missing = {**told, "attempt": 3, "cut": str(tmp_path / "nowhere")}
        answer = again.connection.links[0].action("begin_attempt", missing)
        assert "no checkpoint at" in answer["bad_cut"]
        assert again.connection.links[0].action("look", {})["attempt"] == 2, "nothing has happened"
