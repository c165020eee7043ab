"""A server on a bad day: rows gone or changed, clients that hold connections, requests that come too late, the end."""

import concurrent.futures
import contextlib
import functools
import http.client
import itertools
import json
import os
import re
import resource
import shutil
import signal
import socket
import threading
import time
import zlib
from datetime import datetime

import httpx
import numpy as np
import pytest
from certificates import certificate_and_key
from http_server import Served, serving
from waiting import wait_until

from sparsefleet.export import Bundle
from sparsefleet.serving import Predictor
from sparsefleet.serving.connections import Connections
from sparsefleet.serving.redis import RedisAddress, publish

ROWS = "sparse/SparseFeatFactors.rows"


def published(store, path):
    publish(Bundle.open(path), RedisAddress.parse(store.url))


def not_ready(server):
    answer = server.client.get("/readyz")
    return answer.json()["error"] if answer.status_code == 503 else ""


def log_of(server):
    """Ends the server, and returns all that it said."""
    server.process.terminate()
    return server.process.communicate(timeout=40)[1]


# -- can it score? -----------------------------------------------------------------------------------------------------


def test_ready_is_who_can_score_and_alive_is_who_answers(trained, store):
    bundle = trained.bundles[0]
    published(store, bundle)
    with serving(bundle, "--sparse", store.url) as server:
        assert server.client.get("/readyz").json() == {"status": "ready", "version": "v1"}
        for name in store.client().keys("sparsefleet:*:*"):  # rows gone, and the cache knows those of the warm-up
            store.client().delete(name)
        wait_until(lambda: "no longer in Redis" in not_ready(server), 20, "the server to notice that rows are gone")
        store.kill()
        wait_until(lambda: "cannot reach Redis" in not_ready(server), 20, "the server to notice that Redis is gone")
        assert server.client.get("/healthz").status_code == 200
        assert "sparsefleet_ready 0" in server.client.get("/metrics").text
        answers = [server.post("/v1/predict", {"rows": trained.rows[100:110]}).status_code for _ in range(30)]
        assert set(answers) == {503}
        store.start()
        published(store, bundle)
        wait_until(lambda: server.client.get("/readyz").status_code == 200, 20, "a ready server")
        said = log_of(server)
    # All failures are told of, and none of them more than once a second.
    assert re.search(r"version v1 is not ready: .*no longer in Redis", said)
    told = re.findall(r"^(\S+)Z answered 503", said, re.M)
    times = [datetime.fromisoformat(text).timestamp() for text in told]
    assert times
    assert all(later - earlier > 0.9 for earlier, later in itertools.pairwise(times))


def test_rows_come_from_the_file_while_redis_is_away(trained, store):
    bundle = trained.bundles[0]
    want = Predictor(bundle).predict(trained.rows[:50])
    published(store, bundle)
    options = ("--sparse", f"{store.url}?cache_mb=0&timeout=0.3", "--fallback", "file", "--watch-seconds", "0.1")
    with serving(bundle, *options) as server:

        def scores():
            answer = server.post("/v1/predict", {"rows": trained.rows[:50]})
            assert answer.status_code == 200, answer.text
            return np.array(answer.json()["scores"], np.float32)

        for away in (False, True, False):
            if away:
                store.kill()
            elif store.process is None:
                store.start()
                published(store, bundle)
            np.testing.assert_array_equal(scores(), want)
            assert server.client.get("/readyz").status_code == 200
            wait_until(lambda: scores() is not None and _falls_back(server) == away, 20, f"a fallback that is {away}")  # noqa: B023
        said = log_of(server)
    assert "come from its own file until it is back" in said
    assert "come from Redis again" in said
    store.kill()
    with serving(bundle, *options) as server:  # Redis is away from the start
        np.testing.assert_array_equal(scores(), want)


def _falls_back(server):
    return server.client.get("/v1/model").json()["sparse"]["fallback"]


