"""MicroBatcher: requests that wait at the same time are scored together.

No request waits for another to come: a free thread takes what is there. Under load that is several requests at once,
which the network scores faster than one by one; without load it is one.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from sparsefleet.core.batch import F32, Batch
from sparsefleet.core.errors import SparseFleetError
from sparsefleet.serving.log import tell_failure
from sparsefleet.serving.metrics import Metrics
from sparsefleet.serving.predictor import Predictor
from sparsefleet.serving.source import SourceError

JOINED_SAMPLES = 128
"""Requests are joined up to so many samples. The network gains little from more; and the more one thread takes, the
sooner the queue is empty and the other threads have nothing to do until clients ask again."""
ANSWER_SECONDS = 60.0
"""The longest that a request waits for its scores."""
IDLE_SECONDS = 60.0
"""How often a thread without work wakes to look whether there is some."""


class OverloadedError(SparseFleetError):
    """More samples wait than may, or a request has waited too long."""


@dataclass(slots=True)
class _Waiting:
    predictor: Predictor
    batch: Batch
    answer: asyncio.Future[F32]


class _Task(NamedTuple):
    """A scoring thread calls `work` with the items of all tasks that it takes together."""

    work: Callable[[list[Any]], None]
    joins: object
    """Tasks with an equal `joins` may be taken together."""
    samples: int
    item: Any


class MicroBatcher:
    """Owns the scoring threads. `score` is called on one event loop. A batch holds samples for one predictor only."""

    def __init__(self, threads: int, batch_rows: int, max_waiting_rows: int, metrics: Metrics) -> None:
        self._piece, self._max_waiting, self._metrics = batch_rows, max_waiting_rows, metrics
        self._joined = min(batch_rows, JOINED_SAMPLES)
        self._queue: deque[_Task] = deque()
        self._waiting = 0
        self._changed = threading.Condition()
        self._closing = False
        self._loop = asyncio.get_running_loop()
        self._threads = [
            threading.Thread(target=self._work, name=f"score-{index}", daemon=True) for index in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def waiting(self) -> int:
        """Samples that wait to be scored."""
        return self._waiting

    async def score(self, predictor: Predictor, batch: Batch) -> F32:
        """Probabilities [B], all of this predictor. An error while scoring is raised here."""
        if not len(batch):
            return np.empty(0, np.float32)
        self._check_room(len(batch))
        # A long request goes piece by piece, so that short ones need not wait for all of it.
        pieces = [
            _Waiting(predictor, batch.samples(start, min(start + self._piece, len(batch))), self._loop.create_future())
            for start in range(0, len(batch), self._piece)
        ]
        with self._changed:
            self._queue.extend(_Task(self._score, predictor, len(piece.batch), piece) for piece in pieces)
            self._waiting += len(batch)
            self._changed.notify(len(pieces))
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                if len(pieces) == 1:
                    return await pieces[0].answer
                return np.concatenate(await asyncio.gather(*(piece.answer for piece in pieces)))
        except TimeoutError:
            raise OverloadedError(
                f"the request was not scored within {ANSWER_SECONDS:g} seconds; try again later"
            ) from None

    def submit(self, work: Callable[[list[Any]], None], item: Any, samples: int) -> None:
        """Have a scoring thread call `work` with this item and others of the same work that wait beside it."""
        self._check_room(samples)
        with self._changed:
            self._queue.append(_Task(work, work, samples, item))
            self._waiting += samples
            self._changed.notify()

    def _check_room(self, samples: int) -> None:
        if self._waiting + samples > self._max_waiting and self._waiting:
            raise OverloadedError(
                f"{self._waiting} rows wait to be scored, {self._max_waiting} are allowed; try again later"
            )

    def close(self) -> None:
        """End the threads once nothing waits; one that does not end within 10 seconds is left to the process's end."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(timeout=10)

    def _work(self) -> None:
        while group := self._next():
            try:
                group[0].work([task.item for task in group])
            except Exception as error:  # a bug of ours: the thread must live on, or nobody would score
                tell_failure(error)

    def _score(self, group: list[_Waiting]) -> None:
        try:
            batch = Batch.concat([waiting.batch for waiting in group])
            scores = group[0].predictor.score(batch)
        except SourceError as error:
            if len(group) == 1:
                self._tell(self._fail, group, error)
            for waiting in group if len(group) > 1 else ():
                self._score([waiting])  # some of them may find all their rows in the cache
        except Exception as error:
            self._tell(self._fail, group, error)
        else:
            self._metrics.scored(len(batch), len(group), scores.keys, scores.unknown)
            self._tell(self._deliver, group, scores.probabilities)

    def _next(self) -> list[_Task]:
        """The task that has waited longest, and those that may be taken with it; empty when the thread is to end."""
        with self._changed:
            while not self._queue:
                if self._closing:
                    return []
                self._changed.wait(IDLE_SECONDS)
            group = [self._queue.popleft()]
            samples = group[0].samples
            while self._queue:
                task = self._queue[0]
                if task.joins != group[0].joins or samples + task.samples > self._joined:
                    break
                samples += task.samples
                group.append(self._queue.popleft())
            self._waiting -= samples
        return group

    def _tell(self, what: object, group: list[_Waiting], outcome: object) -> None:
        try:
            self._loop.call_soon_threadsafe(what, group, outcome)  # type: ignore[arg-type]
        except RuntimeError:  # the event loop has ended, and with it all who waited
            return

    @staticmethod
    def _deliver(group: list[_Waiting], probabilities: F32) -> None:
        start = 0
        for waiting in group:
            stop = start + len(waiting.batch)
            if not waiting.answer.done():  # done: the client has gone, or its wait has timed out
                waiting.answer.set_result(probabilities[start:stop])
            start = stop

    @staticmethod
    def _fail(group: list[_Waiting], error: Exception) -> None:
        for waiting in group:
            if not waiting.answer.done():
                waiting.answer.set_exception(error)
