"""fleetrun with real processes: who is started with what, how a job ends, and what is left of it (nothing)."""

from __future__ import annotations

import ast
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sparsefleet.launch.interrupts import BURST_SECONDS

SHOW_ROLE = """
    from sparsefleet.fleet.roles import Role
    role = Role.from_environment()
    print(repr((role.kind, role.index, role.worker_num, role.server_endpoints, role.current_endpoint, sys.argv[1:])))
"""

# Servers stay until the workers have left a sign, as real ones stay until they are told.
UNTIL_TOLD = """
    server = os.environ["TRAINING_ROLE"] == "PSERVER"
    me = os.environ.get("PADDLE_TRAINER_ID")
    if server:
        print("listening")
        until("told")
        print("told to stop")
        sys.exit(0)
"""


def test_every_role_gets_its_environment_and_its_log(launcher) -> None:
    script = launcher.script(SHOW_ROLE)
    done = launcher.run("--server_num=2", "--worker-num", 3, script, "--epochs", 1, "--server_num", 9)
    assert done.returncode == 0, done.stderr
    logs = {name: ast.literal_eval(text) for name, text in launcher.logs().items()}
    assert sorted(logs) == ["serverlog.0", "serverlog.1", "workerlog.0", "workerlog.1", "workerlog.2"]
    endpoints = logs["workerlog.0"][3]
    assert len(set(endpoints)) == 2
    assert all(endpoint.startswith("127.0.0.1:") for endpoint in endpoints)
    handed_on = ["--epochs", "1", "--server_num", "9"]
    for index in range(2):
        assert logs[f"serverlog.{index}"] == ("server", index, 3, endpoints, endpoints[index], handed_on)
    for index in range(3):
        assert logs[f"workerlog.{index}"] == ("worker", index, 3, endpoints, None, handed_on)
    assert f"started 2 servers and 3 workers; logs in log; servers at {','.join(endpoints)}\n" in done.stderr
    assert "worker 2: ended well" in done.stderr
    assert "all done: 3 workers ended well" in done.stderr
    assert done.stdout == ""
    assert launcher.left() == []


def test_logs_of_a_larger_job_before_are_removed(launcher) -> None:
    launcher.log.mkdir()
    kept = {"serverlog", "serverlog.01", "serverlog.1.gz", "my-serverlog.1", "workerlog.x", "metrics.jsonl"}
    for name in (*kept, "serverlog.0", "serverlog.1", "serverlog.12", "workerlog.2"):
        (launcher.log / name).write_text("of before\n")
    (launcher.log / "workerlog.9").mkdir()
    done = launcher.run("--server_num=1", "--worker_num=2", launcher.script("print('now')"))
    assert done.returncode == 0, done.stderr
    assert {
        path.name for path in launcher.log.iterdir() if path.is_file() and path.read_text() == "of before\n"
    } == kept
    assert {path.name for path in launcher.log.iterdir()} == {
        *kept, "serverlog.0", "workerlog.0", "workerlog.1", "workerlog.9",
    }  # fmt: skip


def test_the_launchers_own_role_is_not_handed_on(launcher) -> None:
    script = launcher.script("print(sorted(n for n in os.environ if n.startswith('PADDLE_') or n == 'POD_IP'))")
    launcher.environment = {"PADDLE_TRAINER_ID": "9", "PADDLE_PORT": "1", "POD_IP": "10.0.0.1", "PADDLE_OTHER": "1"}
    done = launcher.run("--server_num=1", "--worker_num=1", script)
    assert done.returncode == 0, done.stderr
    common = ["PADDLE_OTHER", "PADDLE_PSERVERS_IP_PORT_LIST", "PADDLE_TRAINERS_NUM"]
    assert ast.literal_eval(launcher.logs()["serverlog.0"]) == sorted([*common, "PADDLE_PORT", "POD_IP"])
    assert ast.literal_eval(launcher.logs()["workerlog.0"]) == sorted([*common, "PADDLE_TRAINER_ID"])