@pytest.mark.slow
def test_a_network_that_gives_no_numbers_is_refused_by_its_warm_up(trained, tmp_path):
    path = shutil.copytree(trained.bundles[1], tmp_path / "b")
    document = json.loads((path / "warmup.json").read_text())
    document["samples"][1]["score"] = 0.987
    raw = json.dumps(document).encode()
    (path / "warmup.json").write_bytes(raw)
    manifest = json.loads((path / "manifest.json").read_text())
    (entry,) = [entry for entry in manifest["files"] if entry["path"] == "warmup.json"]
    entry.update(bytes=len(raw), checksum=f"crc32:{zlib.crc32(raw):08x}")
    (path / "manifest.json").write_text(json.dumps(manifest))
    with serving(trained.bundles[0]) as server:
        answer = server.post("/v1/reload", {"bundle": str(path)})
        assert answer.status_code == 409
        assert "sample 1 of the warm-up scores" in answer.json()["error"]


# -- rows files that are changed in place ------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["overwritten", "cut short"])
def test_a_rows_file_that_is_changed_in_place_gives_no_scores(trained, tmp_path, damage):
    path = shutil.copytree(trained.bundles[0], tmp_path / "b")
    with serving(path, "--watch-seconds", "0.1") as server:
        rows = path / ROWS
        assert server.post("/v1/predict", {"rows": trained.rows[:9]}).status_code == 200
        os.utime(rows)  # touched, and the same: no reason to stop
        time.sleep(0.5)  # several looks at the file
        assert server.post("/v1/predict", {"rows": trained.rows[:9]}).status_code == 200
        if damage == "overwritten":
            with rows.open("r+b") as file:
                file.seek(-400, os.SEEK_END)
                file.write(b"\x3f" * 400)
        else:
            os.truncate(rows, 4096)
        wait_until(lambda: server.post("/v1/predict", {"rows": trained.rows}).status_code == 503, 20, "a refusal")
        wait_until(lambda: "never changed in place" in not_ready(server), 20, "the reason")
        assert server.post("/v1/reload", {"bundle": str(trained.bundles[1])}).status_code == 200
        assert server.post("/v1/predict", {"rows": trained.rows[:9]}).status_code == 200
        said = log_of(server)
    assert ("written to while it was open" if damage == "overwritten" else "cut short") in said


@pytest.mark.slow
def test_a_bundle_that_is_replaced_by_another_of_its_name_goes_on(trained, tmp_path):
    path = shutil.copytree(trained.bundles[0], tmp_path / "b")
    want = Predictor(path).predict(trained.rows[:9])
    with serving(path, "--watch-seconds", "0.1") as server:
        shutil.copytree(trained.bundles[1], tmp_path / "new")
        os.replace(tmp_path / "new" / ROWS, path / ROWS)
        time.sleep(0.4)  # several looks at the file
        got = server.post("/v1/predict", {"rows": trained.rows[:9]}).json()["scores"]
        np.testing.assert_array_equal(np.array(got, np.float32), want)


# -- too much, too late ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_request_whose_time_is_up_is_told_so(trained):
    with serving(trained.bundles[0], "--threads", "1") as server:
        body = {"rows": trained.rows}
        answer = server.client.post("/v1/predict", json=body, headers={"x-timeout-ms": "0"})
        assert answer.status_code == 400
        assert "x-timeout-ms" in answer.json()["error"]
        assert server.client.post("/v1/predict", json=body, headers={"x-timeout-ms": "20000"}).status_code == 200
        # One thread, many long requests: whoever has a millisecond is not scored.
        long = json.dumps({"rows": trained.rows * 30}).encode()

        def ask(milliseconds):
            with httpx.Client(base_url=server.url, timeout=60) as client:
                return client.post("/v1/predict", content=long, headers={"x-timeout-ms": milliseconds})

        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            patient = [pool.submit(ask, "30000") for _ in range(4)]
            hasty = [pool.submit(ask, "1") for _ in range(2)]
            assert {found.result().status_code for found in patient} == {200}
            for found in hasty:
                assert found.result().status_code in (429, 503)
                assert int(found.result().headers["retry-after"]) >= 1


