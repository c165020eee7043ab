"""`sparsefleet serve --log-requests` and `sparsefleet replay`: the circle from a server to its log and back."""

from __future__ import annotations

import json
import socketserver
import subprocess
import sys
import threading
import time

import pytest
from http_server import SOURCES, serving
from waiting import wait_until

from sparsefleet.core.errors import ConfigError
from sparsefleet.serving.metrics import Metrics
from sparsefleet.serving.request_log import QUEUE_BYTES, RequestLog
from sparsefleet.verify.http_client import HttpClient, PlaceError


@pytest.fixture(scope="module")
def logged(trained, tmp_path_factory):
    """A log of one server's requests of every kind, written when it ended."""
    path = tmp_path_factory.mktemp("log") / "requests.jsonl"
    rows = trained.rows
    with serving(trained.bundles[0], "--log-requests", str(path)) as server:
        for start in range(0, 200, 10):
            assert server.post("/v1/predict", {"rows": rows[start : start + 10]}).status_code == 200
        context = {name: rows[0][name] for name in ("I1", "I2", "C26")}
        rest = [{name: value for name, value in row.items() if name not in context} for row in rows[:30]]
        server.post("/v1/predict", {"context": context, "candidates": rest})
        pretty = json.dumps({"rows": [{**rows[0], "C1": "größer\n"}]}, indent=2, ensure_ascii=False).encode()
        server.client.post("/v1/predict", content=pretty)
        server.post("/v1/predict", {"rows": [{"I1": 3}]})  # refused, so not logged
        assert server.terminate() == 0
    return path


def test_a_log_holds_what_was_asked_and_answered(trained, logged):
    lines = [json.loads(line) for line in logged.read_text().splitlines()]
    assert len(lines) == 22
    assert lines[3]["request"] == {"rows": trained.rows[30:40]}
    assert lines[3]["version"] == "v1"
    assert len(lines[3]["scores"]) == 10
    assert abs(lines[3]["time"] - time.time()) < 600
    assert lines[-1]["request"]["rows"][0]["C1"] == "größer\n"


def test_the_same_model_gives_the_logged_scores(trained, logged, cli):
    with serving(trained.bundles[0]) as server:
        done = cli("replay", logged, "--url", server.url, "--json")
        assert done.exit_code == 0, done.output
        report = json.loads(done.stdout)
        assert (report["requests"], report["failed"], report["bad_lines"]) == (22, 0, 0)
        assert report["differences"]["count"] == 231
        assert report["differences"]["max"] < 1e-6
        assert report["versions"] == [{"logged": "v1", "answered": "v1", "requests": 22}]
        few = cli("replay", logged, "--url", server.url, "--json", "--limit", 5, "--concurrency", 1)
        assert json.loads(few.stdout)["requests"] == 5
        assert "equal to 1e-06" in cli("replay", logged, "--url", server.url).stdout


def test_a_replay_leaves_the_servers_log_alone(trained, cli, tmp_path):
    """Its requests would push out the originals: a log has a bound."""
    log = tmp_path / "log"
    with serving(trained.bundles[0], "--log-requests", str(log), "--log-max-bytes", "300000") as server:
        for start in range(0, 100, 10):
            server.post("/v1/predict", {"rows": trained.rows[start : start + 10]})
        server.post("/v1/predict", {"rows": trained.rows[:150]})  # a long one goes another way
        wait_until(lambda: log.exists() and log.read_text().count("\n") == 11, 20, "the log")
        before = log.read_bytes()
        done = cli("replay", log, "--url", server.url, "--json")
        assert (done.exit_code, json.loads(done.stdout)["requests"]) == (0, 11)
        server.post("/v1/predict", {"rows": trained.rows[:1]})
        wait_until(lambda: log.read_text().count("\n") == 12, 20, "the next request in the log")
        assert log.read_bytes().startswith(before)
        assert not log.with_name("log.1").exists()