def test_servers_stop_by_themselves_when_told(launcher) -> None:
    script = launcher.script(UNTIL_TOLD + "    tell('told')\n    print('{\"auc\": 0.7}')")
    done = launcher.run("--server_num=2", "--worker_num=2", script)
    assert done.returncode == 0, done.stderr
    assert launcher.logs()["serverlog.0"] == "listening\ntold to stop\n"
    assert "worker 0: ended well, after" in done.stderr
    assert '{"auc": 0.7}' in done.stderr
    assert launcher.left() == []


def test_servers_that_nobody_stops_are_ended_and_the_job_is_a_success(launcher) -> None:
    script = launcher.script(UNTIL_TOLD)
    done = launcher.run("--server_num=2", "--worker_num=1", "--timeout=0.5", script)
    assert done.returncode == 0, done.stderr
    assert "server 0, server 1 did not stop within 0.5 s of the workers' end" in done.stderr
    assert "fleet.stop_worker" in done.stderr
    assert "server 1: stopped" in done.stderr
    assert launcher.left() == []


def test_the_error_of_a_failed_worker_is_quoted_though_others_had_the_last_word(launcher) -> None:
    script = launcher.script(
        UNTIL_TOLD
        + """
    print("error: the loss became nan")
    print("a library says good-bye")
    sys.exit(1)
"""
    )
    done = launcher.run("--server_num=1", "--worker_num=1", "--timeout=1", script)
    assert re.search(r"worker 0: failed, exit status 1, after [\d.]+ s: error: the loss became nan", done.stderr)


def test_a_worker_that_fails_gives_its_status_and_its_last_lines(launcher) -> None:
    script = launcher.script(
        UNTIL_TOLD
        + """
    if me == "1":
        for line in range(50):
            print(f"line {line}")
        sys.exit(7)
    stay()
"""
    )
    began = time.monotonic()
    done = launcher.run("--server_num=1", "--worker_num=2", "--timeout=1", script)
    assert time.monotonic() - began < 40, "not as long as the other would have stayed"
    assert done.returncode == 7
    assert "worker 1 failed (exit status 7); the others may go on for 1 s" in done.stderr
    shown = done.stderr.partition("worker 1 failed first: exit status 7")[2]
    assert "the last lines of log/workerlog.1:" in shown
    lines = [line.strip() for line in shown.splitlines()]
    assert [line for line in lines if line.startswith("line ")] == [f"line {number}" for number in range(30, 50)]
    assert "worker 0: stopped" in done.stderr
    assert launcher.left() == []


def test_where_a_server_failed_first_a_workers_error_is_quoted_too(launcher) -> None:
    script = launcher.script(
        """
        if os.environ["TRAINING_ROLE"] == "PSERVER":
            print("INFO worker 0 registered")
            tell("server", os.getpid())
            sys.exit(1)
        until_over("server")
        if os.environ["PADDLE_TRAINER_ID"] == "1":
            raise ValueError("server 0 is gone")
        print("error: server 0 refused the table: there is no room for it")
        print("a library says good-bye")
        stay()
        """
    )
    done = launcher.run("--server_num=1", "--worker_num=2", "--timeout=2", script)
    assert done.returncode == 1
    shown = done.stderr.partition("server 0 failed first: exit status 1")[2]
    assert "    INFO worker 0 registered\nfleetrun: worker 1 says in log/workerlog.1:\n" in shown
    assert "    ValueError: server 0 is gone\n" in shown


def test_the_others_may_report_before_they_are_ended(launcher) -> None:
    script = launcher.script(
        UNTIL_TOLD
        + """
    if me == "0":
        tell("worker 0", os.getpid())
        sys.exit(3)
    until_over("worker 0")
    print("worker 0 is lost")
    sys.exit(4)
"""
    )
    done = launcher.run("--server_num=1", "--worker_num=2", "--timeout=20", script)
    assert done.returncode == 3
    assert "failed too: worker 1 (exit status 4)" in done.stderr
    assert launcher.logs()["workerlog.1"] == "worker 0 is lost\n"
    assert launcher.left() == []


