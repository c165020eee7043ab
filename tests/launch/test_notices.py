"""What launchers tell the servers of workers that have ended badly, and what they make of the answers."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyarrow.flight as flight
import pytest
from waiting import wait_until

from sparsefleet.launch.addresses import HeldEndpoints
from sparsefleet.launch.notices import Notices
from sparsefleet.launch.process import Exit
from sparsefleet.store.remote.link import ServerLink
from sparsefleet.store.wire.auth import TOKEN_VARIABLE, CheckToken

FAILED, KILLED = Exit(1), Exit(137, "SIGKILL")
Pair = tuple[bytes, bytes]
"""A certificate and its key."""


class FakeServer(flight.FlightServerBase):
    """Answers everything with `answer`; `asked` is what came."""

    def __init__(self, endpoint: str, answer: dict[str, Any], token: str | None, tls: Pair | None) -> None:
        self.asked: list[dict[str, Any]] = []
        self._answer = answer
        super().__init__(
            f"{'grpc+tls' if tls else 'grpc'}://{endpoint}",
            tls_certificates=[tls] if tls else None,
            middleware={"token": CheckToken(token)} if token else None,
        )

    def do_action(self, context: Any, action: Any) -> list[bytes]:
        request = json.loads(action.body.to_pybytes())
        assert action.type in ("ended", "stats")
        assert request.pop("protocol")
        self.asked.append(request)
        return [json.dumps(self._answer).encode()]


@contextmanager
def serving(
    endpoint: str, answer: dict[str, Any], *, token: str | None = None, tls: Pair | None = None
) -> Iterator[FakeServer]:
    server = FakeServer(endpoint, answer, token, tls)
    try:
        yield server
    finally:
        server.shutdown()


@pytest.fixture
def endpoints() -> Iterator[tuple[str, ...]]:
    with HeldEndpoints.free(2) as held:
        yield held.endpoints


LOST, PRESENT = {"state": "lost"}, {"state": "present"}


@pytest.mark.parametrize(
    ("answer", "left"),
    [
        ({"workers": {"0": LOST, "1": {"state": "gone"}}}, False),
        ({"workers": {"0": LOST, "1": PRESENT}}, True),
        ({"workers": {"0": LOST}}, True),
        ({"error": "no such action"}, True),
        ({}, True),
    ],
)
def test_whether_a_server_still_serves_anybody(endpoints, answer: dict[str, Any], left: bool) -> None:
    with serving(endpoints[1], answer), notices(endpoints) as told:
        assert told.someone_left(1, 2) is left


def test_a_server_that_does_not_answer_may_still_serve(endpoints) -> None:
    with notices(endpoints) as told:
        assert told.someone_left(0, 2) is True


@contextmanager
def notices(endpoints: tuple[str, ...], seconds: float = 20.0, **environment: str) -> Iterator[Notices]:
    made = Notices(endpoints, environment, seconds)
    try:
        yield made
    finally:
        made.close()


def eventually(value: Callable[[], bool | None], seconds: float = 20.0) -> bool:
    [found] = wait_until(lambda: [] if (found := value()) is None else [found], seconds, "an answer")
    return found


@pytest.mark.parametrize(
    ("exit", "request_"),
    [
        (FAILED, {"worker": 3, "how": "exit status 1", "failed": True}),
        (KILLED, {"worker": 3, "how": "killed by SIGKILL", "failed": False}),
    ],
)
def test_every_server_is_told(endpoints, exit: Exit, request_: dict[str, Any]) -> None:
    with ExitStack() as stack:
        servers = [stack.enter_context(serving(endpoint, {"goes_on": True})) for endpoint in endpoints]
        told = stack.enter_context(notices(endpoints))
        told.worker_ended(3, exit)
        assert eventually(lambda: told.goes_on(3)) is True
        assert told.untold() == []
    assert [server.asked for server in servers] == [[request_], [request_]]


@pytest.mark.parametrize("answer", [{"goes_on": False}, {"error": "action 'ended' does not exist"}, {}])
def test_one_server_that_does_not_say_yes_is_enough_and_others_need_not_be_waited_for(endpoints, answer) -> None:
    with serving(endpoints[1], answer), notices(endpoints) as told:
        began = time.monotonic()
        told.worker_ended(0, KILLED)
        assert eventually(lambda: told.goes_on(0)) is False
        assert time.monotonic() - began < 5


def test_servers_that_still_start_are_told_when_they_are_up(endpoints, monkeypatch) -> None:
    tried, action = Counter(), ServerLink.action

    def counted(link: ServerLink, *arguments: Any) -> Any:
        try:
            return action(link, *arguments)
        finally:
            tried[link.index] += 1

    monkeypatch.setattr(ServerLink, "action", counted)
    with notices(endpoints) as told:
        told.worker_ended(0, KILLED)
        wait_until(lambda: tried[0] > 1 and tried[1] > 1, 20, "several tries at each server")
        assert told.goes_on(0) is None
        with serving(endpoints[0], {"goes_on": True}) as first:
            wait_until(lambda: told.untold() == [f"server 1 ({endpoints[1]})"], 20, "server 0 to be told")
            assert told.goes_on(0) is None
            with serving(endpoints[1], {"goes_on": True}) as second:
                assert eventually(lambda: told.goes_on(0)) is True
            assert len(first.asked) == len(second.asked) == 1


def test_where_no_server_answers_in_time_the_others_do_not_go_on(endpoints) -> None:
    with notices(endpoints, seconds=1.0) as told:
        began = time.monotonic()
        told.worker_ended(0, KILLED)
        assert time.monotonic() - began < 0.5, "nobody waits for it"
        assert eventually(lambda: told.goes_on(0)) is False
        assert 0.5 < time.monotonic() - began < 4
        assert told.untold() == []


def test_some_that_answer_are_enough_in_the_end(endpoints) -> None:
    with serving(endpoints[0], {"goes_on": True}), notices(endpoints, seconds=1.0) as told:
        told.worker_ended(0, KILLED)
        assert eventually(lambda: told.goes_on(0)) is True


def test_servers_that_have_ended_are_not_waited_for_and_once_all_have_nobody_needs_them(endpoints) -> None:
    with serving(endpoints[0], {"goes_on": False}) as first, notices(endpoints) as told:
        told.server_ended(1)
        told.worker_ended(0, FAILED)
        assert eventually(lambda: told.goes_on(0), 5) is False
    assert len(first.asked) == 1
    with notices(endpoints) as told:
        told.worker_ended(0, KILLED)
        assert told.goes_on(0) is None
        told.server_ended(0)
        assert told.goes_on(0) is None
        told.server_ended(1)
        assert told.goes_on(0) is True


def test_the_token_goes_along(endpoints) -> None:
    endpoint = endpoints[:1]
    with serving(endpoint[0], {"goes_on": True}, token="ours") as server:
        with notices(endpoint, **{TOKEN_VARIABLE: "ours"}) as told:
            told.worker_ended(0, KILLED)
            assert eventually(lambda: told.goes_on(0)) is True
        with notices(endpoint) as told:
            told.worker_ended(0, KILLED)
            assert eventually(lambda: told.goes_on(0), 5) is False, "refused, and not asked again"
    assert len(server.asked) == 1


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificate with openssl")
def test_servers_with_certificates_are_told_too(endpoints, tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    tls = (certificate.read_bytes(), key.read_bytes())
    with serving(endpoints[0], {"goes_on": True}, tls=tls):
        with notices(endpoints[:1], SPARSEFLEET_TLS_ROOTS=str(certificate)) as told:
            told.worker_ended(0, KILLED)
            assert eventually(lambda: told.goes_on(0)) is True
        with notices(endpoints[:1], seconds=1.0) as told:
            told.worker_ended(0, KILLED)
            assert eventually(lambda: told.goes_on(0)) is False, "not encrypted"


def test_certificates_that_cannot_be_read_are_no_reason_to_hang(endpoints) -> None:
    with notices(endpoints, SPARSEFLEET_TLS_ROOTS="/nowhere") as told:
        told.worker_ended(0, KILLED)
        assert eventually(lambda: told.goes_on(0), 5) is False


def test_no_thread_is_left(endpoints) -> None:
    with notices(endpoints) as told:
        told.worker_ended(0, KILLED)
        assert [thread for thread in threading.enumerate() if thread.name.startswith("notices-")]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("notices-")]


# A server that writes down what it is told, and answers what the script's argument says. Worker 1 ends badly, worker 0
# works until the test tells it to finish.
TOLD = """
    import json
    import pyarrow.flight as flight

    class Server(flight.FlightServerBase):
        def do_action(self, context, action):
            if action.type == "stats":
                return [json.dumps({"workers": {str(worker): {"state": "lost"} for worker in range(2)}}).encode()]
            print(action.type, action.body.to_pybytes().decode())
            return [json.dumps({"goes_on": sys.argv[1] == "drop"}).encode()]

    if os.environ["TRAINING_ROLE"] == "PSERVER":
        server = Server(f"grpc://{os.environ['POD_IP']}:{os.environ['PADDLE_PORT']}")
        print("listening")
        until("finished")
        os._exit(0)
    if os.environ["PADDLE_TRAINER_ID"] == "1":
        sys.exit(7) if sys.argv[2] == "fails" else os.kill(os.getpid(), signal.SIGKILL)
    until("finish")
    tell("finished")
