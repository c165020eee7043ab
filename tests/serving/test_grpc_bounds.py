"""Calls over gRPC that wait for a thread: how many may, and what becomes of those that nobody waits for any more.

The server is in this process: it has one thread for gRPC, room for three calls, and a network that waits for `go`.
"""

import asyncio
import contextlib
import re
import socket
import threading
from types import SimpleNamespace

import pytest
from waiting import wait_until

from sparsefleet.serving import Predictor
from sparsefleet.serving.config import ServeConfig
from sparsefleet.serving.http import Service

grpc = pytest.importorskip("grpc", reason="no grpcio: pip install 'sparsefleet[grpc]'")
from kserve_client import INFER, Calls, calls_of  # noqa: E402  (needs grpcio)

from sparsefleet.serving.kserve import server as kserve  # noqa: E402  (needs grpcio)

CALLS = 3
BODY_SECONDS = 2.0


class Server:
    def __init__(self, bundle, **settings):
        self.about, self.bundle, self.settings = {}, bundle, {"body_timeout": BODY_SECONDS, **settings}
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()

    def run(self, work):
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout=30)

    async def start(self):
        config = ServeConfig(str(self.bundle), threads=1, grpc_port=0, **self.settings)
        self.service = Service(config, Predictor(self.bundle))
        self.grpc = kserve.KServeServer(self.service)
        self.about["grpc"] = f"127.0.0.1:{self.grpc.port}"

    async def end(self):
        await self.grpc.close(lambda: False)
        await self.service.close()

    def told(self, name):
        text = self.service.metrics.text("v1", 0, {})
        found = re.search(rf"^sparsefleet_{re.escape(name)} (\S+)$", text, re.M)
        return float(found[1]) if found else 0

    def answered(self, status):
        return self.told(f'requests_total{{path="{INFER}",status="{status}"}}')

    def wait_for_calls(self, count):
        wait_until(lambda: self.grpc._threads.calls == count, 20, f"{count} calls")


@pytest.fixture
def go():
    return threading.Event()


@pytest.fixture
def parsed(monkeypatch):
    """The numbers of rows of the requests that were parsed."""
    found, rows_of = [], kserve.rows_of

    def noted(*arguments):
        rows = rows_of(*arguments)
        found.append(len(rows))
        return rows

    monkeypatch.setattr(kserve, "rows_of", noted)
    return found


@contextlib.contextmanager
def running(bundle, **settings):
    made = Server(bundle, **settings)
    try:
        made.run(made.start())
        try:
            yield made
        finally:
            made.run(made.end())
    finally:
        made.loop.call_soon_threadsafe(made.loop.stop)
        made.thread.join(timeout=20)
        made.loop.close()


@pytest.fixture
def server(trained, monkeypatch, go, parsed):
    score = Predictor.score

    def waits(self, batch):
        assert go.wait(60)
        return score(self, batch)

    monkeypatch.setattr(kserve, "THREADS", 1)
    monkeypatch.setattr(kserve, "CALLS", CALLS)
    with running(trained.bundles[0]) as made:
        monkeypatch.setattr(Predictor, "score", waits)
        try:
            yield made
        finally:
            go.set()


@pytest.fixture
def infer(trained, server):
    """Begins to ask for the scores of so many rows."""
    with calls_of(server) as call:
        yield lambda rows, timeout=60: call.begin(
            "ModelInfer", timeout=timeout, model_name="model", **call.tensors(trained.rows[:rows])
        )


def scored(call):
    return call.result().outputs[0].shape[0]


def test_one_call_too_many_is_refused_at_once(server, infer, go, capfd):
    taken = [infer(1 + number) for number in range(CALLS)]
    server.wait_for_calls(CALLS)
    for _ in range(2):
        assert infer(9).code() is grpc.StatusCode.RESOURCE_EXHAUSTED  # while the others wait
    assert server.answered(429) == 2
    go.set()
    assert [scored(call) for call in taken] == [1, 2, 3]
    server.wait_for_calls(0)
    assert scored(infer(4)) == 4
    assert "3 calls over gRPC are under way, as many as may be" in capfd.readouterr().err


@pytest.mark.parametrize("why", ["cancelled", "time is up"])
def test_a_call_that_nobody_waits_for_any_more_is_not_even_parsed(server, infer, go, parsed, why):
    first = infer(1)
    wait_until(lambda: parsed, 20, "a call that keeps the thread")
    second = infer(5, timeout=60 if why == "cancelled" else 2)
    server.wait_for_calls(2)
    if why == "cancelled":
        second.cancel()
    else:
        assert second.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    third = infer(2)
    server.wait_for_calls(3)  # and so the server knows of the second one's end, which was sent before
    go.set()
    assert (scored(first), scored(third)) == (1, 2)
    wait_until(lambda: server.answered(200) == 2, 20, "two answers")
    assert (parsed, server.answered(499), server.told("rows_total")) == ([1, 2], 1, 3)