def test_keep_going_lets_the_other_workers_finish(launcher) -> None:
    script = launcher.script(
        UNTIL_TOLD
        + """
    if me == "0":
        tell("worker 0", os.getpid())
        sys.exit(3)
    until_over("worker 0")
    time.sleep(1)  # longer than the launcher would wait, were the others not to go on
    print("finished")
    tell("told")
"""
    )
    done = launcher.run("--server_num=1", "--worker_num=2", "--timeout=0.3", "--keep-going", script)
    assert done.returncode == 3
    assert launcher.logs()["workerlog.1"] == "finished\n"
    assert launcher.logs()["serverlog.0"] == "listening\ntold to stop\n"
    assert launcher.left() == []


def test_a_server_that_is_killed_is_named_with_its_signal(launcher) -> None:
    script = launcher.script("print(os.environ['TRAINING_ROLE'], os.getpid())\nstay()")
    process = launcher.start("--server_num=2", "--worker_num=1", "--timeout=0.5", script)
    launcher.wait_until(lambda: "PSERVER" in launcher.logs().get("serverlog.1", ""))
    os.kill(int(launcher.logs()["serverlog.1"].split()[1]), signal.SIGKILL)
    error = launcher.finish(process)
    assert process.returncode == 128 + signal.SIGKILL
    assert "server 1 failed first: killed by SIGKILL" in error
    assert launcher.left() == []


# A worker that takes its time to save when it is interrupted, and sees whether its server is still there.
SAVES = """
    def alive(pid):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return "gone"
        return "there"

    def term(*_):
        print("SIGTERM")
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, term)
    if os.environ["TRAINING_ROLE"] == "PSERVER":
        tell("server", os.getpid())
    print("up")
    try:
        stay()
    except KeyboardInterrupt:
        if os.environ["TRAINING_ROLE"] == "TRAINER":
            time.sleep(0.5)  # a server that did not wait for it would have ended by now
            print("saved; server", alive(int(Path("server").read_text())))
            sys.exit(130)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_launcher_lets_workers_save_before_the_servers_end(launcher, number: signal.Signals) -> None:
    process = launcher.start("--server_num=1", "--worker_num=2", launcher.script(SAVES))
    launcher.wait_until(lambda: list(launcher.logs().values()) == ["up\n"] * 3)
    process.send_signal(number)
    error = launcher.finish(process)
    assert process.returncode == 128 + number
    may = "workers may end by themselves, and save if their script does, up to 30 s (once more: at once)"
    assert f"{number.name}: {may}\n" in error
    assert "ending all roles" not in error
    # A server may end faster than it is seen to be stopping.
    assert re.search(r"worker 1: stopping.*worker 1: stopped.*server 0: stopped", error, re.DOTALL)
    assert launcher.logs() == {
        "serverlog.0": "up\nSIGTERM\n",
        "workerlog.0": "up\nsaved; server there\n",
        "workerlog.1": "up\nsaved; server there\n",
    }
    assert launcher.left() == []


def test_where_sigint_is_ignored_workers_get_sigterm(launcher) -> None:
    launcher.prefix = ["sh", "-c", "trap '' INT; exec \"$@\"", "sh"]
    process = launcher.start("--server_num=1", "--worker_num=1", launcher.script(SAVES))
    launcher.wait_until(lambda: list(launcher.logs().values()) == ["up\n"] * 2)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    launcher.finish(process)
    assert process.returncode == 128 + signal.SIGTERM
    assert launcher.logs()["workerlog.0"] == "up\nSIGTERM\nsaved; server there\n"
    assert launcher.left() == []


def test_one_request_that_comes_as_two_signals_is_one(launcher) -> None:
    process = launcher.start("--server_num=1", "--worker_num=1", launcher.script(SAVES))
    launcher.wait_until(lambda: list(launcher.logs().values()) == ["up\n"] * 2)
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGHUP)
    launcher.finish(process)
    assert launcher.logs()["workerlog.0"] == "up\nsaved; server there\n"


def test_a_script_within_a_shell_is_interrupted_too(launcher) -> None:
    launcher.script(SAVES)
    shell = launcher.folder / "shell"
    shell.write_text(f"#!/bin/sh\n{sys.executable} -u script.py\necho the shell goes on\n")
    shell.chmod(0o755)
    process = launcher.start("--server_num=1", "--worker_num=1", "./shell")
    launcher.wait_until(lambda: list(launcher.logs().values()) == ["up\n"] * 2)
    process.send_signal(signal.SIGINT)
    launcher.finish(process)
    assert launcher.logs()["workerlog.0"].startswith("up\nsaved; server there\n")
    assert launcher.left() == []


def test_the_error_of_a_worker_that_could_not_save_is_shown(launcher) -> None:
    script = launcher.script(
        """
        print("up")
        try:
            stay()
        except KeyboardInterrupt:
            sys.exit("error: there is no room on the disk")
        """
    )
    process = launcher.start("--server_num=1", "--worker_num=1", script)
    launcher.wait_until(lambda: list(launcher.logs().values()) == ["up\n"] * 2)
    process.send_signal(signal.SIGINT)
    error = launcher.finish(process)
    assert process.returncode == 128 + signal.SIGINT
    assert re.search(r"worker 0: stopped, after [\d.]+ s: error: there is no room on the disk", error)


def test_a_killed_launcher_leaves_nothing_behind(launcher) -> None:
    script = launcher.script(
        """
        # One child in the role's session, one in its own, both deaf to SIGTERM. One write a line: print's line end
        # may be a write of its own, and both write to the same file.
        deaf = "import os, signal; signal.signal(15, signal.SIG_IGN); os.write(1, b'deaf\\\\n'); signal.pause()"
        subprocess.Popen([sys.executable, "-c", deaf])
        subprocess.Popen([sys.executable, "-c", deaf], start_new_session=True)
        stay()
        """
    )
    process = launcher.start("--server_num=1", "--worker_num=1", "--grace=0.5", script)
    launcher.wait_until(lambda: list(launcher.logs().values()) == ["deaf\ndeaf\n"] * 2)
    assert len(launcher.left()) == 1 + 1 + 2 * 3
    process.kill()
    launcher.wait_until(lambda: launcher.left() == [])


STUBBORN = """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    print("up")
    stay()
