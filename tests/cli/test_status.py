"""`sparsefleet status` against real servers: what it prints, and what it says of servers that do not answer."""

from __future__ import annotations

import io
import json
import os
import platform
import signal
import socket
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from server_processes import Servers, servers
from typer.testing import CliRunner
from waiting import wait_until

from sparsefleet.cli import status as status_module
from sparsefleet.cli.app import app
from sparsefleet.cli.status import Report, view
from sparsefleet.core.initializer import Constant
from sparsefleet.optim import SGD
from sparsefleet.store.remote import RemoteStore
from sparsefleet.table.spec import TableSpec


def status(*words: object) -> Any:
    return CliRunner().invoke(app, ["status", *map(str, words)])


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[Servers, RemoteStore]]:
    """Two servers that trainer 0 of 2 works with."""
    with servers() as made:
        made.start(2)
        store = made.store(worker=0, workers=2, heartbeat=0.1)
        store.create_table(TableSpec("ads", 4, SGD(), Constant(0.0), 0))
        store.create_dense("dense", np.zeros(10, np.float32), SGD(), [("w", (10,))])
        keys = np.arange(1000, dtype=np.uint64)
        store.pull("ads", keys).wait()
        store.push("ads", keys, np.ones((1000, 4), np.float32)).wait()
        store.crew.report({"doing": "training", "epoch": 0, "step": 1234, "rows_per_s": 5678.0, "staleness": 3})
        wait_until(
            lambda: all("step" in server["workers"]["0"] for server in store.stats()["servers"]), 20, "a sign of life"
        )
        yield made, store


def test_tables_calls_and_trainers_are_shown(running: tuple[Servers, RemoteStore]) -> None:
    made, _ = running
    done = status(",".join(made.endpoints))
    assert done.exit_code == 0, done.output
    lines = [line.split() for line in done.stdout.splitlines()]
    calls = {"pull", "push"}
    rows = [int(line[line.index("ads") + 1]) for line in lines if "ads" in line and not calls & set(line)]
    assert sum(rows) == 1000
    assert len(rows) == 2, "one line per server"
    for endpoint in made.endpoints:
        assert endpoint in done.stdout
    assert any(line[:2] == ["pull", "ads"] or line[1:3] == ["pull", "ads"] for line in lines)
    assert "p99" in done.stdout
    (trainer,) = (line for line in lines if "training" in line)
    assert trainer[:6] == ["0", "training", "1", "1,234", "5,678", "3"]
    assert trainer[8:] == ["ago", str(os.getpid()), "on", platform.node()]
    assert "misses: keys that were scored and have no row" in done.stdout


def big(index: int) -> dict[str, Any]:
    """What a server of a large job says; every figure another one."""
    call = {"total": 98_765_430 + index, "per_s": 1230.0 + index, "rows_per_s": 9_876_540.0 + index}
    call |= {"ms": {"p50": 10.21 + index, "p90": 123.45 + index, "p99": 2345.67 + index}}
    table = {"rows": 1_234_567_890 + index, "memory_bytes": 236e9, "step": 9_876_540 + index, "misses": 7_654_320}
    return {
        "index": index,
        "uptime_s": 987_654,
        "tables": {"SparseFeatFactors": table},
        "dense": {"dense": {"values": 215_601, "memory_bytes": 2.6e6, "step": 7_654_321}},
        "calls": {"pull SparseFeatFactors": call},
        "queues": {"under_way": 12, "held_by_cut": 30, "waiting_in_round": 4},
        "last_checkpoint": "hdfs://a-long-name-of-a-host/" + "folder/" * 10 + "step-00000120",
        "workers": {
            "17": {
                **{"doing": "waiting for the others", "epoch": 11, "step": 8_765_432, "rows_per_s": 123_456.0},
                **{"staleness": 1234, "state": "present", "last_seen_s": 12.3},
                "about": "process 1234567 on worker-17.a-long-name-of-a-cluster.internal",
            }
        },
    }


@pytest.mark.parametrize("width", [80, 120])
def test_no_figure_is_lost_in_a_narrow_terminal(width: int) -> None:
    out = io.StringIO()
    terminal = Console(file=out, width=width, force_terminal=True, color_system=None)
    terminal.print(view(Report({f"parameter-server-{index}.cluster:36011": big(index) for index in (0, 1)}, {})))
    text = out.getvalue()
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    words = set(text.split())
    for index in (0, 1):
        assert {f"1,234,567,89{index}", f"9,876,54{index}", f"1,23{index}", f"98,765,43{index}"} <= words
        assert {f"{10 + index}.21", f"{123 + index}.45", f"{2345 + index}.67"} <= words
    assert {"7,654,320", "215,601", "236", "274:20:54", "12", "34"} <= words
    assert {"17", "8,765,432", "123,456", "1,234", "12.3"} <= words
    squeezed = "".join(text.split())
    assert "step-00000120" in squeezed


def test_a_speed_that_is_not_known_yet_is_a_dash() -> None:
    out, server = io.StringIO(), big(0)
    server["workers"]["17"]["rows_per_s"] = None
    Console(file=out, width=120).print(view(Report({"a:1": server}, {})))
    (trainer,) = (line.split() for line in out.getvalue().splitlines() if "8,765,432" in line)
    assert trainer[trainer.index("8,765,432") + 1] == "-"