"""


def test_the_others_go_on_where_the_servers_say_so(launcher) -> None:
    process = launcher.start("--server_num=2", "--worker_num=2", launcher.script(TOLD), "drop", "killed")
    launcher.wait_for(process, "worker 1 failed (killed by SIGKILL); the others go on without it")
    (launcher.folder / "finish").touch()
    assert "the job went on without worker 1: worker 0 ended well" in launcher.finish(process)
    assert process.returncode == 137
    for index in range(2):
        assert '"how":"killed by SIGKILL"' in launcher.logs()[f"serverlog.{index}"].replace(": ", ":")


def test_the_others_end_where_the_servers_say_so(launcher) -> None:
    done = launcher.run("--server_num=2", "--worker_num=2", "--timeout=5", launcher.script(TOLD), "error", "fails")
    assert done.returncode == 7
    assert "worker 1 failed (exit status 7); the others may go on for 5 s" in done.stderr
    assert "worker 0: stopped" in done.stderr
    assert '"failed":true' in launcher.logs()["serverlog.1"].replace(": ", ":")


def test_keep_going_overrules_the_servers_who_are_told_all_the_same(launcher) -> None:
    script = launcher.script(TOLD)
    process = launcher.start("--server_num=1", "--worker_num=2", "--keep-going", script, "error", "fails")
    launcher.wait_for(process, "worker 1 failed (exit status 7); the others are left to themselves (--keep-going)")
    launcher.wait_until(lambda: "ended" in launcher.logs()["serverlog.0"])
    (launcher.folder / "finish").touch()
    assert "the job went on without worker 1: worker 0 ended well" in launcher.finish(process)
    assert process.returncode == 7
    assert launcher.logs()["serverlog.0"].count("ended") == 1


def test_servers_on_other_hosts_are_told_before_the_launcher_ends(launcher, free_port: int) -> None:
    script = launcher.script(TOLD)
    lists = ("--servers", f"127.0.0.1:{free_port}", "--workers", "127.0.0.1,127.0.0.2", "--timeout=30")
    here = launcher.start(*lists, "--host_ip=127.0.0.1", script, "drop", "fails")
    launcher.wait_until(lambda: "listening" in launcher.logs().get("serverlog.0", ""))
    there = launcher.start(*lists, "--host_ip=127.0.0.2", "--log_dir=there", script, "drop", "fails")
    error = launcher.finish(there)
    assert there.returncode == 7, error
    launcher.wait_until(lambda: "exit status 7" in launcher.logs()["serverlog.0"])
    (launcher.folder / "finish").touch()
    error = launcher.finish(here)
    assert here.returncode == 0, error
    assert launcher.left() == []


def test_a_launcher_does_not_wait_long_for_servers_elsewhere_that_cannot_be_reached(launcher, free_port: int) -> None:
    lists = ("--servers", f"127.0.0.1:{free_port}", "--workers", "127.0.0.1,127.0.0.2", "--timeout=30")
    began = time.monotonic()
    done = launcher.run(*lists, "--host_ip=127.0.0.2", launcher.script("sys.exit(7)"))
    assert time.monotonic() - began < 15
    assert done.returncode == 7
    assert f"server 0 (127.0.0.1:{free_port}) cannot be reached, and so was not told who failed here" in done.stderr


def test_servers_that_serve_nobody_elsewhere_either_are_ended_soon_after_a_failure(launcher, free_port: int) -> None:
    lists = ("--servers", f"127.0.0.1:{free_port}", "--workers", "127.0.0.2,127.0.0.1", "--timeout=60")
    began = time.monotonic()
    done = launcher.run(*lists, "--host_ip=127.0.0.1", launcher.script(TOLD), "error", "fails")
    assert time.monotonic() - began < 30
    assert done.returncode == 7
    assert "server 0: stopped" in done.stderr


def test_servers_elsewhere_are_told_where_all_workers_are_here(launcher, free_port: int) -> None:
    script = launcher.script(TOLD.replace('["PADDLE_TRAINER_ID"] == "1"', '["TRAINING_ROLE"] == "TRAINER"'))
    lists = ("--servers", f"127.0.0.1:{free_port}", "--workers", "127.0.0.2")
    launcher.start(*lists, "--host_ip=127.0.0.1", script, "error", "fails")
    launcher.wait_until(lambda: "listening" in launcher.logs().get("serverlog.0", ""))
    done = launcher.run(*lists, "--host_ip=127.0.0.2", "--log_dir=there", script, "error", "fails")
    assert done.returncode == 7
    assert "exit status 7" in launcher.logs()["serverlog.0"]


def test_a_worker_that_the_launcher_ends_is_not_reported(launcher) -> None:
    process = launcher.start("--server_num=1", "--worker_num=1", launcher.script(TOLD), "error", "fails")
    launcher.wait_until(lambda: "listening" in launcher.logs().get("serverlog.0", ""))
    process.send_signal(signal.SIGINT)
    error = launcher.finish(process)
    assert process.returncode == 130, error
    assert launcher.logs()["serverlog.0"] == "listening\n"
