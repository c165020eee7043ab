"""Servers that are killed, stopped, late, or replaced; trainers that are twins or disagree. Nobody hangs."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from server_processes import SOURCES
from waiting import wait_until

from sparsefleet import optim
from sparsefleet.core.errors import StoreError
from sparsefleet.core.initializer import Constant
from sparsefleet.launch.addresses import HeldEndpoints
from sparsefleet.server import ParameterServer, ServerConfig
from sparsefleet.store.base import RunFacts
from sparsefleet.store.remote import RemoteConfig, RemoteStore
from sparsefleet.store.remote.callers import Caller
from sparsefleet.table import TableSpec

SPEC = TableSpec("ads", 8, optim.SGD(1.0), Constant(0.0))
KEYS = np.arange(50_000, dtype=np.uint64)
ONES = np.ones((50_000, 8), np.float32)


@pytest.fixture
def free_ports():
    """Two of them, that nobody else gets until the test is over."""
    with HeldEndpoints.free(2) as held:
        yield [int(endpoint.rpartition(":")[2]) for endpoint in held.endpoints]


def strike(pid: int, how: signal.Signals) -> None:
    """Send a signal; return when it has worked. Threads of a process that is stopped may go on for a moment."""
    os.kill(pid, how)

    def stands() -> bool:
        tasks = Path(f"/proc/{pid}/task").glob("*/stat")
        return all(stat.read_text().rsplit(")", 1)[1].split()[0] == "T" for stat in tasks)

    if how == signal.SIGSTOP:
        wait_until(stands, 20, "a process that stands stopped")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize(
    "call", ["push", *(pytest.param(name, marks=pytest.mark.slow) for name in ("pull", "create", "stats"))]
)
def test_a_server_that_is_gone_is_named_within_the_time_out(fleet, how, call):
    store = fleet.start(2).store(timeout=5.0)  # on a busy machine a server that lives may take two seconds
    store.create_table(SPEC)
    store.push("ads", KEYS, ONES).wait()
    strike(fleet.processes[1].pid, how)
    calls = {
        "pull": lambda: store.pull("ads", KEYS).wait(),
        "push": lambda: store.push("ads", KEYS, ONES).wait(),
        "create": lambda: store.create_table(SPEC),
        "stats": store.stats,
    }
    start = time.monotonic()
    with pytest.raises(StoreError, match=rf"server 1 \({fleet.endpoints[1]}\).*no checkpoint was saved in this run"):
        calls[call]()
    assert time.monotonic() - start < 12


def test_a_server_that_was_silent_for_the_time_out_is_not_waited_for_so_long_again(fleet):
    store = fleet.start(1).store(timeout=4.0)
    strike(fleet.processes[0].pid, signal.SIGSTOP)
    with pytest.raises(StoreError, match="did not answer stats within 4 s"):
        store.stats()
    start = time.monotonic()
    for _ in range(2):
        with pytest.raises(StoreError, match="did not answer stats"):
            store.stats()
    assert time.monotonic() - start < 3
    os.kill(fleet.processes[0].pid, signal.SIGCONT)
    deadline = time.monotonic() + 30
    while True:  # and when it is back, it is back
        try:
            store.stats()
            break
        except StoreError:
            assert time.monotonic() < deadline


@pytest.mark.parametrize("rows", [60_000, pytest.param(400_000, marks=pytest.mark.slow)])
def test_a_write_to_a_stopped_server_ends_too(fleet, rows):
    """On a cold connection over the network a message is larger than what the socket takes: the write itself blocks."""
    store = fleet.start(1).store(timeout=3.0, shared_memory=False)
    store.create_table(SPEC)
    strike(fleet.processes[0].pid, signal.SIGSTOP)
    start = time.monotonic()
    with pytest.raises(StoreError, match="server 0"):
        store.push("ads", np.arange(rows, dtype=np.uint64), np.ones((rows, 8), np.float32)).wait()
    assert time.monotonic() - start < 20


def test_a_stopped_server_is_noticed_while_waiting_for_a_round(fleet):
    stores = fleet.start(1).stores_of_all(2, timeout=2.0)
    stores[0].create_table(SPEC)
    pending = stores[0].rounds.push({})
    strike(fleet.processes[0].pid, signal.SIGSTOP)
    start = time.monotonic()
    with pytest.raises(StoreError, match=r"server 0 .* did not answer sync push within 2 s: it is dead, stopped"):
        pending.wait()
    assert time.monotonic() - start < 6


def test_a_server_that_is_slow_to_answer_signs_of_life_is_not_given_up(fleet, caplog):
    """They are waited for for two intervals only; a server counts as lost after the time-out."""
    caplog.set_level(logging.DEBUG, "sparsefleet.store.remote.heartbeats")
    stores = fleet.start(2, "--timeout", "30").stores_of_all(2, timeout=30.0, heartbeat=0.1)
    missed = f"server 1 ({fleet.endpoints[1]}) did not answer heartbeat within 0.2 s"
    barrier = threading.Thread(target=stores[0].crew.barrier, args=("begin",), daemon=True)
    barrier.start()
    strike(fleet.processes[1].pid, signal.SIGSTOP)
    wait_until(lambda: caplog.text.count(missed) >= 6, 20, "signs of life that are not answered in time")
    for store in stores:
        store.connection.heartbeats.check()
    strike(fleet.processes[1].pid, signal.SIGCONT)
    stores[1].crew.barrier("begin")
    barrier.join(20)
    assert not barrier.is_alive()
    for store in stores:
        store.create_table(SPEC)
        store.push("ads", KEYS, ONES).wait()
    assert stores[0].stats()["lost"] == []
    assert set(np.unique(stores[0].pull("ads", KEYS).wait())) == {-2.0}


def test_a_dense_block_whose_maker_is_lost_between_two_servers_is_made_by_the_next(fleet, monkeypatch):
    stores = fleet.start(2, "--timeout", "2", "--lost-trainer", "drop").stores_of_all(3, heartbeat=0.2)
    maker, second, third = stores
    real, rule, layout = Caller.send, optim.SGD(1.0), [("w", (4,))]

    def lost(caller, operation, messages):
        if 1 in messages:
            maker.connection.heartbeats.stop()
            raise ConnectionAbortedError("killed")
        return real(caller, operation, messages)

    with monkeypatch.context() as patched:
        patched.setattr(Caller, "send", lost)
        with pytest.raises(ConnectionAbortedError):
            maker.create_dense("net", np.full(4, 1.0, np.float32), rule, layout)
    seen = []
    for value, store in ((2.0, second), (3.0, third)):
        values = np.full(4, value, np.float32)
        store.create_dense("net", values, rule, layout)
        seen.append(values.tolist())
    assert seen == [[1.0, 1.0, 2.0, 2.0]] * 2, "each server's values are those of who made it there, for all the same"


def test_a_wait_with_a_time_out_of_its_own_ends_with_it(fleet):
    """Servers that say that they wait for others do not make it longer."""
    stores = fleet.start(2).stores_of_all(2)
    pending = stores[0].rounds.push({})
    late = threading.Timer(3.5, lambda: stores[1].rounds.push({}))
    late.start()
    start = time.monotonic()
    with pytest.raises(StoreError, match=r"did not answer sync push within 1.5 s"):
        pending.wait(timeout=1.5)
    assert time.monotonic() - start < 3.2
    with pytest.raises(StoreError, match=r"did not answer sync push within 1.5 s"):
        pending.wait()
    late.join()


def test_many_pushes_to_a_stopped_server_do_not_hang(fleet):
    store = fleet.start(1).store(timeout=2.0)
    store.create_table(SPEC)
    strike(fleet.processes[0].pid, signal.SIGSTOP)
    start = time.monotonic()
    with pytest.raises(StoreError, match="server 0"):
        _ = [pending.wait() for pending in [store.push("ads", KEYS, ONES) for _ in range(50)]]
    assert time.monotonic() - start < 8


def test_the_error_names_the_last_checkpoint(fleet, tmp_path):
    store = fleet.start(1).store(timeout=2.0)
    store.create_table(SPEC)
    store.save(str(tmp_path / "step-1"), RunFacts(step=1))
    os.kill(fleet.processes[0].pid, signal.SIGKILL)
    with pytest.raises(StoreError, match=r"resume from .*step-1"):
        store.pull("ads", KEYS).wait()


def test_a_server_that_was_restarted_is_not_taken_for_the_old_one(fleet, free_ports):
    port = str(free_ports[0])
    store = fleet.start(1, "--port", port).store(timeout=10.0)
    store.create_table(SPEC)
    store.push("ads", KEYS, ONES).wait()
    fleet.processes[0].kill()
    fleet.processes[0].wait()
    fleet.processes.clear()
    fleet.endpoints.clear()
    fleet.start(1, "--port", port)
    with pytest.raises(StoreError, match=r"server 0 .* was restarted before .* and has lost its parameters"):
        store.push("ads", KEYS, ONES).wait()


def test_a_trainer_waits_for_servers_that_come_late(fleet, free_ports, caplog):
    port = free_ports[0]
    made = []
    thread = threading.Thread(
        target=lambda: made.append(RemoteStore(RemoteConfig((f"127.0.0.1:{port}",), connect_timeout=30)))
    )
    thread.start()
    wait_until(lambda: f"waiting for server 0 (127.0.0.1:{port}) to come up" in caplog.text, 20, "word of the wait")
    fleet.start(1, "--port", str(port))
    thread.join(timeout=30)
    made[0].create_table(SPEC)
    made[0].close()


def test_servers_that_do_not_come_are_named(free_ports):
    port = free_ports[0]
    with pytest.raises(StoreError, match=rf"server 0 \(127.0.0.1:{port}\) did not come up within 1 s: is it started"):
        RemoteStore(RemoteConfig((f"127.0.0.1:{port}",), connect_timeout=1.0))


def test_a_server_that_is_up_hears_of_a_trainer_that_waits_for_another(free_ports):
    ports = free_ports
    endpoints = tuple(f"127.0.0.1:{port}" for port in ports)
    servers = []

    def serve(index):
        servers.append(
            ParameterServer(ServerConfig(port=ports[index], index=index, endpoints=endpoints, abandoned_after=1.5))
        )
        servers[-1].serve()

    first = threading.Thread(target=serve, args=(0,))
    late = threading.Timer(4.0, serve, args=(1,))
    first.start()
    late.start()
    try:
        store = RemoteStore(RemoteConfig(endpoints, timeout=10.0, connect_timeout=20.0, heartbeat=0.3))
        store.create_table(SPEC)
        store.close()
        assert servers[0].status == 0
    finally:
        late.cancel()
        for server in servers:
            server.stop()
        first.join(10)
        late.join(10)


def test_a_trainer_that_reached_only_some_servers_can_try_again(fleet, free_ports):
    fleet.start(1)
    config = RemoteConfig((*fleet.endpoints, f"127.0.0.1:{free_ports[0]}"), 0, 1, connect_timeout=1.0)
    for _ in range(2):
        with pytest.raises(StoreError, match=r"server 1 .* did not come up within 1 s"):
            RemoteStore(config)


def test_twins_and_disagreement_are_refused(fleet):
    first = fleet.start(1, "--timeout", "2").store(0, 2, heartbeat=0.3)
    with pytest.raises(StoreError, match=r"worker 0 .* is refused: process \d+ on .* has that number"):
        fleet.store(0, 2)
    with pytest.raises(StoreError, match=r"worker counts differ: worker 1 .* says 3; this server has 2"):
        fleet.store(1, 3)
    more = RemoteConfig((*fleet.endpoints, "127.0.0.1:1"), 1, 2, connect_timeout=2)
    with pytest.raises(StoreError, match=r"server lists differ: worker 1 .* has .*127.0.0.1:1; this server has"):
        RemoteStore(more)
    first.close()
    fleet.store(0, 2).create_table(SPEC)  # the number is free again


def test_a_wrong_order_of_servers_is_refused(fleet):
    fleet.start(2)
    fleet.endpoints.reverse()
    with pytest.raises(
        StoreError, match=r"takes this for server 0, but it is server 1: the server lists differ in order"
    ):
        fleet.store()


def queues(store):
    return store.stats()["servers"][0]["queues"]


def test_a_trainer_that_goes_while_it_waits_is_one_line_in_the_log(fleet, capfd):
    stores = fleet.start(1).stores_of_all(2)
    pending = stores[0].rounds.push({})
    wait_until(lambda: queues(stores[1])["waiting_in_round"], 20, "a push that waits for the other trainer")
    with pytest.raises(StoreError, match="did not answer sync push"):
        pending.wait(timeout=0.1)  # cuts the connection
    said: list[str] = []

    def told() -> bool:
        said.append(capfd.readouterr().err)
        return "worker 0 is gone" in "".join(said)

    wait_until(told, 20, "word of the trainer that is gone")
    wait_until(lambda: not queues(stores[1])["under_way"], 20, "the end of its call")  # all is said by then
    log = "".join([*said, capfd.readouterr().err])
    assert "INFO worker 0 is gone, or has cut its connection, while it waited: round 1" in log
    assert "Traceback" not in log
    assert "ERROR" not in log


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_a_server_even_with_open_streams(fleet, number):
    store = fleet.start(1).store(timeout=3.0)
    store.create_table(SPEC)
    store.pull("ads", KEYS).wait()
    fleet.processes[0].send_signal(number)
    assert fleet.processes[0].wait(timeout=10) == 0


def test_servers_end_when_all_trainers_have_stopped(fleet):
    stores = fleet.start(2).stores_of_all(2)
    stores[0].crew.stop()
    time.sleep(0.6)  # several looks of the servers whether all have stopped
    assert fleet.processes[0].poll() is None
    stores[1].crew.stop()
    for process in fleet.processes:
        assert process.wait(timeout=10) == 0


def test_a_server_ends_with_its_parent():
    script = (
        "import signal, subprocess, sys\n"
        "p = subprocess.Popen([sys.executable, '-m', 'sparsefleet.server', '--watch-parent'], stdout=subprocess.PIPE)\n"
        "p.stdout.readline(); print(p.pid, flush=True); signal.pause()"
    )
    environment = {**os.environ, "PYTHONPATH": str(SOURCES)}
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=environment)
    server = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()

    def over() -> bool:
        try:
            return Path(f"/proc/{server}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
        except FileNotFoundError:
            return True

    try:
        wait_until(over, 20, "the end of a server whose parent has ended")
    finally:
        if not over():
            os.kill(server, signal.SIGKILL)


def test_a_port_that_is_taken_is_said_so_and_nothing_else(fleet):
    taken = fleet.start(1).endpoints[0].rpartition(":")[2]
    command = [sys.executable, "-m", "sparsefleet.server", "--port", taken]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        f"error: server 0 cannot listen on 127.0.0.1:{taken}: Address already in use. Choose another address, or end "
        "the process that has it"
    ]