"""


def test_a_role_that_ignores_signals_is_killed_after_the_timeout_and_the_grace(launcher) -> None:
    script = launcher.script(STUBBORN)
    process = launcher.start("--server_num=1", "--worker_num=1", "--timeout=0.3", "--grace=0.5", script)
    launcher.wait_until(lambda: list(launcher.logs().values()) == ["up\n"] * 2)
    process.send_signal(signal.SIGINT)
    error = launcher.finish(process)
    assert process.returncode == 128 + signal.SIGINT
    assert "worker 0 did not end within 0.3 s; ending all roles (once more: at once)" in error
    assert launcher.left() == []


def test_a_second_ctrl_c_does_not_wait_for_workers_and_a_third_not_for_the_grace(launcher) -> None:
    script = launcher.script(STUBBORN)
    process = launcher.start("--server_num=1", "--worker_num=1", "--timeout=60", "--grace=60", script)
    launcher.wait_until(lambda: list(launcher.logs().values()) == ["up\n"] * 2)
    for answer in ("SIGINT: workers may end by themselves", "SIGINT: ending all roles"):
        process.send_signal(signal.SIGINT)
        launcher.wait_for(process, answer)
        time.sleep(BURST_SECONDS + 0.1)  # signals that come faster are one request
    process.send_signal(signal.SIGINT)
    error = launcher.finish(process)
    assert process.returncode == 128 + signal.SIGINT
    assert "SIGINT: workers may end by themselves, and save if their script does, up to 60 s" in error
    assert "SIGINT: ending all roles (once more: at once)" in error
    assert launcher.left() == []


def test_where_no_worker_is_here_servers_end_at_once(launcher, free_port: int) -> None:
    lists = ("--servers", f"127.0.0.1:{free_port}", "--workers", "127.0.0.2")
    process = launcher.start(*lists, "--host_ip=127.0.0.1", launcher.script(SAVES))
    launcher.wait_until(lambda: launcher.logs() == {"serverlog.0": "up\n"})
    process.send_signal(signal.SIGINT)
    error = launcher.finish(process)
    assert process.returncode == 128 + signal.SIGINT
    assert "SIGINT: ending all roles (once more: at once)" in error
    assert launcher.logs() == {"serverlog.0": "up\nSIGTERM\n"}


def test_a_role_may_wind_up_and_keeps_its_children_while_it_does(launcher) -> None:
    script = launcher.script(
        """
        child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
        def wind_up(*_):
            time.sleep(0.3)  # a child that was told to end as well would be gone by now
            print("child alive" if child.poll() is None else "child gone")
            sys.exit(0)
        signal.signal(signal.SIGTERM, wind_up)
        print("up")
        stay()
        """
    )
    launcher.prefix = ["sh", "-c", "trap '' INT; exec \"$@\"", "sh"]
    process = launcher.start("--server_num=1", "--worker_num=1", script)
    launcher.wait_until(lambda: list(launcher.logs().values()) == ["up\n"] * 2)
    process.send_signal(signal.SIGTERM)
    launcher.finish(process)
    assert launcher.logs() == {"serverlog.0": "up\nchild alive\n", "workerlog.0": "up\nchild alive\n"}
    assert launcher.left() == []


def test_a_stopped_worker_is_killed_once_its_servers_have_ended_and_a_busy_one_is_not(launcher) -> None:
    script = launcher.script(
        UNTIL_TOLD
        + """
    if me == "1":
        tell("worker 1", os.getpid())
        os.kill(os.getpid(), signal.SIGSTOP)
    tell("told")
    until_over("worker 1")
    import time; time.sleep(1.5)  # longer than the launcher takes between two looks: it should see that end first
    print("finished")
