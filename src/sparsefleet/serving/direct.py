"""DirectRequests: bodies of plain predictions, parsed, scored and answered within the scoring threads.

The event loop only carries bytes: a request crosses to a thread once and back once, and all that a thread has answered
comes back together.
"""

from __future__ import annotations

import asyncio
import re
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sparsefleet.core.batch import Batch
from sparsefleet.kernels.request import count_byte
from sparsefleet.serving.answers import Answer, answer_bytes, refusal
from sparsefleet.serving.batcher import MicroBatcher, OverloadedError
from sparsefleet.serving.metrics import Metrics
from sparsefleet.serving.predictor import Predictor
from sparsefleet.serving.request_log import RequestLog
from sparsefleet.serving.source import SourceError
from sparsefleet.serving.versions import Versions

JSON = {"content-type": "application/json"}
LISTS = re.compile(rb'\s*\{\s*"rows"\s*:\s*\[\s*\[')


def most_rows(body: bytes) -> int:
    """A JSON request has no more rows: all are objects or all are lists, and one of that kind is around them."""
    return max(1, count_byte(body, b"[" if LISTS.match(body) else b"{") - 1)


@dataclass(slots=True)
class _Request:
    body: bytes
    rows: int
    done: Callable[[Answer], None]
    came: float
    batch: Batch | None = None
    answer: Answer | None = None


class DirectRequests:
    """`ask` is called on the event loop that it was made on, and answers there."""

    def __init__(
        self, versions: Versions, batcher: MicroBatcher, metrics: Metrics, log: RequestLog | None = None
    ) -> None:
        self._versions, self._batcher, self._metrics, self._log = versions, batcher, metrics, log
        self._loop = asyncio.get_running_loop()

    def ask(self, body: bytes, rows: int, done: Callable[[Answer], None]) -> None:
        """`rows`: at most so many, by `most_rows`. `done` always comes to be called."""
        request = _Request(body, rows, done, time.perf_counter())
        try:
            self._batcher.submit(self._work, request, rows)
        except OverloadedError as error:
            self._refuse([request], error)
            self._loop.call_soon(self._deliver, [request])

    def too_slow(self, seconds: float) -> Answer:
        """For a request whose body has not come in that time."""
        body = b'{"error":"the body did not come within %g seconds"}' % seconds
        self._metrics.answered("/v1/predict", 408, seconds)
        return 408, body, {**JSON, "connection": "close"}

    def _work(self, requests: Sequence[_Request]) -> None:
        """In a scoring thread: answers all of them."""
        # Held from here on only: a switch before it finds the request unbegun, so it is of the new version as a whole.
        with self._versions.hold() as predictor:
            for request in requests:
                try:
                    request.batch = predictor.parser.body(request.body)
                except Exception as error:
                    self._refuse([request], error)
            self._score(predictor, [request for request in requests if request.answer is None])
        for request in requests:
            if request.answer is not None:
                self._metrics.answered("/v1/predict", request.answer[0], time.perf_counter() - request.came)
        try:
            self._loop.call_soon_threadsafe(self._deliver, requests)
        except RuntimeError:  # the loop has ended: nobody waits any more
            return

    def _score(self, predictor: Predictor, requests: Sequence[_Request]) -> None:
        if not requests:
            return
        try:
            batch = Batch.concat([request.batch for request in requests if request.batch is not None])
            scores = predictor.score(batch)
        except SourceError as error:
            if len(requests) == 1:
                self._refuse(requests, error)
            for request in requests if len(requests) > 1 else ():
                self._score(predictor, [request])  # rows of some of them may be at hand
            return
        except Exception as error:
            self._refuse(requests, error)
            return
        self._metrics.scored(len(batch), len(requests), scores.keys, scores.unknown)
        start = 0
        for request in requests:
            stop = start + (len(request.batch) if request.batch is not None else 0)
            try:
                body = answer_bytes(predictor.version, scores.probabilities[start:stop])
            except Exception as error:
                self._refuse([request], error)
            else:
                request.answer = 200, body, JSON
                self._metrics.predicted(predictor.version)
                if self._log is not None:
                    self._log.add(body, request.body)
            start = stop

    def _refuse(self, requests: Sequence[_Request], error: Exception) -> None:
        answer = refusal(error, self._versions.current.version)
        if answer is None:
            traceback.print_exception(error)
            answer = 500, b'{"error":"the server failed; its log says why"}', JSON
        for request in requests:
            request.answer = answer

    @staticmethod
    def _deliver(requests: Sequence[_Request]) -> None:
        for request in requests:
            if request.answer is not None:
                request.done(request.answer)