@pytest.mark.parametrize("path", ["/v1/predict", "/v1/predict?"])
def test_a_request_that_names_no_time_has_that_of_the_server(trained, store, path):
    """Redis stands still, and with it the one scoring thread: under way or waiting, nobody waits for longer."""
    published(store, trained.bundles[0])
    body = {"rows": trained.rows[:5]}
    sparse = f"{store.url}?cache_mb=0&timeout=300"
    # Batches of one request, or both would be under way together.
    options = ("--sparse", sparse, "--threads", "1", "--batch-rows", "5", "--deadline", "3")
    with serving(trained.bundles[0], *options) as server:

        def ask():
            started = time.monotonic()
            with httpx.Client(base_url=server.url, timeout=60) as client:
                return client.post(path, json=body), time.monotonic() - started

        store.signal(signal.SIGSTOP)
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            for found in [pool.submit(ask) for _ in range(2)]:
                answer, seconds = found.result()
                assert answer.status_code == 503
                assert "not scored in its time" in answer.json()["error"]
                assert answer.headers["retry-after"] == "1"
                assert 3 <= seconds < 20  # by default it would be 30
        counted = 'sparsefleet_requests_total{path="/v1/predict",status="503"} 2\n'
        store.signal(signal.SIGCONT)
        wait_until(lambda: counted in server.client.get("/metrics").text, 20, "two requests counted")
        assert _metric(server, "waiting_rows") == 0
        assert server.post(path, body).status_code == 200
        assert _metric(server, "rows_total") <= 10  # what was under way, and the last: the other was not scored
        assert _metric(server, 'answers_total{version="v1"}') == 1


def test_long_requests_go_in_pieces_of_batch_rows(trained):
    rows = trained.rows[:120]
    with serving(trained.bundles[0], "--threads", "1", "--batch-rows", "50") as server:
        answer = server.post("/v1/predict", {"rows": rows})
        assert len(answer.json()["scores"]) == 120
        assert (_metric(server, "rows_total"), _metric(server, "batches_total")) == (120, 3)


@pytest.mark.slow
def test_a_full_queue_refuses_at_the_door_and_short_requests_go_first(trained):
    """Ten clients keep the queue full of long requests; short ones are answered all the same, and before them."""
    long = json.dumps({"rows": trained.rows * 20}).encode()
    ended = threading.Event()
    seen: list[int] = []
    with serving(trained.bundles[0], "--queue-rows", "15000") as server:

        def bulk():
            with httpx.Client(base_url=server.url, timeout=60) as client:
                while not ended.is_set():
                    answer = client.post("/v1/predict", content=long)
                    seen.append(answer.status_code)
                    if answer.status_code == 429:
                        assert int(answer.headers["retry-after"]) >= 1
                        assert "wait to be scored" in answer.json()["error"] or "wait before" in answer.json()["error"]

        with concurrent.futures.ThreadPoolExecutor(10) as pool:
            running = [pool.submit(bulk) for _ in range(10)]
            try:
                wait_until(lambda: 429 in seen or any(one.done() for one in running), 60, "a full queue")
                for _ in range(20):
                    answer = server.post("/v1/predict", {"rows": trained.rows[:2]})
                    assert answer.status_code == 200, answer.text
            finally:
                ended.set()
            for one in running:
                one.result(timeout=60)
        assert set(seen) <= {200, 429}
        assert "sparsefleet_waiting_rows" in server.client.get("/metrics").text