def test_a_call_whose_request_does_not_come_keeps_no_thread(server, infer, go):
    go.set()
    assert scored(infer(1)) == 1
    ended = threading.Event()

    def nothing():
        ended.wait(60)
        yield from ()

    with grpc.insecure_channel(server.about["grpc"]) as channel:
        silent = channel.stream_unary(INFER).future(nothing(), timeout=60)
        server.wait_for_calls(1)
        try:
            assert scored(infer(2)) == 2  # by the only thread
            assert silent.code() is grpc.StatusCode.CANCELLED
        finally:
            ended.set()
    assert (server.answered(408), server.answered(200), server.answered(499)) == (1, 2, 0)


def test_a_version_that_cannot_be_tried_in_time_is_not_ready(server, go, monkeypatch):
    monkeypatch.setattr("sparsefleet.serving.http.READY_SECONDS", 0)
    monkeypatch.setattr(Predictor, "trouble", lambda self: "" if go.wait(60) else "nobody said go")
    call = server.grpc.service(SimpleNamespace(method=INFER.replace("ModelInfer", "ServerReady"))).unary_unary
    assert not call(b"", Context(left=0.2)).ready
    go.set()
    assert call(b"", Context(left=20)).ready


def test_a_request_that_is_none(server):
    with grpc.insecure_channel(server.about["grpc"]) as channel:
        answer = channel.unary_unary(INFER).future(b"\xff\xff", timeout=20)
        assert answer.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "is no ModelInferRequest" in answer.details()
        assert channel.unary_unary(INFER + "s").future(b"", timeout=20).code() is grpc.StatusCode.UNIMPLEMENTED


# -- a client's own end, at a moment that we choose --------------------------------------------------------------------


class Refused(Exception):
    pass


class Context:
    """gRPC's view of a call, in a thread of the server."""

    def __init__(self, left=None, active=True):
        self.left, self.active = left, active

    def invocation_metadata(self):
        return ()

    def time_remaining(self):
        return self.left

    def is_active(self):
        return self.active

    def add_callback(self, callback):
        return self.active

    def abort(self, code, details):
        raise Refused(code, details)


@pytest.fixture
def ask(trained, server, infer):
    types = server.grpc._types

    def asking(context, waited=0.0):
        with grpc.insecure_channel(server.about["grpc"]) as channel:
            fields = Calls(channel).tensors(trained.rows[:5])
        call = server.grpc.service(SimpleNamespace(method=INFER)).unary_unary
        call.came -= waited
        with pytest.raises(Refused) as refused:
            call(types["ModelInferRequest"](model_name="model", **fields).SerializeToString(), context)
        return refused.value.args

    return asking


def test_the_clients_deadline_is_told_as_such(server, ask):
    code, details = ask(Context(left=1.0))
    assert (code, details.partition(";")[0]) == (
        grpc.StatusCode.DEADLINE_EXCEEDED,
        "the request was not scored in its time",
    )
    assert server.answered(503) == 1


@pytest.mark.parametrize(("left", "code"), [(None, "UNAVAILABLE"), (60.0, "UNAVAILABLE"), (-1.0, "DEADLINE_EXCEEDED")])
def test_one_that_waited_too_long_for_a_thread_is_not_parsed(server, ask, parsed, left, code):
    waited = server.service.config.deadline + 1 if code == "UNAVAILABLE" else 0
    assert ask(Context(left), waited) == (
        grpc.StatusCode[code],
        "the request's time was up before it was read; try again later",
    )
    assert (parsed, server.answered(503)) == ([], 1)


def test_one_that_goes_while_it_is_parsed_is_not_scored(server, infer, ask, go, parsed):
    first = infer(1)
    wait_until(lambda: parsed, 20, "a call that keeps the scoring thread")
    ask(Context(active=False))
    go.set()
    assert scored(first) == 1
    assert scored(infer(2)) == 2
    assert (parsed, server.answered(499), server.told("rows_total")) == ([1, 5, 2], 1, 3)


def test_a_connection_that_does_not_say_that_it_speaks_grpc_is_ended(trained):
    with running(trained.bundles[0], header_timeout=1.0) as server:
        host, _, port = server.about["grpc"].rpartition(":")
        with socket.create_connection((host, int(port)), timeout=30) as silent, contextlib.suppress(ConnectionError):
            while silent.recv(4096):  # what the server says of itself, and then the end
                pass


def test_a_connection_without_a_call_is_ended(trained, monkeypatch):
    """Its client need not know: it connects again for the next call."""
    monkeypatch.setattr(kserve, "KEEP_ALIVE", 1)
    state, seen = grpc.ChannelConnectivity, []
    with running(trained.bundles[0]) as server, grpc.insecure_channel(server.about["grpc"]) as channel:
        channel.subscribe(seen.append)
        call = Calls(channel)
        assert call("ServerLive").live
        wait_until(lambda: state.READY in seen and seen[-1] is state.IDLE, 30, lambda: f"the end; {seen}")
        assert call("ServerLive").live


def test_a_second_ctrl_c_leaves_calls_under_way(server, infer):
    taken, hurried = infer(1), threading.Event()
    server.wait_for_calls(1)
    ending = asyncio.run_coroutine_threadsafe(server.grpc.close(hurried.is_set), server.loop)
    with pytest.raises(TimeoutError):
        ending.result(timeout=0.5)  # it has 30 seconds
    hurried.set()
    ending.result(timeout=10)
    assert taken.code() in (grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE)