def test_a_server_that_asks_for_a_token_gets_it_from_the_variable(trained, logged, cli, monkeypatch):
    with serving(trained.bundles[0], env={"SPARSEFLEET_PREDICT_TOKEN": "s3same"}) as server:
        refused = cli("replay", logged, "--url", server.url)
        assert refused.exit_code == 1
        assert "set the variable SPARSEFLEET_PREDICT_TOKEN" in " ".join(refused.output.split())
        monkeypatch.setenv("SPARSEFLEET_PREDICT_TOKEN", "s3same")
        assert cli("replay", logged, "--url", server.url).exit_code == 0
        verified = cli(
            *("verify", "--checkpoint", trained.checkpoint(1), "--bundle", trained.bundles[0], "--url", server.url),
            *("--data", trained.data / "test", "--rows", "20"),
        )
        assert verified.exit_code == 0, verified.output


def test_another_model_does_not(trained, logged, cli):
    with serving(trained.bundles[1]) as server:
        done = cli("replay", logged, "--url", server.url, "--json")
        shown = cli("replay", logged, "--url", server.url)
    assert done.exit_code == shown.exit_code == 1
    report = json.loads(done.stdout)
    assert report["beyond_tolerance"] == 231
    assert report["versions"] == [{"logged": "v1", "answered": "v2", "requests": 22}]
    apart = [row["difference"] for row in report["worst"]]
    assert len(apart) == 10
    assert apart == sorted(apart, reverse=True)
    assert apart[0] == report["differences"]["max"]
    for row in report["worst"]:
        assert abs(row["logged"] - row["answered"]) == pytest.approx(row["difference"])
    plain = next(row for row in report["worst"] if row["line"] <= 20)
    assert plain["input"] == trained.rows[(plain["line"] - 1) * 10 + plain["row"]]
    assert "they differ" in shown.stdout
    assert "22 requests of version v1 were answered by v2" in shown.stdout


def test_one_changed_score_is_found(trained, logged, cli, tmp_path):
    lines = [json.loads(line) for line in logged.read_text().splitlines()]
    lines[20]["scores"][7] += 0.01
    (tmp_path / "log").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with serving(trained.bundles[0]) as server:
        done = cli("replay", tmp_path / "log", "--url", server.url, "--json")
        loose = cli("replay", tmp_path / "log", "--url", server.url, "--tolerance", 0.02)
    assert done.exit_code == 1
    assert loose.exit_code == 0
    worst = json.loads(done.stdout)["worst"][0]
    assert (worst["line"], worst["row"]) == (21, 7)
    assert worst["input"]["C26"] == trained.rows[0]["C26"], "the context's fields and the candidate's"
    assert worst["input"]["C1"] == trained.rows[7]["C1"]


def test_bad_lines_are_told_by_their_number(trained, logged, cli, tmp_path):
    good = logged.read_text().splitlines()[0]
    bad = [
        "junk",
        "[]",
        '{"scores": [0.5]}',
        '{"request": {"rows": []}, "scores": [NaN]}',
        '{"request": {}, "scores": "x"}',
        '{"request": {}, "scores": [], "version": 3}',
    ]
    (tmp_path / "log").write_text("\n".join([good, "", *bad, good, good[:40]]))
    with serving(trained.bundles[0]) as server:
        done = cli("replay", tmp_path / "log", "--url", server.url, "--json")
        assert done.exit_code == 0, done.output
        report = json.loads(done.stdout)
        assert (report["requests"], report["bad_lines"]) == (2, 7)
        assert [entry["line"] for entry in report["bad_line_examples"]] == [3, 4, 5, 6, 7, 8, 10]
        assert "log, line 3: not JSON" in done.stderr
        (tmp_path / "log").write_text("junk\n")
        done = cli("replay", tmp_path / "log", "--url", server.url)
        assert done.exit_code == 2
        assert "no logged request in it; 1 are bad" in done.stderr


def test_requests_that_are_refused_now_fail(trained, logged, cli, tmp_path):
    line = json.loads(logged.read_text().splitlines()[0])
    del line["request"]["rows"][0]["I1"]
    (tmp_path / "log").write_text(json.dumps(line) + "\n" + logged.read_text())
    with serving(trained.bundles[0]) as server:
        done = cli("replay", tmp_path / "log", "--url", server.url, "--json")
    assert done.exit_code == 1
    report = json.loads(done.stdout)
    assert (report["failed"], report["requests"], report["beyond_tolerance"]) == (1, 23, 0)
    assert "answered 400" in report["failures"][0]["reason"]
    assert "line 1: " in done.stderr