"""
    )
    done = launcher.run("--server_num=2", "--worker_num=2", "--timeout=1", script)
    assert done.returncode == 128 + signal.SIGKILL
    assert done.stderr.count("worker 1 stands stopped (SIGSTOP), and its servers have ended; killing it\n") == 1
    assert "worker 1 failed (killed by SIGKILL); the others go on without it" in done.stderr
    assert "the job went on without worker 1: worker 0 ended well" in done.stderr
    assert launcher.logs()["workerlog.0"] == "finished\n"
    assert launcher.left() == []


def test_a_stopped_worker_that_goes_on_in_time_is_left_alone(launcher) -> None:
    script = launcher.script(
        UNTIL_TOLD
        + """
    tell("told")
    print(os.getpid())
    os.kill(os.getpid(), signal.SIGSTOP)
    print("finished")
"""
    )
    process = launcher.start("--server_num=1", "--worker_num=1", "--timeout=5", script)
    launcher.wait_for(process, "server 0: ended well")
    time.sleep(1)  # it may stand stopped for some seconds
    os.kill(int(launcher.logs()["workerlog.0"]), signal.SIGCONT)
    error = launcher.finish(process)
    assert process.returncode == 0, error


def test_children_that_outlive_a_good_job_are_ended_too(launcher) -> None:
    script = launcher.script("subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'])")
    done = launcher.run("--server_num=1", "--worker_num=1", script)
    assert done.returncode == 0, done.stderr
    assert launcher.left() == []


def test_nohup_is_respected(launcher) -> None:
    script = launcher.script("print('up')\nuntil('go')\nprint('done')")
    launcher.prefix = ["sh", "-c", "trap '' HUP; exec \"$@\"", "sh"]
    process = launcher.start("--server_num=1", "--worker_num=1", script)
    launcher.wait_until(lambda: list(launcher.logs().values()) == ["up\n"] * 2)
    process.send_signal(signal.SIGHUP)
    ignored = re.search(r"SigIgn:\s*(\w+)", Path(f"/proc/{process.pid}/status").read_text())
    assert ignored
    assert int(ignored[1], 16) >> (signal.SIGHUP - 1) & 1
    (launcher.folder / "go").touch()
    error = launcher.finish(process)
    assert process.returncode == 0, error
    assert launcher.logs()["workerlog.0"] == "up\ndone\n"
    assert launcher.left() == []


def test_a_job_within_a_job_ends_with_the_outer_one(launcher) -> None:
    launcher.script("Path('inner-' + os.environ['TRAINING_ROLE']).touch()\nstay()", "inner.py")
    outer = launcher.script(
        """
        if os.environ["TRAINING_ROLE"] == "TRAINER":
            options = ["--server_num=1", "--worker_num=1", "--log_dir=inner-log", "inner.py"]
            os.execv(sys.executable, [sys.executable, "-m", "sparsefleet.launch", *options])
        """
    )
    process = launcher.start("--server_num=1", "--worker_num=1", "--grace=2", outer)
    launcher.wait_until(lambda: len(list(launcher.folder.glob("inner-[PT]*"))) == 2)
    process.kill()
    launcher.wait_until(lambda: launcher.left() == [])


def test_a_module_and_an_executable_can_be_launched(launcher) -> None:
    launcher.script("print('module', sys.argv[1:])", "some_module.py")
    done = launcher.run("--server_num=1", "--worker_num=1", "-m", "some_module", "-m", "x")
    assert done.returncode == 0, done.stderr
    assert launcher.logs()["workerlog.0"] == "module ['-m', 'x']\n"

    shell = launcher.folder / "shell"
    shell.write_text("#!/bin/sh\necho shell $TRAINING_ROLE $1\n")
    shell.chmod(0o755)
    done = launcher.run("--server_num=1", "--worker_num=1", "./shell", "x")
    assert done.returncode == 0, done.stderr
    assert launcher.logs()["workerlog.0"] == "shell TRAINER x\n"

    tool = launcher.folder / "tool"
    tool.write_text("#!/nowhere/bin/python\nimport sys\nprint('tool', sys.argv[1:])\n")
    tool.chmod(0o755)
    done = launcher.run("--server_num=1", "--worker_num=1", "tool", "x")
    assert done.returncode == 0, done.stderr
    assert launcher.logs()["workerlog.0"] == "tool ['x']\n"


HOSTS = ("--servers", "127.0.0.1:0,127.0.0.2:0", "--workers", "127.0.0.1,127.0.0.2:6170,127.0.0.2")


def test_several_hosts_start_only_their_own_roles(launcher, free_port: int) -> None:
    script = launcher.script(SHOW_ROLE)
    lists = [part.replace(":0", f":{free_port}") for part in HOSTS]
    endpoints = (f"127.0.0.1:{free_port}", f"127.0.0.2:{free_port}")
    for host, workers in (("127.0.0.1", [0]), ("127.0.0.2", [1, 2])):
        done = launcher.run(*lists, "--host-ip", host, "--log_dir", f"log-{host}", script)
        assert done.returncode == 0, done.stderr
        logs = {path.name: ast.literal_eval(path.read_text()) for path in (launcher.folder / f"log-{host}").glob("*")}
        server = endpoints.index(f"{host}:{free_port}")
        assert logs.pop(f"serverlog.{server}") == ("server", server, 3, endpoints, endpoints[server], [])
        assert logs == {f"workerlog.{index}": ("worker", index, 3, endpoints, None, []) for index in workers}
        assert f"{len(workers)} worker{'s' * (len(workers) > 1)} of 3" in done.stderr


def test_on_several_hosts_servers_wait_for_the_workers_elsewhere(launcher, free_port: int) -> None:
    script = launcher.script(UNTIL_TOLD)
    lists = [part.replace(":0", f":{free_port}") for part in HOSTS]
    process = launcher.start(*lists, "--host_ip=127.0.0.1", "--timeout=0.1", script)
    launcher.wait_for(process, "worker 0: ended well")
    time.sleep(0.5)  # longer than the time-out
    assert process.poll() is None
    (launcher.folder / "told").touch()
    error = launcher.finish(process)
    assert process.returncode == 0, error
    assert "server 0: ended well" in error


def test_own_addresses_are_found_out(launcher, free_port: int) -> None:
    script = launcher.script(SHOW_ROLE)
    # 203.0.113.0/24 is set aside for documentation: no host has such an address.
    done = launcher.run(
        "--servers", f"127.0.0.1:{free_port},203.0.113.1:5", "--workers", "203.0.113.1,127.0.0.1", script
    )
    assert done.returncode == 0, done.stderr
    assert sorted(launcher.logs()) == ["serverlog.0", "workerlog.1"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--server_num=1", "script.py"], "--server_num and --worker_num belong together"),
        (["--server_num=0", "--worker_num=1", "script.py"], "server_num=0 must be at least 1"),
        (["script.py"], "give either --server_num and --worker_num"),
        (["--server_num=1", "--worker_num=1"], "there is no script to run; give it after the options: fleetrun --ser"),
        (["--server_num=1", "--worker_num=1", "--servers=a:1", "script.py"], "and not both"),
        (["--servers=127.0.0.1:5", "script.py"], "--servers and --workers belong together"),
        (["--servers=127.0.0.1", "--workers=127.0.0.1", "script.py"], "--servers: '127.0.0.1' is not an address"),
        (
            ["--servers=203.0.113.1:5", "--workers=203.0.113.2", "script.py"],
            "nothing to start here: no address of this host",
        ),
        (["--servers=127.0.0.1:5", "--workers=127.0.0.1", "--host-ip=10.9.9.9", "script.py"], "10.9.9.9 is not among"),
        (["--servers=127.0.0.1:5", "--workers=a,,b", "script.py"], "--workers='a,,b' has an empty"),
        (["--server_num=2", "--worker_num=1", "--ports=5", "script.py"], "gives 1 different ports; 2 servers need 2"),
        (["--server_num=1", "--worker_num=1", "--ports=x", "script.py"], "--ports='x' is not a list of ports"),
        (["--server_num=1", "--worker_num=1", "--timeout=-1", "script.py"], "timeout=-1.0 must be"),
        (["--server_num=1", "--worker_num=1", "missing.py"], "'missing.py' is neither a file here nor a command"),
        (
            ["--server_num=1", "--worker_num=1", "--log_dir=script.py", "script.py"],
            "log_dir='script.py' cannot be used: Not a directory",
        ),
        (["--server_num=one", "--worker_num=1", "script.py"], "invalid int value: 'one'"),
        (["--server_num=1", "--worker_num=1", "--cuts=x", "script.py"], "cuts is for jobs that heal: say how many"),
        (
            ["--server_num=1", "--worker_num=1", "--restarts=1", "--cuts=ftp://there/job", "script.py"],
            "ftp://there/job cannot hold the job's cuts: cannot open 'ftp://there/job'",
        ),
        (
            ["--server_num=1", "--worker_num=1", "--restarts=1", "--cuts=script.py", "script.py"],
            "script.py cannot hold the job's cuts: cannot write",
        ),
    ],
)
def test_bad_arguments_are_refused_before_anything_starts(launcher, arguments: list[str], named: str) -> None:
    launcher.script("print('started')")
    done = launcher.run(*arguments)
    assert done.returncode == 2
    assert named in done.stderr
    assert "Traceback" not in done.stderr
    assert launcher.logs() == {}
    assert launcher.left() == []


def test_the_help_fits_into_80_columns() -> None:
    environment = {**os.environ, "COLUMNS": "80", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "sparsefleet.launch", "--help"]
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60).stdout
    assert "--worker_num N" in shown
    assert max(map(len, shown.splitlines())) < 80