@pytest.mark.slow
def test_work_of_clients_that_have_gone_is_dropped(trained, store):
    """Redis stands still, and with it the one scoring thread: whatever else comes waits until its client has gone.

    So every number is known beforehand, however busy the machine is.
    """
    long, short = trained.rows * 2, trained.rows[:5]  # a long request goes in pieces of 128 rows
    published(store, trained.bundles[0])
    options = ("--sparse", f"{store.url}?cache_mb=0&timeout=300", "--threads", "1", "--deadline", "300")
    with serving(trained.bundles[0], *options) as server, contextlib.ExitStack() as stack:
        address = ("127.0.0.1", int(server.url.rpartition(":")[2]))

        def client(rows):
            body = json.dumps({"rows": rows}).encode()
            head = f"POST /v1/predict HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode()
            raw = stack.enter_context(socket.create_connection(address, timeout=60))
            raw.sendall(head + body)
            return raw

        def wait_for(**figures):
            now = {}

            def reached():
                now.update({name: _metric(server, name) for name in figures})
                return now == figures

            wait_until(reached, 60, lambda: f"{figures}; it is {now}")

        store.signal(signal.SIGSTOP)
        stack.callback(store.signal, signal.SIGCONT)
        first = client(long)
        wait_for(waiting_rows=600 - 128)  # its first piece is under way
        others = [client(rows) for rows in (short, long, short, long)]
        wait_for(waiting_rows=600 - 128 + 2 * (5 + 600), dropped_rows_total=0)
        for raw in others:
            raw.close()
        wait_for(waiting_rows=600 - 128, dropped_rows_total=2 * (5 + 600))
        first.close()
        wait_for(waiting_rows=0, dropped_rows_total=2 * (5 + 600) + 600 - 128)
        store.signal(signal.SIGCONT)
        wait_for(rows_total=128)  # what was under way is scored, and nothing else
        assert server.post("/v1/predict", {"rows": short}).status_code == 200
        assert 'sparsefleet_requests_total{path="/v1/predict",status="499"} 5\n' in server.client.get("/metrics").text


def _metric(server, name):
    (line,) = re.findall(rf"^sparsefleet_{name} (\S+)$", server.client.get("/metrics").text, re.M)
    return float(line)


# -- connections -------------------------------------------------------------------------------------------------------


LIMITED = (
    "import resource, sys, runpy; resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200));"
    "sys.argv = ['sparsefleet', *sys.argv[1:]]; runpy.run_module('sparsefleet', run_name='__main__')"
)
"""Runs the command with a limit of 200 files."""


