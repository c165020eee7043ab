"""Connections as they come off the wire: pieces, many at once, plain ones and others, slow ones."""

import contextlib
import json
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
from bundle_fixtures import NAMES
from http_server import SOURCES, serving

from sparsefleet.serving import Predictor
from sparsefleet.serving.direct import most_samples
from sparsefleet.serving.protocol import plain_head


@pytest.fixture(scope="module")
def server(trained):
    with serving(trained.bundles[0]) as running:
        yield running


@pytest.fixture(scope="module")
def expected(trained):
    return Predictor(trained.bundles[0]).predict(trained.rows)


def request(body, *headers):
    lines = ("POST /v1/predict HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *headers)
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


def body_of(rows):
    return json.dumps({"rows": rows}).encode()


@contextlib.contextmanager
def connected(url):
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as raw, raw.makefile("rb") as answers:
        yield raw, answers


def read(answers):
    """One answer: status, headers, body."""
    status = int(answers.readline().split()[1])
    headers = {}
    while (line := answers.readline().strip()) != b"":
        name, _, value = line.decode().lower().partition(": ")
        headers[name] = value
    return status, headers, answers.read(int(headers["content-length"]))


def scores_in(answer):
    status, headers, body = answer
    assert (status, headers["content-type"]) == (200, "application/json"), body
    assert "date" in headers
    return json.loads(body)["scores"]


@pytest.mark.parametrize(
    ("lines", "length"),
    [
        (("Content-Length: 12", "Host: x", "Connection: Keep-Alive"), 12),
        (("content-type: application/json; charset=utf-8", "content-length:0"), 0),
        (("Host: x",), None),
        (("Content-Length: 12", "content-length: 12"), None),
        (("Content-Length: +12",), None),
        (("Content-Length: 1_2",), None),
        (("Content-Length: 12, 12",), None),
        (("Content-Length: 12345678901",), None),
        (("Content-Length : 12",), None),
        (("Content-Length: 12", " folded: yes"), None),
        (("Content-Length: 12", "X: a\nTransfer-Encoding: chunked"), None),
        (("Content-Length: 12", "X: a\0"), None),
        (("Content-Length: 12", "Transfer-Encoding: chunked"), None),
        (("Content-Length: 12", "Expect: 100-continue"), None),
        (("Content-Length: 12", "Connection: close"), None),
        (("Content-Length: 12", "Connection: upgrade", "Upgrade: h2c"), None),
        (("Content-Length: 12", "Content-Type: application/vnd.apache.arrow.stream"), None),
    ],
)
def test_only_what_leaves_no_doubt_is_plain(lines, length):
    found = plain_head("\r\n".join(("POST /v1/predict HTTP/1.1", *lines)).encode())
    assert (None if found is None else found.length) == length
    for other in ("POST /v1/predict HTTP/1.0", "GET /v1/predict HTTP/1.1", "POST /v1/predict?a HTTP/1.1", "POST  /"):
        assert plain_head("\r\n".join((other, *lines)).encode()) is None


def test_no_request_has_more_rows_than_are_counted_on(trained):
    rows = trained.rows[:7]
    lists = [[row[name] for name in NAMES] for row in rows]
    for document in ({"rows": rows}, {"rows": lists}, {"rows": []}, {"context": rows[0], "candidates": [{}] * 7}):
        for indent in (None, 2):
            given = document.get("rows", document.get("candidates"))
            assert len(given) <= most_samples(json.dumps(document, indent=indent).encode()) <= len(given) + 1


def test_requests_sent_at_once_are_answered_in_order(trained, server, expected):
    """Plain ones, a refused one, one too long for one piece, another route, one in chunks."""
    rows = trained.rows
    chunk = body_of(rows[:4])
    sent = b"".join(
        (
            request(body_of(rows[:3])),
            request(b'{"rows": 3}'),
            request(body_of(rows[1:2])),
            request(body_of(rows * 3)),
            b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n",
            b"POST /v1/predict HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n",
            b"%x\r\n%b\r\n0\r\n\r\n" % (len(chunk), chunk),
            request(body_of(rows[5:9])),
        )
    )
    with connected(server.url) as (raw, answers):
        raw.sendall(sent)
        np.testing.assert_allclose(scores_in(read(answers)), expected[:3], atol=1e-6)
        assert read(answers)[0] == 400
        np.testing.assert_allclose(scores_in(read(answers)), expected[1:2], atol=1e-6)
        np.testing.assert_allclose(scores_in(read(answers)), np.tile(expected, 3), atol=1e-6)
        assert json.loads(read(answers)[2])["status"] == "ok"
        np.testing.assert_allclose(scores_in(read(answers)), expected[:4], atol=1e-6)
        np.testing.assert_allclose(scores_in(read(answers)), expected[5:9], atol=1e-6)


@pytest.mark.parametrize("size", [1, 7, 100])
def test_a_request_may_come_in_pieces(trained, server, expected, size):
    sent = request(body_of(trained.rows[:1]))
    head = sent.index(b"\r\n\r\n") + 4
    with connected(server.url) as (raw, answers):
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for first in (head, 3):  # the head in one piece, then cut as well
            raw.sendall(sent[:first])
            for start in range(first, len(sent), size):
                raw.sendall(sent[start : start + size])
                time.sleep(0.0001)  # or the system would join the pieces
            np.testing.assert_allclose(scores_in(read(answers)), expected[:1], atol=1e-6)


def test_a_client_that_leaves_harms_nobody(trained, server, expected):
    for _ in range(20):
        with connected(server.url) as (raw, _):
            raw.sendall(request(body_of(trained.rows[:50])) * 2)
    with connected(server.url) as (raw, answers):
        raw.sendall(request(body_of(trained.rows[:2])))
        np.testing.assert_allclose(scores_in(read(answers)), expected[:2], atol=1e-6)


def test_a_body_that_does_not_come_and_the_end_of_idle_connections(trained):
    """A slow body is given up with 408. On SIGTERM a connection that waits for nothing is closed, and the exit is 0."""
    code = (
        "import sys; from sparsefleet.serving.config import ServeConfig; from sparsefleet.serving.server import serve;"
        "serve(ServeConfig(sys.argv[1], port=0, body_timeout=0.3))"
    )
    command = [sys.executable, "-c", code, str(trained.bundles[0])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={"PYTHONPATH": str(SOURCES)}) as process:
        try:
            url = json.loads(process.stdout.readline())["url"]
            with connected(url) as (raw, answers):
                raw.sendall(request(body_of(trained.rows[:2]))[:-5])
                status, headers, body = read(answers)
                assert (status, headers["connection"]) == (408, "close")
                assert "within 0.3 seconds" in json.loads(body)["error"]
                assert answers.read() == b""
            with connected(url) as (raw, answers):
                raw.sendall(request(body_of(trained.rows[:2])))
                assert len(scores_in(read(answers))) == 2
                process.send_signal(signal.SIGTERM)
                assert answers.read() == b""
                assert process.wait(timeout=20) == 0
        finally:
            process.kill()


def test_headers_mean_the_same_whichever_way_a_request_takes(trained):
    """`Connection: close` sends a request the long way."""
    body = body_of(trained.rows[:1])
    with serving(trained.bundles[0], env={"SPARSEFLEET_PREDICT_TOKEN": "s3same"}) as server:
        right = "Authorization: Bearer s3same"
        for headers, status in (
            (("Authorization: Bearer wrong", right), 401),
            ((right, "Authorization: Bearer wrong"), 200),
            ((right, "X-Timeout-Ms: 20000", "X-Timeout-Ms: soon"), 200),
            ((right, "X-Timeout-Ms: soon", "X-Timeout-Ms: 20000"), 400),
            ((right, "X-Timeout-Ms: 20000 \t"), 200),
            ((right, "Content-Type: Application/VND.apache.arrow.stream"), 400),
        ):
            for more in ((), ("Connection: close",)):
                with connected(server.url) as (raw, answers):
                    raw.sendall(request(body, *headers, *more))
                    found, _, text = read(answers)
                assert found == status, (headers, more, text)
                assert found != 400 or b"is not JSON" not in text
