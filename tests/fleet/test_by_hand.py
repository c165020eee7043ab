"""Processes of a job that are started by hand: proxies in the environment, servers that cannot listen, quiet ends."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from server_processes import SOURCES, servers
from waiting import wait_until

from sparsefleet.fleet import Role
from sparsefleet.launch.addresses import HeldEndpoints
from sparsefleet.launch.notices import Notices
from sparsefleet.launch.process import Exit

HELPERS = Path(__file__).parents[1] / "helpers"
SECONDS = 60


@pytest.fixture
def dead_port() -> Iterator[int]:
    """A port that nobody listens on, for as long as the test lasts."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@pytest.fixture
def proxied(monkeypatch, dead_port):
    for name in ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy"):
        for variable in (name, name.upper()):
            monkeypatch.setenv(variable, f"http://127.0.0.1:{dead_port}")
    for variable in ("no_proxy", "NO_PROXY", "no_grpc_proxy"):
        monkeypatch.delenv(variable, raising=False)


def test_addresses_of_the_job_go_through_no_proxy(proxied, cli):
    with servers() as job:
        store = job.start(2).store(connect_timeout=5.0)
        assert len(store.stats()["servers"]) == 2
        shown = cli("status", ",".join(job.endpoints))
        assert shown.exit_code == 0, shown.output
        with contextlib.closing(Notices(job.endpoints, os.environ, 5.0)) as notices:
            notices.worker_ended(0, Exit(1))
            # One that says "ends" decides; here both have to be reached.
            wait_until(lambda: not notices.untold(), 30, "both servers to answer")
            assert all(answer in ("goes on", "ends") for answer in notices._notices[0].answers)


SCRIPT = """
import sys
from small_jobs import Given, batches, small_model
import sparsefleet as sf
from sparsefleet import fleet
fleet.init()
strategy = fleet.DistributedStrategy(timeout=20.0, connect_timeout=90.0)
optimizer = fleet.distributed_optimizer(sf.optim.Adam(1e-2), strategy)
if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
fleet.init_worker()
{work}
"""
FIT = "fleet.train_from_dataset(small_model(), Given(batches(3)), quiet=True)"


@contextlib.contextmanager
def started(*roles: Role, work: str = FIT) -> Iterator[list[subprocess.Popen[str]]]:
    paths = os.pathsep.join([str(SOURCES), str(HELPERS)])
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT.format(work=work)],
            env={**os.environ, "PYTHONPATH": paths, **role.environment()},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for role in roles
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate(timeout=10)


def said(process: subprocess.Popen[str], seconds: float = SECONDS) -> tuple[int, str]:
    _, err = process.communicate(timeout=seconds)
    return process.returncode, err


def job_of(endpoints, workers=2) -> list[Role]:
    return [
        *(Role.server(index, workers, endpoints) for index in range(len(endpoints))),
        *(Role.worker(index, workers, endpoints) for index in range(workers)),
    ]


@pytest.mark.parametrize(
    ("work", "status", "words"),
    [
        (FIT, 0, ""),
        pytest.param(
            "sf.Trainer(optimizer, quiet=True).infer_from_dataset(small_model(), Given(batches(2)))",
            0,
            "",
            marks=pytest.mark.slow,
        ),
        ("pass", 3, "this trainer ends without fleet.stop_worker()"),
    ],
)
def test_a_script_that_ends_after_its_work_has_stopped_its_worker(work, status, words):
    with HeldEndpoints.free(1) as held:
        endpoints = held.endpoints
    with started(*job_of(endpoints), work=work) as processes:
        ended = [said(process) for process in processes]
    assert [code for code, _ in ended[1:]] == [0, 0], ended
    assert all(words in text for _, text in ended[1:])
    assert ended[0][0] == status, ended[0]
    if status:
        assert "rows that it had not trained are missing" in ended[0][1]


def test_a_server_that_cannot_listen_ends_at_once_and_so_do_the_trainers_that_wait_for_it():
    """The first server's address is taken by a program that says nothing; the second server is up and hears of it."""
    with socket.create_server(("127.0.0.1", 0)) as busy, HeldEndpoints.free(1) as held:
        endpoints = [f"127.0.0.1:{busy.getsockname()[1]}", *held.endpoints]
        with started(*job_of(endpoints)) as (first, second, *trainers):
            code, text = said(first)
            known = time.monotonic()  # not from the start: four interpreters that import torch take their time
            assert code == 1
            assert text == (
                f"error: server 0 cannot listen on {endpoints[0]}: Address already in use. Choose another address, or "
                "end the process that has it\n"
            )
            for trainer in trainers:
                code, text = said(trainer)
                assert code == 1
                assert "server 0 did not start: server 0 cannot listen on" in text, text
                assert text.count("Traceback") == 1
            assert time.monotonic() - known < 30, "without a word they would wait for connect_timeout, 90 s"
            second.kill()


@pytest.mark.parametrize("says", [pytest.param(b"", marks=pytest.mark.slow), b"220 mail ready\r\n"])
def test_a_trainer_sees_that_another_program_has_the_address(says):
    with socket.create_server(("127.0.0.1", 0)) as busy:
        endpoints = [f"127.0.0.1:{busy.getsockname()[1]}"]
        with started(Role.worker(0, 1, endpoints)) as (trainer,):
            busy.settimeout(0.2)
            deadline = time.monotonic() + SECONDS
            talking = []
            while trainer.poll() is None and time.monotonic() < deadline:
                with contextlib.suppress(TimeoutError):
                    connection, _ = busy.accept()
                    talking.append(connection)  # kept open: it is a program that says its word and waits
                    connection.sendall(says)
            code, text = said(trainer)
            for connection in talking:
                connection.close()
    assert code == 1
    expected = "has said nothing for 8 s" if not says else r"another program has that address (it answers b'220 mail"
    assert f"server 0 ({endpoints[0]}) cannot come up: " in text
    assert expected in text