@contextlib.contextmanager
def limited_server(bundle, *options):
    """A server with a limit of 200 files, in a test that may open more; and a stack for what is open in the test."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as stack:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, limits[1]), limits[1]))
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        server = Served(bundle, *options, code=LIMITED)
        stack.callback(server.end)
        yield server, stack


@pytest.mark.parametrize("options", [(), ("--max-connections", "5000")])
def test_heads_that_never_come_keep_nobody_out(trained, options):
    """A limit of 200 files and 400 half-sent heads: others are answered, and the log says what happens."""
    with limited_server(trained.bundles[0], "--header-timeout", "3", *options) as (server, stack):
        address = ("127.0.0.1", int(server.url.rpartition(":")[2]))
        for number in range(400):
            raw = stack.enter_context(socket.create_connection(address, timeout=20))
            raw.sendall(b"POST /v1/predict HTTP/1.1\r\nhost: x\r\n" if number % 2 else b"GET /healthz HTT")
        for _ in range(20):
            with httpx.Client(base_url=server.url, timeout=20) as client:
                answer = client.post("/v1/predict", json={"rows": trained.rows[:2]})
                assert answer.status_code == 200
        # The last ones are still open: they are told that their head did not come, and are closed.
        raw.settimeout(20)
        assert raw.recv(100).startswith(b"HTTP/1.1 408")
        said = log_of(server)
    assert "connections are open, as many as may be" in said
    assert "did not come within 3 seconds" in said
    assert ("at most 136 connections may be open, not 5000" in said) == bool(options)
    assert ("ulimit -n 5064" in said) == bool(options)


@pytest.mark.parametrize(("limit", "hard", "raised"), [(5000, 9000, 9000), (80_000, 90_000, 80_064)])
def test_the_limit_of_files_is_raised_for_as_many_connections_as_are_wanted(monkeypatch, limit, hard, raised):
    given = []
    monkeypatch.setattr(resource, "getrlimit", lambda what: (1024, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda what, limits: given.append(limits))
    assert Connections(limit, 2000).limit == limit
    assert given == [(raised, hard)]


def test_tls_handshakes_that_never_come_keep_nobody_out(trained, tmp_path):
    """The same over TLS: connections that send nothing, and some that send the beginning of a handshake."""
    certificate, key = certificate_and_key(tmp_path)
    options = ("--tls-cert", str(certificate), "--tls-key", str(key), "--header-timeout", "3")
    with limited_server(trained.bundles[0], *options) as (server, stack):
        address = ("127.0.0.1", int(server.url.rpartition(":")[2]))
        for number in range(400):
            raw = stack.enter_context(socket.create_connection(address, timeout=20))
            raw.sendall(b"\x16\x03\x01\x02" * (number % 2))
        for _ in range(20):
            with httpx.Client(base_url=server.url, timeout=20, verify=str(certificate)) as client:
                for path in ("/v1/predict", "/v1/predict?", "/v1/predict"):
                    assert client.post(path, json={"rows": trained.rows[:2]}).status_code == 200
        raw.settimeout(20)
        with contextlib.suppress(ConnectionResetError):
            assert raw.recv(100) == b""  # one of the last, and closed all the same
        said = log_of(server)
    assert "connections are open, as many as may be" in said
    assert re.search(r"the TLS handshake of 127\.0\.0\.1 did not come within 3 seconds", said)


@pytest.mark.slow
def test_one_client_holds_only_so_many_idle_connections(trained):
    with (
        serving(trained.bundles[0], "--client-connections", "5") as server,
        contextlib.ExitStack() as stack,
    ):
        address = ("127.0.0.1", int(server.url.rpartition(":")[2]))
        held = [stack.enter_context(socket.create_connection(address, timeout=20)) for _ in range(8)]
        server.client.get("/healthz")  # all of them have been accepted
        for raw in held[:3]:
            raw.settimeout(20)
            with contextlib.suppress(ConnectionResetError):
                assert raw.recv(10) == b""
        assert server.post("/v1/predict", {"rows": trained.rows[:2]}).status_code == 200
        assert "holds more than 5 connections without a request" in log_of(server)


def test_so_many_connections_and_no_more(trained):
    """One more takes the place of the one that was idle longest; where all have requests under way, it is refused."""
    with serving(trained.bundles[0], "--max-connections", "3") as server, contextlib.ExitStack() as stack:
        address = ("127.0.0.1", int(server.url.rpartition(":")[2]))
        body = json.dumps({"rows": trained.rows[:2]}).encode()
        head = b"POST /v1/predict HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n" % len(body)

        def connect():
            return stack.enter_context(socket.create_connection(address, timeout=20))

        def scored(raw, sent=head + b"\r\n" + body):
            raw.sendall(sent)
            return raw.recv(4096).startswith(b"HTTP/1.1 200")

        first, second, third = connect(), connect(), connect()
        assert scored(second)
        assert scored(third)
        assert scored(first)
        fourth = connect()
        assert scored(fourth)
        with contextlib.suppress(ConnectionResetError):
            assert second.recv(10) == b""
        for raw in (first, third, fourth):
            raw.sendall(head + b"expect: 100-continue\r\n\r\n")
            assert raw.recv(100).startswith(b"HTTP/1.1 100")  # under way
        refused = connect()
        assert refused.recv(100).startswith(b"HTTP/1.1 503")
        assert scored(first, body)
        assert scored(connect())  # in its place
        assert scored(third, body)
        assert scored(fourth, body)
        said = log_of(server)
    assert "3 connections are open, as many as may be (--max-connections" in said


def test_a_client_that_takes_no_answers_is_left(trained):
    """Two of them, one each way, hold all connections that may be: they are ended, and others are answered."""
    body = json.dumps({"rows": trained.rows[:1]}).encode()
    long = b"x-request-id: %b\r\n" % (b"x" * 14_000)  # which is sent back
    options = ("--answer-timeout", "1", "--max-connections", "2")
    with serving(trained.bundles[0], *options) as server:
        address = ("127.0.0.1", int(server.url.rpartition(":")[2]))

        def ask_and_never_read(path):
            head = b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n" % (path, len(body))
            left = memoryview((head + long + b"\r\n" + body) * 4000)  # more than the server may take ahead of answers
            until = time.monotonic() + 60
            with socket.socket() as raw:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                raw.settimeout(0.5)
                raw.connect(address)
                while left and time.monotonic() < until:
                    try:
                        left = left[raw.send(left) :]
                    except TimeoutError:
                        continue
                    except (ConnectionResetError, BrokenPipeError):
                        return True
            return False

        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            assert all(pool.map(ask_and_never_read, (b"/v1/predict", b"/v1/predict?")))
        wait_until(lambda: server.client.get("/healthz").status_code == 200, 20, "room for somebody else")
        assert _metric(server, "answers_not_taken_total") == 2
        assert server.post("/v1/predict", {"rows": trained.rows[:2]}).status_code == 200
        said = log_of(server)
    assert "127.0.0.1 did not take an answer within 1 seconds" in said
    assert "Traceback" not in said


@pytest.mark.slow
def test_what_does_not_come_to_its_end_is_left(trained, store):
    """Redis stands still: a request under way gets --drain-timeout, and then the server ends without it."""
    published(store, trained.bundles[0])
    sparse = f"{store.url}?cache_mb=0&timeout=300"
    # Batches of one request, or both could be under way together.
    options = ("--sparse", sparse, "--threads", "1", "--batch-rows", "5", "--deadline", "300")
    options += ("--linger", "0", "--drain-timeout", "1")
    ask = functools.partial(httpx.post, json={"rows": trained.rows[:5]}, timeout=60)
    with serving(trained.bundles[0], *options) as server, concurrent.futures.ThreadPoolExecutor(2) as pool:
        store.signal(signal.SIGSTOP)
        asked = [pool.submit(ask, f"{server.url}/v1/predict") for _ in range(2)]
        wait_until(lambda: _metric(server, "waiting_rows") == 5, 20, "one request under way, and one behind it")
        started = time.monotonic()
        server.process.terminate()
        assert server.process.wait(timeout=40) == 0
        assert 1 <= time.monotonic() - started < 9
        for found in asked:
            with pytest.raises(httpx.TransportError):
                found.result(timeout=20)


def test_the_end_is_answered_to_everybody(trained):
    """Clients with kept connections under load, and SIGTERM: no request is lost, and each is told to go elsewhere."""
    body = json.dumps({"rows": trained.rows[:5]})
    with serving(trained.bundles[0], "--linger", "60") as server:
        address = ("127.0.0.1", int(server.url.rpartition(":")[2]))
        started = threading.Barrier(9)

        def client(path_through_uvicorn):
            connection, answered, closed = http.client.HTTPConnection(*address, timeout=20), 0, False
            if path_through_uvicorn:
                connection.request("GET", "/healthz")
                connection.getresponse().read()
            while not closed:
                connection.request("POST", "/v1/predict", body)
                answer = connection.getresponse()
                assert answer.status == 200, answer.read()
                answer.read()
                closed = answer.getheader("connection") == "close"
                answered += 1
                if answered == 20:
                    started.wait(30)
            connection.close()
            return answered

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            running = [pool.submit(client, number % 2) for number in range(8)]
            started.wait(60)
            server.process.terminate()
            assert all(found.result(timeout=60) > 20 for found in running)
        server.process.send_signal(signal.SIGINT)  # need not linger any more
        assert server.process.wait(timeout=40) == 0


def test_who_connects_for_each_request_is_answered_all_through_the_end(trained):
    """Nobody is connected when SIGTERM comes, nor between two requests: connections are taken all the same."""
    with serving(trained.bundles[0], "--linger", "60") as server:

        def status(ask, *where, **what):
            answer = ask(*where, timeout=20, **what)  # by a connection of its own
            return answer.status_code, answer.headers.get("connection")

        assert status(httpx.get, f"{server.url}/readyz") == (200, None)
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: status(httpx.get, f"{server.url}/readyz") == (503, "close"), 20, "a server that ends")
        for path in ("/v1/predict", "/v1/predict?") * 20:  # takes longer than a look at who is connected
            assert status(httpx.post, server.url + path, json={"rows": trained.rows[:2]}) == (200, "close")
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(timeout=40) == 0


def test_ctrl_c_does_not_linger(trained):
    with serving(trained.bundles[0], "--linger", "600") as server:
        assert server.client.get("/healthz").status_code == 200  # and stays connected
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(timeout=60) == 0


# -- clients and models that change apart ------------------------------------------------------------------------------


def test_extra_fields_and_ids_of_requests(trained):
    rows = trained.rows[:3]
    extra = [{**row, "experiment": "b", "position": 3} for row in rows]
    with serving(trained.bundles[0]) as server:
        want = server.post("/v1/predict", {"rows": rows}).json()["scores"]
        for request_id in ("a-17", 17, 'quo"te\\', "ü"):
            for body in ({"request_id": request_id, "rows": rows}, {"rows": rows, "request_id": request_id}):
                answer = server.post("/v1/predict", body).json()
                assert answer == {"version": "v1", "scores": want, "request_id": request_id}
        context = {"context": rows[0], "candidates": [{}], "request_id": "c"}
        assert server.post("/v1/predict", context).json()["request_id"] == "c"
        for bad in ({"a": 1}, 1.5, None, "x" * 201, True, 2**70):
            answer = server.post("/v1/predict", {"request_id": bad, "rows": rows})
            assert (answer.status_code, answer.json()["field"]) == (400, "request_id")
        headers = {"x-request-id": "trace-9"}
        for path in ("/v1/predict", "/v1/predict?"):
            answer = server.client.post(path, json={"rows": rows}, headers=headers)
            assert answer.headers["x-request-id"] == "trace-9"
        assert server.post("/v1/predict", {"rows": extra}).status_code == 400
        fields = {field["name"]: field for field in server.client.get("/v1/model").json()["fields"]}
        assert fields["C3"] == {"name": "C3", "kind": "category", "required": True, "used": True, "takes": "raw"}
        assert fields["I3"]["kind"] == "number"
    with serving(trained.bundles[0], "--allow-extra", "--allow-missing") as server:
        assert server.post("/v1/predict", {"rows": extra, "trace": 1}).json()["scores"] == want
        body = {"context": {**rows[0], "page": 1}, "candidates": [{"position": n} for n in range(2)]}
        assert server.post("/v1/predict", body).json()["scores"] == [want[0]] * 2
        assert server.post("/v1/predict", {"rows": [{**rows[0], "C3": {}}]}).status_code == 400
        assert not any(field["required"] for field in server.client.get("/v1/model").json()["fields"])


# -- who may ask -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_tokens_and_tls(trained, tmp_path):
    certificate, key = certificate_and_key(tmp_path)
    options = ("--tls-cert", str(certificate), "--tls-key", str(key))
    env = {"SPARSEFLEET_PREDICT_TOKEN": "open-sesame", "SPARSEFLEET_TOKEN": "admin"}
    body = {"rows": trained.rows[:3]}
    with serving(trained.bundles[0], *options, env=env) as server:
        assert server.url.startswith("https://")
        with httpx.Client(base_url=server.url, verify=str(certificate), timeout=30) as client:
            assert client.get("/healthz").status_code == 200
            assert client.get("/readyz").status_code == 200
            for path in ("/v1/predict", "/v1/predict?"):
                for wrong in ({}, {"authorization": "Bearer open"}, {"authorization": "Basic open-sesame"}):
                    answer = client.post(path, json=body, headers=wrong)
                    assert answer.status_code == 401
                    assert answer.headers["www-authenticate"] == "Bearer"
                for right in ("Bearer open-sesame", "bearer admin"):
                    answer = client.post(path, json=body, headers={"authorization": right})
                    assert answer.status_code == 200, answer.text
            for path in ("/v1/model", "/metrics", "/openapi.json"):
                assert client.get(path).status_code == 401
            reload = {"bundle": str(trained.bundles[1])}
            for token, status in (("open-sesame", 403), ("admin", 200)):
                answer = client.post("/v1/reload", json=reload, headers={"authorization": f"Bearer {token}"})
                assert answer.status_code == status
    for wrong in (("--tls-cert", str(certificate)), ("--tls-cert", str(key), "--tls-key", str(certificate))):
        with (
            pytest.raises(AssertionError, match=r"tls-key go together|cannot use"),
            serving(trained.bundles[0], *wrong),
        ):
            pass
