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
from sparsefleet.serving.answers import Answer, answer_bytes, refusal, told
from sparsefleet.serving.batcher import MERGED_REQUESTS, LateError, MicroBatcher, OverloadedError, Task
from sparsefleet.serving.kernels.request import count_byte
from sparsefleet.serving.log import tell_failure
from sparsefleet.serving.metrics import Metrics
from sparsefleet.serving.predictor import Predictor, Scores
from sparsefleet.serving.request_log import RequestLog
from sparsefleet.serving.samples import RequestError, split_request_id
from sparsefleet.serving.source import SourceError
from sparsefleet.serving.versions import Versions

JSON = {"content-type": "application/json"}
LISTS = re.compile(rb'"rows"\s*:\s*\[\s*\[')
USUAL = b'{"rows"'
HEAD = 4096
"""Where a request's list of rows begins, unless it is a strange one."""


def most_samples(body: bytes) -> int:
    """The most samples that a JSON request can hold: all are objects or all are lists, within one more of that kind."""
    if body.startswith(USUAL):  # no need to look further than the first bracket
        at = body.find(b"[", len(USUAL), HEAD)
        lists = at > 0 and body[at + 1 : at + 64].lstrip()[:1] == b"["
    else:
        lists = LISTS.search(body, 0, HEAD) is not None
    return max(1, count_byte(body, b"[" if lists else b"{") - 1)


@dataclass(slots=True, eq=False)
class DirectRequest:
    body: bytes
    samples: int
    done: Callable[[Answer], None]
    came: float
    deadline: float
    """Of time.monotonic()."""
    logged: bool = True
    task: Task | None = None
    request_id: str | int | None = None
    batch: Batch | None = None
    answer: Answer | None = None
    given_up: bool = False
    """Its time was up: it has been answered, and counted."""


