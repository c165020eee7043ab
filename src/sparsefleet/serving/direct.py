"""DirectRequests: the scoring threads parse, score and answer the bodies of plain predictions.

The event loop only carries bytes: a request crosses to a thread once and back once, and all answers that a thread has
made together cross back together.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sparsefleet.core.batch import Batch
from sparsefleet.serving.answers import Answer, answer_bytes, refusal
from sparsefleet.serving.batcher import MicroBatcher, OverloadedError
from sparsefleet.serving.kernels.request import count_byte
from sparsefleet.serving.log import tell_failure
from sparsefleet.serving.metrics import Metrics
from sparsefleet.serving.predictor import Predictor
from sparsefleet.serving.request_log import RequestLog
from sparsefleet.serving.source import SourceError
from sparsefleet.serving.versions import Versions

JSON = {"content-type": "application/json"}
LISTS = re.compile(rb'\s*\{\s*"rows"\s*:\s*\[\s*\[')


def most_samples(body: bytes) -> int:
    """The most samples that a JSON request can hold: all are objects or all are lists, within one more of that kind."""
    return max(1, count_byte(body, b"[" if LISTS.match(body) else b"{") - 1)


@dataclass(slots=True)
class _Request:
    body: bytes
    samples: int
    done: Callable[[Answer], None]
    came: float
    batch: Batch | None = None
    answer: Answer | None = None


class DirectRequests:
    """`ask` is called on the event loop on which this was made, and `done` is called there."""

    def __init__(
        self, versions: Versions, batcher: MicroBatcher, metrics: Metrics, log: RequestLog | None = None
    ) -> None:
        self._versions, self._batcher, self._metrics, self._log = versions, batcher, metrics, log
        self._loop = asyncio.get_running_loop()

    def ask(self, body: bytes, samples: int, done: Callable[[Answer], None]) -> None:
        """`samples`: the most that the body can hold (`most_samples`). `done` is called in any case, exactly once."""
        request = _Request(body, samples, done, time.perf_counter())
        try:
            self._batcher.submit(self._work, request, samples)
        except OverloadedError as error:
            self._refuse([request], error)
            self._loop.call_soon(self._deliver, [request])

    def too_slow(self, seconds: float) -> Answer:
        """The answer to a request whose body did not come within `seconds`."""
        body = b'{"error":"the body did not come within %g seconds"}' % seconds
        self._metrics.answered("/v1/predict", 408, seconds)
        return 408, body, {**JSON, "connection": "close"}

    def _work(self, requests: Sequence[_Request]) -> None:
        """In a scoring thread: answers all of them."""
        # A request takes its version here, not when it came: one that waited through a switch is of the new version.
        try:
            with self._versions.hold() as predictor:
                for request in requests:
                    try:
                        request.batch = predictor.parser.body(request.body)
                    except Exception as error:
                        self._refuse([request], error)
                self._score(predictor, [request for request in requests if request.answer is None])
        except Exception as error:  # a bug of ours: whoever asked must hear of it
            self._refuse([request for request in requests if request.answer is None], error)
        for request in requests:
            if request.answer is not None:
                self._metrics.answered("/v1/predict", request.answer[0], time.perf_counter() - request.came)
        try:
            self._loop.call_soon_threadsafe(self._deliver, requests)
        except RuntimeError:  # the event loop has ended, and with it all who waited
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
                self._score(predictor, [request])  # some of them may find all their rows in the cache
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
            tell_failure(error)
            answer = 500, b'{"error":"the server failed; its log says why"}', JSON
        for request in requests:
            request.answer = answer

    @staticmethod
    def _deliver(requests: Sequence[_Request]) -> None:
        for request in requests:
            if request.answer is not None:
                request.done(request.answer)
