"""MicroBatcher: requests that wait at the same time are scored together.

Nobody waits for company: a free thread takes what is there. Under load that is several requests at once, which the
network scores faster than one by one; without load it is one.
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
from sparsefleet.serving.metrics import Metrics
from sparsefleet.serving.predictor import Predictor
from sparsefleet.serving.source import SourceError

JOINED_ROWS = 128
"""Requests are joined up to so many rows. The network gains little from more; and the more one thread takes, the sooner
the queue is empty and the others wait for clients to ask again."""


class OverloadedError(SparseFleetError):
    """More rows wait than are allowed to."""


@dataclass(slots=True)
class _Waiting:
    predictor: Predictor
    batch: Batch
    answer: asyncio.Future[F32]


class _Task(NamedTuple):
    """`work` is called in a scoring thread, with the items of all tasks that are taken together."""

    work: Callable[[list[Any]], None]
    joins: object
    """Tasks of the same one may be taken together."""
    rows: int
    item: Any


class MicroBatcher:
    """Owns the scoring threads. `score` is called on one event loop; a batch holds rows of one predictor only."""

    def __init__(self, threads: int, batch_rows: int, max_waiting_rows: int, metrics: Metrics) -> None:
        self._batch_rows, self._max_waiting, self._metrics = batch_rows, max_waiting_rows, metrics
        self._joined_rows = min(batch_rows, JOINED_ROWS)
        self._queue: deque[_Task] = deque()
        self._rows = 0
        self._changed = threading.Condition()
        self._closing = False
        self._loop = asyncio.get_running_loop()
        self._threads = [
            threading.Thread(target=self._work, name=f"score-{index}", daemon=True) for index in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def waiting_rows(self) -> int:
        return self._rows

    async def score(self, predictor: Predictor, batch: Batch) -> F32:
        """Probabilities [B], all of this predictor; an error of the scoring is raised here."""
        if not len(batch):
            return np.empty(0, np.float32)
        self._check_room(len(batch))
        # A long request goes piece by piece, so that short ones need not wait for all of it.
        pieces = [
            _Waiting(
                predictor, batch.rows(start, min(start + self._batch_rows, len(batch))), self._loop.create_future()
            )
            for start in range(0, len(batch), self._batch_rows)
        ]
        with self._changed:
            self._queue.extend(_Task(self._score, predictor, len(piece.batch), piece) for piece in pieces)
            self._rows += len(batch)
            self._changed.notify(len(pieces))
        if len(pieces) == 1:
            return await pieces[0].answer
        return np.concatenate(await asyncio.gather(*(piece.answer for piece in pieces)))

    def submit(self, work: Callable[[list[Any]], None], item: Any, rows: int) -> None:
        """Have `work` called in a scoring thread, with this item and others of the same work that wait beside it."""
        self._check_room(rows)
        with self._changed:
            self._queue.append(_Task(work, work, rows, item))
            self._rows += rows
            self._changed.notify()

    def _check_room(self, rows: int) -> None:
        if self._rows + rows > self._max_waiting and self._rows:
            raise OverloadedError(
                f"{self._rows} rows wait to be scored, {self._max_waiting} are allowed; try again later"
            )

    def close(self) -> None:
        """End the threads once nothing waits."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(timeout=10)

    def _work(self) -> None:
        while group := self._next():
            group[0].work([task.item for task in group])

    def _score(self, group: list[_Waiting]) -> None:
        try:
            batch = Batch.concat([waiting.batch for waiting in group])
            scores = group[0].predictor.score(batch)
        except SourceError as error:
            if len(group) == 1:
                self._tell(self._fail, group, error)
            for waiting in group if len(group) > 1 else ():
                self._score([waiting])  # rows of some of them may be at hand
        except Exception as error:
            self._tell(self._fail, group, error)
        else:
            self._metrics.scored(len(batch), len(group), scores.keys, scores.unknown)
            self._tell(self._deliver, group, scores.probabilities)

    def _next(self) -> list[_Task]:
        """What waits longest, and what goes with it; empty when the threads are to end."""
        with self._changed:
            while not self._queue:
                if self._closing:
                    return []
                self._changed.wait()
            group = [self._queue.popleft()]
            rows = group[0].rows
            while self._queue:
                task = self._queue[0]
                if task.joins != group[0].joins or rows + task.rows > self._joined_rows:
                    break
                rows += task.rows
                group.append(self._queue.popleft())
            self._rows -= rows
        return group

    def _tell(self, what: object, group: list[_Waiting], outcome: object) -> None:
        try:
            self._loop.call_soon_threadsafe(what, group, outcome)  # type: ignore[arg-type]
        except RuntimeError:  # the loop has ended: nobody waits any more
            return

    @staticmethod
    def _deliver(group: list[_Waiting], probabilities: F32) -> None:
        start = 0
        for waiting in group:
            stop = start + len(waiting.batch)
            if not waiting.answer.done():  # a client that went away has cancelled its request
                waiting.answer.set_result(probabilities[start:stop])
            start = stop

    @staticmethod
    def _fail(group: list[_Waiting], error: Exception) -> None:
        for waiting in group:
            if not waiting.answer.done():
                waiting.answer.set_exception(error)