def test_a_server_that_does_not_answer_in_time(logged, cli):
    class Silent(socketserver.BaseRequestHandler):
        def handle(self):
            if self.request.recv(1000).startswith(b"GET /healthz"):
                self.request.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")
            else:
                released.wait(20)

    released = threading.Event()
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Silent) as silent:
        silent.daemon_threads = True
        thread = threading.Thread(target=silent.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{silent.server_address[1]}"
        done = cli("replay", logged, "--url", url, "--timeout", 0.3, "--limit", 4, "--json")
        released.set()
        silent.shutdown()
        thread.join()
    assert done.exit_code == 1
    assert json.loads(done.stdout)["failed"] == 4
    assert "no answer in time" in done.stderr


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"log": "none"}, "cannot read the log"),
        ({"--url": "ftp://x"}, "is not the address of a server"),
        ({"--concurrency": 0}, "concurrency=0"),
        ({"--timeout": 0}, "timeout=0"),
        ({"--limit": 0}, "limit=0"),
    ],
)
def test_what_cannot_be_replayed(trained, logged, cli, change, message):
    with serving(trained.bundles[0]) as server:
        given = {"log": logged, "--url": server.url, **change}
        done = cli("replay", given.pop("log"), *(word for pair in given.items() for word in pair))
    assert done.exit_code == 2
    assert message in done.stderr


@pytest.fixture
def trickle():
    """A server whose answer never ends, a byte at a time."""
    over = threading.Event()

    class Handler(socketserver.BaseRequestHandler):
        def handle(self):
            self.request.recv(1 << 16)
            self.request.sendall(b"HTTP/1.1 200 OK\r\nx-long: ")
            while not over.wait(0.05):
                self.request.sendall(b"a")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        over.set()
        server.shutdown()


def test_an_answer_that_trickles_in_is_given_up(trickle):
    """Every byte comes in time; the answer as a whole does not."""
    started = time.monotonic()
    with pytest.raises(PlaceError, match="no answer in time"):
        HttpClient(trickle, 0.5).get("/healthz")
    assert time.monotonic() - started < 10


def test_a_log_has_a_bound(tmp_path):
    metrics = Metrics()
    log = RequestLog(str(tmp_path / "log"), 1000, metrics, print)
    for number in range(50):
        log.add(b'{"version": "v1", "scores": [0.5]}', b'{"rows": [%d]}' % number)
    log.close()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["log", "log.1"]
    assert all(path.stat().st_size <= 1000 for path in tmp_path.iterdir())
    last = (tmp_path / "log").read_text().splitlines()[-1]
    assert json.loads(last)["request"] == {"rows": [49]}
    assert 'logged_requests_total{outcome="written"} 50' in metrics.text("v1", 0, {})


def test_a_log_never_holds_up_a_request(tmp_path):
    """Lines that the disk cannot take are left out and counted, and told once."""
    metrics, told = Metrics(), []
    log = RequestLog(str(tmp_path / "log"), 1 << 40, metrics, told.append)
    log.add(b"{}", b'{"rows": "' + b"x" * QUEUE_BYTES + b'"}')
    log.add(b"{}", '{"rows": []}'.encode("utf-16"))
    log._file.close()  # as if the disk had gone
    log._file = open("/dev/full", "ab", buffering=0)  # noqa: SIM115
    for dropped in range(3, 6):
        log.add(b"{}", b'{"rows": []}')
        told_of = f'logged_requests_total{{outcome="dropped"}} {dropped}'
        wait_until(lambda told_of=told_of: told_of in metrics.text("v1", 0, {}), 20, told_of)
    log.close()
    assert 'logged_requests_total{outcome="dropped"} 5' in metrics.text("v1", 0, {})
    assert len(told) == 1
    assert "cannot log requests" in told[0]
    with pytest.raises(ConfigError, match="cannot log requests to"):
        RequestLog(str(tmp_path / "none" / "log"), 1, metrics, print)


def test_replay_needs_no_torch(logged):
    code = "import sys; sys.modules['torch'] = None; from sparsefleet.cli import main; main()"
    words = ["replay", str(logged), "--url", "http://127.0.0.1:1"]
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PYTHONPATH": str(SOURCES)},
    )
    assert done.returncode == 2, done.stderr
    assert "cannot be reached" in done.stderr
