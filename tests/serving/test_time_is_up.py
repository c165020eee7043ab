"""Requests whose time is up: what they are told, whoever they wait for."""

import asyncio
import time
from types import SimpleNamespace

import numpy as np
import pytest
import uvicorn

from sparsefleet.serving.batcher import LateError, MicroBatcher, OverloadedError
from sparsefleet.serving.direct import JSON, DirectRequests
from sparsefleet.serving.metrics import Metrics
from sparsefleet.serving.predictor import Scores
from sparsefleet.serving.server import _Server


class Waiting:
    """In place of the batcher: the test says what its threads do, and when."""

    def submit(self, work, item, samples, deadline, merges):
        return SimpleNamespace(dropped=False)

    def drop(self, task):
        task.dropped = True
        return True


def direct_requests(metrics, log=None):
    versions = SimpleNamespace(current=SimpleNamespace(version="v1", merges=False), shadow=None)
    return DirectRequests(versions, Waiting(), metrics, log)


def told(metrics, name):
    return [line for line in metrics.text("v1", 0, {}).splitlines() if line.startswith(f"sparsefleet_{name}")]


def test_an_answer_that_waits_for_others_of_its_group_is_given_when_the_time_is_up():
    """The others wait for Redis, say. It is told once, and not again with the others."""

    async def run():
        delivered = []
        direct = direct_requests(Metrics())
        request = direct.ask(b"{}", 1, 0.1, delivered.append)
        request.answer = answer = (200, b'{"scores": [0.5]}', JSON)
        assert direct.give_up(request) == answer
        direct._deliver([request])
        assert (delivered, request.task.dropped) == ([], False)

    asyncio.run(run())


def test_what_is_scored_for_nobody_is_no_answer():
    """Neither in the metrics nor in the log of requests."""

    async def run():
        delivered, logged, metrics = [], [], Metrics()
        direct = direct_requests(metrics, SimpleNamespace(add=lambda *what: logged.append(what)))
        request = direct.ask(b"{}", 1, 0.1, delivered.append)
        status, body, _ = direct.give_up(request)
        assert (status, b"not scored in its time" in body) == (503, True)
        scores = Scores(np.array([0.5], np.float32), 1, 0)
        direct._tell(SimpleNamespace(version="v1"), request, scores)
        direct._deliver([request])
        assert (delivered, logged, told(metrics, "answers_total")) == ([], [], [])
        assert told(metrics, "requests_total") == ['sparsefleet_requests_total{path="/v1/predict",status="503"} 1']

    asyncio.run(run())


def test_one_that_comes_too_late_and_waits_for_nobody_is_late_and_not_one_too_many():
    """Its body took all of its time: 503, not 429 because of "0 rows before this request"."""

    async def run():
        batcher = MicroBatcher(1, 100, 100, Metrics())
        try:
            late = time.monotonic() - 1
            batcher.check_room(5, late)
            with pytest.raises(LateError):
                await batcher.call(len, (), samples=5, deadline=late)
            batcher._row_seconds = 1.0
            batcher._short_rows = 5
            with pytest.raises(OverloadedError, match="5 rows wait before this request"):
                batcher.check_room(5, late)
            batcher._short_rows = 0
        finally:
            batcher.close()

    asyncio.run(run())


def test_the_time_of_requests_under_way_at_the_end_is_one_for_grpc_and_http(monkeypatch):
    """Kubernetes waits for --linger and --drain-timeout together, and then kills."""
    left = []

    async def shutdown(self, sockets=None):
        left.append(self.config.timeout_graceful_shutdown)

    async def run():
        server = _Server(uvicorn.Config(lambda: None, timeout_graceful_shutdown=60), {})
        server.lifespan = SimpleNamespace(state={})
        server._grpc = SimpleNamespace(close=lambda hurried: asyncio.sleep(2))
        await server.shutdown()

    monkeypatch.setattr(uvicorn.Server, "shutdown", shutdown)
    asyncio.run(run())
    assert 1 <= left[0] <= 58