def test_json_holds_everything(running: tuple[Servers, RemoteStore]) -> None:
    made, _ = running
    report = json.loads(status(",".join(made.endpoints), "--json").stdout)
    assert [server["endpoint"] for server in report["servers"]] == made.endpoints
    assert sum(server["tables"]["ads"]["rows"] for server in report["servers"]) == 1000
    assert report["servers"][0]["calls"]["push ads"]["ms"]["p99"] > 0
    assert set(report["servers"][0]["queues"]) >= {"under_way", "held_by_cut", "waiting_in_round"}
    assert report["trainers"]["0"]["step"] == 1234
    assert report["trainers"]["0"]["staleness"] == 3
    assert report["trainers"]["0"]["last_seen_s"] < 5


def test_looking_makes_nobody_a_trainer(running: tuple[Servers, RemoteStore]) -> None:
    made, store = running
    status(",".join(made.endpoints))
    assert list(store.stats()["workers"]) == ["0"]


def test_trainers_that_have_not_come_are_shown() -> None:
    with servers() as made:
        made.start(1).store(0, 3)
        shown = status(made.endpoints[0]).stdout
    assert [line.split()[:4] for line in shown.splitlines() if "not there yet" in line] == [
        [worker, "not", "there", "yet"] for worker in ("1", "2")
    ]


def test_a_server_that_is_not_there(running: tuple[Servers, RemoteStore]) -> None:
    made, _ = running
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        gone = f"127.0.0.1:{held.getsockname()[1]}"
        done = status(f"{made.endpoints[0]},{gone}", "--timeout", 2)
    assert done.exit_code == 1
    assert f"error: server 1 ({gone}) cannot be reached: is the job running" in " ".join(done.stderr.split())
    assert made.endpoints[0] in done.stdout, "the others are shown all the same"


def test_a_server_that_stands_still() -> None:
    with servers() as made:
        made.start(1)
        made.processes[0].send_signal(signal.SIGSTOP)
        began = time.monotonic()
        done = status(made.endpoints[0], "--timeout", 1, "--json")
        assert time.monotonic() - began < 10
        assert done.exit_code == 1
        assert "did not answer within 1 s" in " ".join(done.stderr.split())
        (server,) = json.loads(done.stdout)["servers"]
        assert "did not answer" in server["error"]


def test_the_token_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    with servers() as made:
        made.start(1, env={"SPARSEFLEET_TOKEN": "secret"})
        refused = status(made.endpoints[0])
        assert refused.exit_code == 1
        assert "SPARSEFLEET_TOKEN" in refused.stderr
        monkeypatch.setenv("SPARSEFLEET_TOKEN", "secret")
        done = status(made.endpoints[0])
        assert done.exit_code == 0
        assert "none has come yet" in done.stdout


def test_watching_looks_again_until_interrupted(running: tuple[Servers, RemoteStore], shell: Any) -> None:
    made, store = running
    process = shell.start("status", ",".join(made.endpoints), "--watch", 0.1, "--json")
    steps = [json.loads(process.stdout.readline())["trainers"]["0"]["step"]]
    store.crew.report({"step": 2000})
    while steps[-1] != 2000 and len(steps) < 100:
        steps.append(json.loads(process.stdout.readline())["trainers"]["0"]["step"])
    assert steps[-1] == 2000
    store.crew.report({"doing": "training", "epoch": 0, "step": 1234, "rows_per_s": 5678.0, "staleness": 3})
    process.send_signal(signal.SIGINT)
    assert shell.finish(process, 20).returncode == 130, "as every command that is interrupted"
    assert steps[0] == 1234


def test_a_watch_ends_with_the_servers_and_tells_an_error_once(shell: Any) -> None:
    with servers() as made:
        made.start(2)
        process = shell.start("status", ",".join(made.endpoints), "--watch", 0.1, "--json")
        assert json.loads(process.stdout.readline())["servers"]
        made.processes[1].kill()
        while "error" not in process.stdout.readline():
            assert process.poll() is None
        for _ in range(5):
            assert "error" in process.stdout.readline()
        made.processes[0].kill()
        done = shell.finish(process, 30)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(f"error: server 1 ({made.endpoints[1]}) cannot be reached") == 1
    assert "no server is left: the job has ended\n" in done.stderr


def test_a_watch_on_a_small_screen_shows_the_trainers_and_does_not_scroll(
    running: tuple[Servers, RemoteStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _ = running
    shown = Console(file=io.StringIO(), width=80, height=14, force_terminal=True, highlight=False)
    monkeypatch.setattr(status_module, "results", lambda: shown)
    looks = iter([0, 0])

    def leave(seconds: float) -> None:
        if next(looks, None) is None:
            raise KeyboardInterrupt

    monkeypatch.setattr(status_module, "time", SimpleNamespace(sleep=leave))
    assert status(",".join(made.endpoints), "--watch", 1).exit_code == 130
    first = shown.file.getvalue().split("\x1b[2K")[0]
    assert first.count("\n") < 14
    assert "1,234" in first


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nonsense"], "'nonsense' is not an address; write host:port"),
        (["127.0.0.1:1,127.0.0.1:1"], "more than once"),
        (["127.0.0.1:1", "--watch", "0"], "--watch 0 must be above 0"),
    ],
)
def test_bad_arguments(words: list[str], message: str) -> None:
    done = status(*words)
    assert done.exit_code == 1
    assert message in " ".join(done.stderr.split())