class DirectRequests:
    """`ask` is called on the event loop on which this was made, and `done` is called there."""

    def __init__(
        self, versions: Versions, batcher: MicroBatcher, metrics: Metrics, log: RequestLog | None = None
    ) -> None:
        self._versions, self._batcher, self._metrics, self._log = versions, batcher, metrics, log
        self._loop = asyncio.get_running_loop()

    def ask(
        self, body: bytes, samples: int, seconds: float, done: Callable[[Answer], None], logged: bool = True
    ) -> DirectRequest:
        """`samples`: the most that the body can hold (`most_samples`). `seconds`: in which it is to be answered.

        `done` is called exactly once, unless the request is abandoned.
        """
        request = DirectRequest(body, samples, done, time.perf_counter(), time.monotonic() + seconds, logged)
        try:
            merges = self._versions.shadow is None and self._versions.current.merges
            request.task = self._batcher.submit(self._work, request, samples, request.deadline, merges)
        except OverloadedError as error:
            self._refuse([request], error)
            self._metrics.answered("/v1/predict", 429, 0.0)
            self._loop.call_soon(self._deliver, [request])
        return request

    def abandon(self, request: DirectRequest) -> None:
        """The client has gone: what is not done yet need not be done."""
        if request.task is not None and self._batcher.drop(request.task):
            self._metrics.answered("/v1/predict", 499, time.perf_counter() - request.came)

    def give_up(self, request: DirectRequest) -> Answer:
        """The answer to a request whose time is up: its own, where that only waits for others of its group.

        A thread that works on it already works for nobody.
        """
        request.done = _to_nobody
        if (answer := request.answer) is None:
            if request.task is not None:
                self._batcher.drop(request.task)
            request.given_up = True
            answer = self._refuse([request], LateError("the request was not scored in its time; try again later"))
            self._metrics.answered("/v1/predict", 503, time.perf_counter() - request.came)
        return answer

    def too_slow(self, seconds: float, what: str = "body") -> Answer:
        """The answer to a request whose body (or head) did not come within `seconds`."""
        body = b'{"error":"the %b did not come within %g seconds"}' % (what.encode(), seconds)
        self._metrics.answered("/v1/predict", 408, seconds)
        return 408, body, {**JSON, "connection": "close"}

    def _work(self, requests: Sequence[DirectRequest]) -> None:
        """In a scoring thread: answers all of them."""
        # A request takes its version here, not when it came: one that waited through a switch is of the new version.
        try:
            canary = [request for request in requests if self._of_canary(request)] if self._versions.canary else []
            if canary:
                self._answer_together(canary, canary=True)
            self._answer_together([one for one in requests if one not in canary] if canary else requests)
        except Exception as error:  # a bug of ours: whoever asked must hear of it
            self._refuse([request for request in requests if request.answer is None], error)
        for request in requests:
            if request.answer is not None and not request.given_up:
                self._metrics.answered("/v1/predict", request.answer[0], time.perf_counter() - request.came)
        try:
            self._loop.call_soon_threadsafe(self._deliver, requests)
        except RuntimeError:  # the event loop has ended, and with it all who waited
            return

    def _of_canary(self, request: DirectRequest) -> bool:
        try:
            return self._versions.chooses_canary(split_request_id(request.body)[0])
        except RequestError:
            return False

    def _answer_together(self, requests: Sequence[DirectRequest], canary: bool = False) -> None:
        with self._versions.hold(canary) as predictor:
            now = time.monotonic()
            if late := [request for request in requests if request.deadline < now]:
                self._refuse(late, LateError("the request's time was up before it was scored; try again later"))
                requests = [request for request in requests if request.answer is None]
            if self._versions.shadow is None:  # a shadow needs what was parsed
                requests = self._score_bodies(predictor, requests)
            for request in requests:
                try:
                    request.request_id, request.batch = predictor.parser.identified(request.body)
                except Exception as error:
                    self._refuse([request], error)
            self._score(predictor, [request for request in requests if request.answer is None])

    def _score_bodies(self, predictor: Predictor, requests: Sequence[DirectRequest]) -> Sequence[DirectRequest]:
        """In one native call those that can be; returns the others."""
        # Many short ones are better off as one batch for the network.
        if not 0 < len(requests) <= (MERGED_REQUESTS if predictor.merges else 1):
            return requests
        try:
            found = predictor.score_bodies(
                [request.body for request in requests], [request.samples for request in requests]
            )
        except Exception as error:
            self._refuse(requests, error)
            return ()
        scored = [(request, one) for request, one in zip(requests, found, strict=True) if one is not None]
        if not scored:
            return requests
        self._metrics.scored(predictor.version, (), len(scored), Scores.joined([one for _, one in scored]))
        for request, one in scored:
            self._tell(predictor, request, one)
        return [request for request, one in zip(requests, found, strict=True) if one is None]

    def _score(self, predictor: Predictor, requests: Sequence[DirectRequest]) -> None:
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
        self._batcher.scored(predictor, batch, len(requests), scores)
        start = 0
        for request in requests:
            stop = start + (len(request.batch) if request.batch is not None else 0)
            self._tell(predictor, request, scores.part(start, stop))
            start = stop
        self._batcher.answered(predictor, batch, scores)

    def _tell(self, predictor: Predictor, request: DirectRequest, scores: Scores) -> None:
        try:
            body = answer_bytes(predictor.version, scores, request.request_id)
        except Exception as error:
            self._refuse([request], error)
            return
        if request.given_up:
            return
        request.answer = 200, body, JSON
        self._metrics.predicted(predictor.version)
        if self._log is not None and request.logged:
            self._log.add(body, request.body)

    def _refuse(self, requests: Sequence[DirectRequest], error: Exception) -> Answer:
        answer = refusal(error, self._versions.current.version)
        if answer is None:
            tell_failure(error)
            answer = 500, b'{"error":"the server failed; its log says why"}', JSON
        for request in requests:
            request.answer = told(answer)
        return answer

    @staticmethod
    def _deliver(requests: Sequence[DirectRequest]) -> None:
        for request in requests:
            if request.answer is not None:
                request.done(request.answer)


def _to_nobody(answer: Answer) -> None:
    """Where the answer to a request goes that was given up."""
