"""The ledger: every change of a server's tables is a numbered record, applied once and whole, never beside a cut."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from pyarrow.parquet import read_table

from sparsefleet import optim
from sparsefleet.core.errors import CheckpointError, StoreError
from sparsefleet.core.initializer import Constant
from sparsefleet.server import ServerConfig
from sparsefleet.server.gate import Gate
from sparsefleet.server.holdings import BoundRows, apply_all
from sparsefleet.server.ledger import PUSH, Ledger, Record, Step
from sparsefleet.server.members import Registration
from sparsefleet.server.state import ServerState
from sparsefleet.store.base import RunFacts
from sparsefleet.store.local import LocalStore
from sparsefleet.table import TableSpec

KEYS, ONES = np.arange(3, dtype=np.uint64), np.full((3, 1), -1.0, np.float32)


def spec(name: str) -> TableSpec:
    return TableSpec(name, 1, optim.SGD(1.0), Constant(0.0))


def patient(reason: str) -> None:
    pass


class Server:
    """A server without its wire, with one registered trainer, of so many that there are to be."""

    def __init__(self, *tables: str, workers: int = 1) -> None:
        self.state = ServerState(ServerConfig(workers=workers, endpoints=("a:1",)))
        self.state.sessions.register("life", Registration(0, workers, ("a:1",), 0, "x"))
        self.account = self.state.account(0, "life", 0)
        for name in tables:
            self.state.holdings.create_table(spec(name), 1)
        self.tables = self.state.holdings.tables()

    def push(self, number: int, on_wait=patient) -> bool:
        parts = [BoundRows(table, KEYS, ONES) for table in self.tables]
        record = Record(PUSH, [Step(self.account, number, 2)], parts)
        return self.state.ledger.apply(record, lambda: apply_all(parts), on_wait)

    def values(self) -> list[float]:
        return [float(table.pull(KEYS)[0, 0]) for table in self.tables]


def test_records_are_numbered_and_steps_count_once():
    server = Server("a", "b")
    assert server.state.ledger.number == 2, "each table's making is a record"
    assert [server.push(1), server.push(1), server.push(4)] == [True, False, True]
    assert server.state.ledger.number == 4
    assert server.state.ledger.accounts() == {"0/life/0": [4, 2]}
    assert server.state.ledger.batches(0, "life") == 4
    assert server.values() == [2, 2]


def test_a_step_that_comes_again_while_its_first_self_is_at_work_waits_and_says_so():
    ledger, said, go_on = Ledger(), [], threading.Event()
    account = ledger.account(0, "life", 0)
    record = Record(PUSH, [Step(account, 1, 0)])
    first = threading.Thread(target=ledger.apply, args=(record, lambda: go_on.wait(10), patient), daemon=True)
    first.start()

    def wait(reason: str) -> None:
        said.append(reason)
        go_on.set()

    while not account.lock.locked():
        pass
    assert not ledger.apply(Record(PUSH, [Step(account, 1, 0)]), lambda: pytest.fail("applied twice"), wait)
    first.join(10)
    assert said == ["the same message, sent before, is still being applied"]


def test_a_change_that_fails_half_way_ends_the_job_in_so_many_words(monkeypatch):
    server = Server("a", "b")

    def full(keys, grads, counts):
        raise MemoryError("no room for more rows")

    monkeypatch.setattr(server.tables[1], "push", full)
    with pytest.raises(MemoryError):
        server.push(1)
    assert server.account.sequence == 0, "it is not acknowledged"
    why = (
        r"server 0 failed within a change \(push of step 1 of worker 0\): MemoryError.*a part of it.*nothing is applied"
    )
    for ask in (lambda: server.push(2), server.state.ledger.check_whole, server.state.sessions.check_job):
        with pytest.raises(StoreError, match=why):
            ask()
    with pytest.raises(StoreError, match=r"the job has ended: server 0 .* start the job again"):
        server.state.sessions.check_job()
    server.state.ledger.gate.hold("life", 5.0, 1.0)
    with pytest.raises(StoreError, match=why):
        server.state.cuts.name("life", 5.0)


def test_a_checkpoint_that_does_not_fit_touches_nothing_and_one_that_is_damaged_ends_the_job(tmp_path):
    server, local = Server("a"), LocalStore()
    for name in ("a", "b"):
        local.create_table(spec(name))
    local.push("a", KEYS, ONES).wait()
    local.save(str(tmp_path / "two"), RunFacts())
    server.push(1)
    with pytest.raises(CheckpointError, match="has tables that the model has not: b"):
        server.state.holdings.load(str(tmp_path / "two"), 1, False, "life", 1.0)
    server.push(2)
    only = LocalStore()
    only.create_table(spec("a"))
    only.push("a", KEYS, ONES).wait()
    only.save(str(tmp_path / "one"), RunFacts())
    good = {path: path.read_bytes() for path in (tmp_path / "one").rglob("*.parquet")}
    for path, content in good.items():
        path.write_bytes(content[:8] + bytes(len(content) - 16) + content[-8:])
    with pytest.raises(CheckpointError):
        server.state.holdings.load(str(tmp_path / "one"), 1, False, "life", 1.0)
    with pytest.raises(StoreError, match=r"failed within a change \(load of a\)"):
        server.push(3)
    for path, content in good.items():
        path.write_bytes(content)
    server.state.holdings.load(str(tmp_path / "one"), 1, False, "life", 1.0)
    server.push(4)
    assert server.values() == [2]


def test_a_cut_holds_what_was_there_when_it_was_named_while_pushes_go_on(tmp_path):
    server = Server("a", "b")
    ledger, cuts = server.state.ledger, server.state.cuts
    for number in range(1, 6):
        server.push(number)
    ledger.gate.hold("life", 5.0, 1.0)
    named = cuts.name("life", 5.0)
    ledger.gate.open("life")
    assert (named["number"], named["accounts"]) == (7, {"0/life/0": [5, 5]})
    assert (named["tables"], named["blocks"]) == (["a", "b"], [])
    server.push(6)
    for table in server.tables:
        table.pull(np.arange(100, 200, dtype=np.uint64))  # rows that come to be after it
    written = cuts.write("life", str(tmp_path), False)
    cuts.drop("life")
    server.push(7)
    assert [table["step"] for table in written["tables"]] == [5, 5]
    for entry in written["files"]:
        assert read_table(tmp_path / entry["path"]).column("values").to_pylist() == [[5.0]] * 3
    assert server.values() == [7, 7]
    ledger.gate.hold("life", 5.0, 1.0)
    assert cuts.name("life", 5.0)["number"] == 9


def test_a_table_that_is_made_while_a_cut_is_named_waits_for_the_gate():
    server = Server("a")
    server.state.ledger.gate.hold("life", None, 1.0)
    maker = threading.Thread(target=server.state.holdings.create_table, args=(spec("b"), 1), daemon=True)
    maker.start()
    while not server.state.ledger.gate.waiting:
        pass
    assert [table.spec.name for table in server.state.holdings.tables()] == ["a"]
    server.state.ledger.gate.open("life")
    maker.join(10)
    assert [table.spec.name for table in server.state.holdings.tables()] == ["a", "b"]


def test_lower_rates_are_a_record_and_wait_while_a_cut_is_named():
    server = Server()
    rule = optim.SGD(1.0, schedule=optim.schedule.OnPlateau())
    server.state.holdings.create_table(TableSpec("a", 1, rule, Constant(0.0)), 1)
    (table,), before = server.state.holdings.tables(), server.state.ledger.number
    server.state.ledger.gate.hold("life", None, 1.0)
    lower = threading.Thread(target=server.state.holdings.lower_rates, args=(0.5,), daemon=True)
    lower.start()
    while not server.state.ledger.gate.waiting:
        pass
    assert (table.spec.rule.rate(1), server.state.ledger.number) == (1.0, before)
    server.state.ledger.gate.open("life")
    lower.join(10)
    assert (table.spec.rule.rate(1), server.state.ledger.number) == (0.5, before + 1)


@pytest.mark.parametrize("end", ["lost", "silent"])
def test_a_cut_is_dropped_with_its_owner_and_when_it_is_not_renewed(monkeypatch, end):
    monkeypatch.setattr("sparsefleet.server.server_cut.LOOK_EVERY", 0.01)
    server = Server("a")
    server.state.ledger.gate.hold("life", 5.0, 1.0)
    server.state.cuts.name("life", 0.05 if end == "silent" else 60.0)
    cut = server.state.cuts.check("life")
    if end == "lost":
        server.state.sessions.fail(0, "life", "killed", own_error=False)
    assert cut.over.wait(10)
    with pytest.raises(StoreError, match="the cut is gone"):
        server.state.cuts.write("life", "/nowhere", False)


def test_a_gate_is_opened_when_the_life_that_holds_it_has_ended():
    over: set[str] = set()
    gate = Gate(over.__contains__)
    gate.hold("saver", 60.0, 1.0)
    with pytest.raises(StoreError, match="another checkpoint is being saved right now"):
        gate.hold("other", 60.0, 1.0)
    over.add("saver")
    assert gate.enter([], patient) == 1
    gate.leave()
    assert not gate.renew("saver", 60.0)


def test_a_server_that_has_refused_a_step_differs_in_its_account():
    """As many steps are not the same steps: the count tells what the last number does not."""
    one, other = Server("a"), Server("a")
    for number in (1, 2, 3):
        one.push(number)
    for number in (1, 3):
        other.push(number)
    assert one.state.ledger.accounts() != other.state.ledger.accounts()


def test_steps_of_a_former_life_stay_known_and_are_over():
    server = Server("a")
    server.push(1)
    server.state.sessions.leave(0, "life", for_good=True)
    server.state.sessions.register("next", Registration(0, 1, ("a:1",), 0, "x"))
    server.state.account(0, "next", 0)
    assert server.state.ledger.accounts() == {"0/life/0": [1, 1]}
    assert server.state.ledger.over() == ["0/life/0"]
    assert server.state.stats()["used_before"] is True


def test_a_dense_block_whose_maker_died_on_its_way_is_made_by_one_that_waits():
    """It was made on server 0; this is another server, which its maker never reached."""
    state = ServerState(ServerConfig(index=1, workers=2, endpoints=("a:1", "b:2")))
    said: list[str] = []

    def create(value: float, may_create: bool):
        values = np.full(2, value, np.float32)
        layout = [("w", (4,))]
        return state.holdings.create_dense("net", 4, values, optim.SGD(1.0), layout, 2, may_create, 0.5, said.append)

    block, created = create(1.0, may_create=False)
    assert created
    assert said == ["dense block 'net' is being made"]
    same, created = create(2.0, may_create=True)  # the maker had only been slow
    assert not created
    assert same is block
    assert block.table.values.tolist() == [1.0, 1.0]


def test_a_retired_trainer_whose_step_waits_for_a_cut_is_asked_about_again():
    """Its pieces go to others once nothing of it can be applied any more; nobody hangs until then."""
    server = Server("a", workers=2)
    gate = server.state.ledger.gate
    gate.hold("a saver", None, 1.0)
    waits = threading.Event()
    push = threading.Thread(target=server.push, args=(1, lambda reason: waits.set()), daemon=True)
    push.start()
    assert waits.wait(30)
    server.state.leases.begin_run(0, "life", leased=True)
    assert server.state.retire(0) == {"pending": True}
    gate.open("a saver")
    push.join(10)
    assert server.state.retire(0) == {"accounts": {"0/life/0": [1, 1]}}
    assert server.values() == [1.0]
