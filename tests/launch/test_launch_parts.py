"""Parts of the launcher: held ports, the end of a log, what a terminal shows."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console
from waiting import wait_until

from sparsefleet.core.errors import ConfigError
from sparsefleet.fleet.roles import Role, parse_endpoint
from sparsefleet.launch import RunSettings, listening, run_local
from sparsefleet.launch.addresses import HeldEndpoints, is_local
from sparsefleet.launch.listening import listening_ports
from sparsefleet.launch.logs import last_lines
from sparsefleet.launch.plan import parse_hosts, parse_ports, roles_here
from sparsefleet.launch.process import RoleProcess
from sparsefleet.launch.view import LiveView, PlainView, shortened
from sparsefleet.server.config import ServerConfig
from sparsefleet.server.members import Registration
from sparsefleet.server.sessions import Sessions

HELPERS = Path(__file__).parents[1] / "helpers"
IMPORTS = "import os, signal, sys"


def test_held_ports_are_distinct_and_kept_from_others() -> None:
    with HeldEndpoints.free(20) as held:
        assert len(set(held.endpoints)) == 20
        host, port = parse_endpoint("held", held.endpoints[0])
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind((host, port))
        # A server that sets SO_REUSEADDR gets in: it is for such servers that the port is held.
        with socket.create_server((host, port)) as server:
            socket.create_connection((host, port), timeout=5).close()
            assert server.getsockname()[1] == port
    with socket.socket() as other:
        other.bind((host, port))


def test_a_flight_server_gets_a_held_port() -> None:
    flight = pytest.importorskip("pyarrow.flight")
    with HeldEndpoints.free(1) as held:
        server = flight.FlightServerBase(f"grpc://{held.endpoints[0]}")
        try:
            assert server.port == parse_endpoint("held", held.endpoints[0])[1]
        finally:
            server.shutdown()


def test_a_given_port_that_is_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(ConfigError, match=f"{endpoint} cannot be used by a server: Address already in use"):
            HeldEndpoints.given([endpoint])


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_ports_that_someone_listens_on(host: str) -> None:
    with socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as server:
        port = server.getsockname()[1]
        ports = listening_ports()
        assert ports is not None
        assert port in ports
    with HeldEndpoints.free(1) as held:
        assert parse_endpoint("held", held.endpoints[0])[1] not in (listening_ports() or ()), "held is not listening"


def test_local_addresses() -> None:
    assert is_local("127.0.0.1")
    assert is_local("127.0.0.2")
    assert not is_local("203.0.113.1")
    with pytest.raises(ConfigError, match="not an address that this host knows"):
        is_local("no.such.host.invalid")


def test_lists_of_hosts_and_ports() -> None:
    assert parse_hosts("x", "10.0.0.1, 10.0.0.2:6170,host,[::1]:5,::1") == [
        "10.0.0.1",
        "10.0.0.2",
        "host",
        "::1",
        "::1",
    ]
    assert parse_ports("x", "5-7,9", 4) == [5, 6, 7, 9]
    with pytest.raises(ConfigError, match="7-5 is not a port or range"):
        parse_ports("x", "7-5", 3)
    with pytest.raises(ConfigError, match="at least one server and one worker"):
        roles_here([], ["a"])


def test_last_lines_are_what_a_terminal_would_show(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes("one\n\n\x1b[31mtwo\x1b[0m\nstep 1\rstep 2\r\n  in\xff\n\n".encode("latin-1"))
    assert last_lines(log, 1) == ["  in\ufffd"]
    assert last_lines(log, 9) == ["one", "two", "step 2", "  in\ufffd"]
    assert last_lines(tmp_path / "none", 3) == []


def test_run_local_as_a_library(tmp_path: Path) -> None:
    shown = io.StringIO()
    before = signal.getsignal(signal.SIGINT)

    def command(role: Role) -> list[str]:
        return [sys.executable, "-c", f"print({str(role)!r}); raise SystemExit({5 if str(role) == 'worker 1' else 0})"]

    settings = RunSettings(tmp_path / "logs", timeout=1.0)
    outcome = run_local(command, 1, 2, settings, view=PlainView(shown))
    assert outcome.exit_code == 5
    assert [(str(role), str(exit)) for role, exit in outcome.failed] == [("worker 1", "exit status 5")]
    assert (tmp_path / "logs" / "serverlog.0").read_text() == "server 0\n"
    assert "worker 1 failed first: exit status 5" in shown.getvalue()
    assert signal.getsignal(signal.SIGINT) is before


def failed_job(folder: Path, script: str, timeout: float = 5.0) -> tuple[int, str]:
    """The status of a job of 1 server and 2 workers, and what was said after its end. `me` is the role in words."""
    shown = io.StringIO()
    first = f"{IMPORTS}\nsys.path.insert(0, {str(HELPERS)!r})\nfrom role_waits import *\nos.chdir({str(folder)!r})\n"

    def command(role: Role) -> list[str]:
        return [sys.executable, "-c", f"{first}me = {str(role)!r}\n{script}"]

    outcome = run_local(command, 1, 2, RunSettings(folder / "logs", timeout=timeout), view=PlainView(shown))
    return outcome.exit_code, shown.getvalue()


def test_who_was_told_of_anothers_failure_is_not_the_first_that_failed(tmp_path: Path) -> None:
    sessions = Sessions(ServerConfig(workers=2))
    for worker in range(2):
        sessions.register(f"life {worker}", Registration(worker, 2, ("127.0.0.1:5",), 0, f"process {worker}"))
    sessions.fail(1, "life 1", "the loss became nan", own_error=True)
    told = str(sessions.go_on_without("barrier", [1]))
    script = (
        f"if me == 'worker 0': print({f'error: {told}'!r}); tell(me, os.getpid()); sys.exit(3)\n"
        "if me == 'worker 1': until_over('worker 0'); print('error: the loss became nan'); sys.exit(4)\n"
    )
    status, said = failed_job(tmp_path, script)
    assert status == 4
    shown = said.partition("worker 1 failed first: exit status 4")[2]
    assert "\n    error: the loss became nan\nfleetrun: failed too: worker 0 (exit status 3)\n" in shown


def test_nothing_goes_on_without_a_server(tmp_path: Path) -> None:
    script = (
        "if me == 'worker 0': tell(me, os.getpid()); sys.exit(0)\n"
        "until_over('worker 0')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    status, said = failed_job(tmp_path, script)
    assert status == 128 + signal.SIGKILL
    assert "fleetrun: worker 0 ended well\n" in said
    assert "went on without" not in said


def test_workers_do_not_wait_long_for_a_server_that_failed_before_it_listened(tmp_path: Path) -> None:
    began = time.monotonic()
    status, said = failed_job(tmp_path, "sys.exit(5) if me == 'server 0' else stay()\n", timeout=60)
    assert status == 5
    assert "server 0 failed before it listened (exit status 5); the others may go on for 3 s\n" in said
    assert time.monotonic() - began < 20


def test_workers_of_a_server_that_fails_later_may_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = (
        "import socket\n"
        "if me == 'server 0':\n"
        "    server = socket.create_server((os.environ['POD_IP'], int(os.environ['PADDLE_PORT'])))\n"
        "    tell('port', os.environ['PADDLE_PORT']); until('seen'); tell(me, os.getpid()); sys.exit(5)\n"
        # Longer than the launcher takes between two looks: it should see the server's end before theirs.
        "until_over('server 0'); import time; time.sleep(1.5); print('server 0 is gone; go on from M'); sys.exit(1)\n"
    )

    def look() -> set[int] | None:
        found, port = listening_ports(), tmp_path / "port"
        if found is None or (port.exists() and int(port.read_text()) in found):
            (tmp_path / "seen").touch()
        return found

    monkeypatch.setattr(listening, "listening_ports", look)
    status, said = failed_job(tmp_path, script, timeout=30)
    assert status == 5
    assert "server 0 failed (exit status 5); the others may go on for 30 s\n" in said
    assert "failed too: worker" in said


def test_a_signal_that_comes_when_all_have_ended_changes_nothing(tmp_path: Path) -> None:
    class Late(PlainView):
        def update(self, processes: Sequence[RoleProcess]) -> None:
            super().update(processes)
            if not any(process.running for process in processes):
                os.kill(os.getpid(), signal.SIGTERM)

    shown = io.StringIO()
    outcome = run_local(lambda role: [sys.executable, "-c", ""], 1, 1, RunSettings(tmp_path / "logs"), view=Late(shown))
    assert outcome.exit_code == 0
    assert "all done: 1 worker ended well" in shown.getvalue()


def test_a_command_that_cannot_be_started_ends_those_that_were(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    sleeper = f"import os, signal; open({str(pid)!r}, 'w').write(f'{{os.getpid()}}\\n'); signal.pause()"

    def command(role: Role) -> list[str]:
        if role.is_server:
            return [sys.executable, "-c", sleeper]
        wait_until(lambda: pid.exists() and pid.read_text().endswith("\n"), 30, "the server's number")
        os.kill(int(pid.read_text()), 0)
        return ["/no/such/program"]

    with pytest.raises(ConfigError, match=r"worker 0 cannot be started \(/no/such/program.*No such file"):
        run_local(command, 1, 1, RunSettings(tmp_path / "logs"), view=PlainView(io.StringIO()))
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_ports_can_be_given(tmp_path: Path, free_port: int) -> None:
    command = [sys.executable, "-c", "import os; print(os.environ['PADDLE_PSERVERS_IP_PORT_LIST'])"]
    outcome = run_local(
        lambda role: command, 1, 1, RunSettings(tmp_path / "log"), ports=[free_port], view=PlainView(io.StringIO())
    )
    assert outcome.exit_code == 0
    assert (tmp_path / "log" / "workerlog.0").read_text() == f"127.0.0.1:{free_port}\n"


def test_a_terminal_shows_a_line_per_role(launcher) -> None:
    script = launcher.script("print('step 1\\rstep 2')\nuntil('go')\nprint('{\"auc\": 0.7}')")
    lead, terminal = pty.openpty()
    try:
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
        process = subprocess.Popen(
            [sys.executable, "-m", "sparsefleet.launch", "--server_num=1", "--worker_num=2", str(script)],
            stdin=subprocess.DEVNULL,
            stdout=terminal,
            stderr=terminal,
            cwd=launcher.folder,
            env={**environment, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        os.set_blocking(lead, False)
        shown, deadline = b"", time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline:
            if select.select([lead], [], [], 0.1)[0]:
                shown += os.read(lead, 1 << 16)
            if b"step 2" in shown:
                (launcher.folder / "go").touch()
        if process.poll() is None:
            process.kill()
        assert process.wait(10) == 0
        with contextlib.suppress(BlockingIOError):
            shown += os.read(lead, 1 << 16)
    finally:
        os.close(lead)
        os.close(terminal)
    text = shown.decode()
    assert "worker 1" in text
    assert "running" in text
    assert "step 2" in text
    assert "ended well" in text
    assert '{"auc": 0.7}' in text
    assert "\x1b[?25h" in text, "the cursor is shown again"


PROGRESS = (
    "2026-01-31 12:00:00  epoch 1/10  45%  12,345,678 rows  112,345 rows/s  loss 0.45678  auc 0.75123  "
    "window auc 0.76543  1:23:45 left"
)


@pytest.mark.parametrize(
    ("room", "shown"),
    [
        (200, PROGRESS),
        (120, PROGRESS[21:]),
        (104, PROGRESS[21:].replace("  ", " ")),
        (90, "epoch 1/10 45% 12,345,678 rows 112,345 rows/s loss 0.45678 auc 0.75123 1:23:45 left"),
        (70, "epoch 1/10 45% 112,345 rows/s loss 0.45678 auc 0.75123 1:23:45 left"),
        (60, "epoch 1/10 45% 112,345 rows/s loss 0.45678 auc 0.75123"),
    ],
)
def test_a_line_that_does_not_fit_keeps_its_figures(room: int, shown: str) -> None:
    assert shortened(PROGRESS, room) == shown


def test_figures_show_in_a_terminal_of_80_columns(tmp_path: Path) -> None:
    line = PROGRESS.replace("12,345,678", "2,345,678").replace("112,345", "12,345").replace("1/10", "1/1")
    for width, pid in ((80, False), (120, True)):
        console = Console(file=io.StringIO(), width=width, force_terminal=True, record=True)
        seen = tmp_path / f"seen-{width}"
        waits = f"import sys; sys.path.insert(0, {str(HELPERS)!r}); from role_waits import until; until({str(seen)!r})"
        command = [sys.executable, "-c", f"print({line!r}, flush=True); {waits}"]

        class Seen(LiveView):
            def update(self, processes: Sequence[RoleProcess], seen: Path = seen, console: Console = console) -> None:
                super().update(processes)
                if console.export_text(clear=False).count("auc 0.75123") >= 2:
                    seen.touch()

        outcome = run_local(lambda role, command=command: command, 1, 1, RunSettings(tmp_path), view=Seen(console))
        assert outcome.exit_code == 0
        text = console.export_text()
        assert "epoch 1/1 45% 12,345 rows/s loss 0.45678 auc 0.75123" in text
        assert (" pid " in text) == pid


def test_lines_break_between_words() -> None:
    console = Console(file=io.StringIO(), width=40, force_terminal=True, record=True)
    view = LiveView(console)
    view.say("started 1 server and 2 workers; logs in /a/folder/with/a/much/longer/name-than/there-is-room")
    view.quote(["error: a line of a log, longer than the screen", "  indented"])
    assert console.export_text().splitlines() == [
        "fleetrun: started 1 server and 2",
        "workers; logs in",
        "/a/folder/with/a/much/longer/name-than/there-is-room",
        "    error: a line of a log, longer than",
        "    the screen",
        "      indented",
    ]


def test_a_process_whose_main_thread_has_ended_before_others_is_ended_and_shown_so(tmp_path: Path) -> None:
    script = (
        "import ctypes, threading\n"
        "if me == 'worker 1': until_over('server 0'); until_over('worker 0'); sys.exit(6)\n"
        "tell(me, os.getpid())\n"
        "c = ctypes.CDLL(None)\n"
        "threading.Thread(target=c.sleep, args=(30,)).start()\n"
        "c.pthread_exit(None)\n"
    )
    status, said = failed_job(tmp_path, script, timeout=0.5)
    assert status == 6
    for role in ("server 0", "worker 0"):
        assert f"{role}: stopped, after" in said


def test_the_time_of_day_of_a_log_line_goes_first() -> None:
    assert shortened("2026-01-31 12:00:00,123 INFO server 0 listens on 127.0.0.1:5", 40) == (
        "server 0 listens on 127.0.0.1:5"
    )
    assert shortened("2026-01-31 12:00:00,123 WARNING lost worker 0", 40) == "WARNING lost worker 0"


def test_the_launcher_starts_without_torch() -> None:
    code = "import sys, sparsefleet.launch; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
