"""MicroBatcher: requests that wait at the same time are scored together, short ones first.

No request waits for another to come: a free thread takes what is there. Under load that is several requests at once,
which the network scores faster than one by one; without load it is one.

Long requests (more than `SMALL_SAMPLES`) wait in a queue of their own and go piece by piece. They get one turn after
every `SMALL_TURNS` of the short ones, so neither starves. While short requests come, one thread is kept for them.

Whoever would wait longer than he is willing to is refused at the door; work whose client has gone is dropped.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from sparsefleet.core.batch import Batch
from sparsefleet.core.errors import SparseFleetError
from sparsefleet.serving.log import tell_failure
from sparsefleet.serving.metrics import Metrics
from sparsefleet.serving.predictor import Predictor, Scores
from sparsefleet.serving.source import SourceError

T = TypeVar("T")

JOINED_SAMPLES = 128
"""Requests are joined up to so many samples. The network gains little from more; and the more one thread takes, the
sooner the queue is empty and the other threads have nothing to do until clients ask again."""
SMALL_SAMPLES = 128
"""Requests of more samples are long: they wait for shorter ones, and are cut into pieces of this size."""
MERGED_REQUESTS = 4
"""Requests whose rows come over a network are merged up to so many."""
MERGED_SAMPLES = 32
"""Requests of fewer samples are not merged with larger ones: they would wait for those."""
SMALL_TURNS = 8
"""Groups of short requests that are taken before a long one gets its turn."""
RESERVED_SECONDS = 0.2
"""So long after a short request, one thread takes no long ones."""
END_SECONDS = 2.0
"""What the threads get, all together, to end. Requests have had their time before."""
IDLE_SECONDS = 60.0
"""How often a thread without work wakes to look whether there is some."""


class OverloadedError(SparseFleetError):
    """The server would not get to this request in time: it is refused at the door, and nothing was done for it."""

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = max(1, math.ceil(min(retry_after, 60.0)))


class LateError(SparseFleetError):
    """A request was taken, and its time was up before it was scored."""


@dataclass(slots=True, eq=False)
class _Piece:
    predictor: Predictor
    batch: Batch
    answer: asyncio.Future[Scores]
    deadline: float


@dataclass(slots=True, eq=False)
class Task:
    """A scoring thread calls `work` with the items of all tasks that it takes together."""

    work: Callable[[list[Any]], None]
    joins: object
    """Tasks with an equal `joins` may be taken together."""
    samples: int
    item: Any
    """Let go of as soon as the task is taken: an item that knows its task would else live on, with the bytes of its
    request, until the garbage collector finds the two of them."""
    long: bool
    merges: bool = False
    """It would wait for a network alone: so it is taken with others beyond `JOINED_SAMPLES`."""
    taken: bool = False
    """By a thread, or dropped."""


class MicroBatcher:
    """Owns the scoring threads. `score` is called on one event loop. A batch holds samples for one predictor only."""

    def __init__(self, threads: int, batch_rows: int, queue_rows: int, metrics: Metrics) -> None:
        self._queue_rows, self._metrics = queue_rows, metrics
        self._joined = min(batch_rows, JOINED_SAMPLES)
        self._piece = min(batch_rows, SMALL_SAMPLES)
        self._short: deque[Task] = deque()
        self._long: deque[Task] = deque()
        self._short_rows = self._long_rows = 0
        self._turns = 0
        """Groups of short requests taken while a long one waited."""
        self._on_long = 0
        """Threads that work on a long request."""
        self._last_short = 0.0
        self._row_seconds = 0.0
        """Of one thread, for one sample: a moving mean of the last groups."""
        self._changed = threading.Condition()
        self._closing = False
        self.follow: Callable[[Predictor, Batch, Scores], None] | None = None
        """Called by the scoring threads with all that was scored for answers: the shadow's."""
        self._loop = asyncio.get_running_loop()
        self._threads = [
            threading.Thread(target=self._work, name=f"score-{index}", daemon=True) for index in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def waiting(self) -> int:
        """Samples that wait to be scored."""
        return self._short_rows + self._long_rows

    async def score(self, predictor: Predictor, batch: Batch, deadline: float) -> Scores:
        """The scores of all samples, by this predictor. An error while scoring is raised here.

        `deadline`: of time.monotonic(). Cancelled, it drops what is not under way yet. Whoever calls has asked before
        (`check_room`): a request that is parsed is not refused any more.
        """
        if not len(batch):
            return predictor.no_scores()
        long = len(batch) > SMALL_SAMPLES
        pieces = [
            _Piece(
                predictor,
                batch.samples(start, min(start + self._piece, len(batch))),
                self._loop.create_future(),
                deadline,
            )
            for start in range(0, len(batch), self._piece)
        ]
        tasks = [Task(self._score, predictor, len(piece.batch), piece, long) for piece in pieces]
        self._put(tasks)
        return Scores.joined(await self._answers(tasks, [piece.answer for piece in pieces], deadline))

    async def call(self, function: Callable[..., T], *arguments: Any, samples: int, deadline: float) -> T:
        """Have a scoring thread parse a long request: it takes its turn like a piece of one."""
        answer: asyncio.Future[T] = self._loop.create_future()
        task = Task(self._call, answer, samples, (answer, function, arguments), True)
        self._put([task])
        return (await self._answers([task], [answer], deadline))[0]

    def submit(
        self, work: Callable[[list[Any]], None], item: Any, samples: int, deadline: float, merges: bool = False
    ) -> Task:
        """Have a scoring thread call `work` with this item and others of the same work that wait beside it."""
        self.check_room(samples, deadline)
        task = Task(work, work, samples, item, samples > SMALL_SAMPLES, merges and samples >= MERGED_SAMPLES)
        self._put([task])
        return task

    def submit_idle(self, work: Callable[[list[Any]], None], item: Any, samples: int) -> bool:
        """The same for work that nobody waits for: it is taken only where little else waits. Whether it was."""
        if self.waiting > self._joined:
            return False
        self._put([Task(work, item, samples, item, True)])
        return True

    def drop(self, task: Task) -> bool:
        """Nobody waits for this any more. False: it is under way, or done."""
        with self._changed:
            if task.taken:
                return False
            task.taken, task.item = True, None
            (self._long if task.long else self._short).remove(task)
            self._count(task, -1)
        self._metrics.dropped(task.samples)
        return True

    def scored(self, predictor: Predictor, batch: Batch, requests: int, scores: Scores) -> None:
        """Count what was scored for answers, whichever way its requests came."""
        self._metrics.scored(predictor.version, batch.slots, requests, scores)
        if scores.by_slot is not None and predictor.drift is not None:
            predictor.drift.add(batch, scores.by_slot)

    def answered(self, predictor: Predictor, batch: Batch, scores: Scores) -> None:
        """What was scored has been told: now the shadow may score along."""
        if self.follow is not None:
            self.follow(predictor, batch, scores)

    def check_room(self, samples: int, deadline: float) -> None:
        """OverloadedError where a request of so many samples should not wait."""
        # Short requests do not wait for long ones, so these keep none of them out.
        ahead = self.waiting if samples > SMALL_SAMPLES else self._short_rows
        expected, left = ahead * self._row_seconds / len(self._threads), deadline - time.monotonic()
        if ahead and ahead + samples > self._queue_rows:
            raise OverloadedError(
                f"{ahead} rows wait to be scored, {self._queue_rows} are allowed (--queue-rows); try again later",
                expected,
            )
        if expected > max(left, 0.0):  # one whose time is up already has LateError, and no row to wait behind
            raise OverloadedError(
                f"{ahead} rows wait before this request, for about {expected:.1f} seconds; it has {max(left, 0):.1f}",
                expected,
            )

    def close(self) -> None:
        """End the threads once nothing waits; those that have not ended by then are left to the process's end."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        until = time.monotonic() + END_SECONDS
        for thread in self._threads:
            thread.join(timeout=max(0.0, until - time.monotonic()))

    # -- queues --------------------------------------------------------------------------------------------------------

    def _put(self, tasks: list[Task]) -> None:
        with self._changed:
            for task in tasks:
                (self._long if task.long else self._short).append(task)
                self._count(task, 1)
            if not tasks[0].long:
                self._last_short = time.monotonic()
            self._changed.notify(len(tasks))

    def _count(self, task: Task, sign: int) -> None:
        if task.long:
            self._long_rows += sign * task.samples
        else:
            self._short_rows += sign * task.samples

    async def _answers(self, tasks: list[Task], answers: list[asyncio.Future[T]], deadline: float) -> list[T]:
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                return await asyncio.gather(*answers)
        except TimeoutError:
            raise LateError("the request was not scored in its time; try again later") from None
        finally:
            for task in tasks:
                self.drop(task)

    def _work(self) -> None:
        while group := self._next():
            self._do(group)
            del group  # or its requests would stay until the next one comes

    def _do(self, group: list[Task]) -> None:
        started = time.monotonic()
        items = [task.item for task in group]
        for task in group:
            task.item = None
        try:
            group[0].work(items)
        except Exception as error:  # a bug of ours: the thread must live on, or nobody would score
            tell_failure(error)
        samples, seconds = sum(task.samples for task in group), time.monotonic() - started
        with self._changed:
            if samples:
                found = seconds / samples
                self._row_seconds += (found - self._row_seconds) * (0.1 if self._row_seconds else 1.0)
            if group[0].long:
                self._on_long -= 1
                self._changed.notify()  # a thread that was kept for short ones may take the next piece

    def _next(self) -> list[Task]:
        """What to do next; empty when the thread is to end."""
        with self._changed:
            while True:
                queue, seconds = self._choose()
                if queue:
                    break
                if self._closing and not self._long:
                    return []
                self._changed.wait(seconds)
            group = [queue.popleft()]
            samples = group[0].samples
            if group[0].long:
                self._on_long += 1
                self._turns = 0
            else:
                self._turns += 1
                while queue:
                    task = queue[0]
                    if task.joins != group[0].joins:
                        break
                    if samples + task.samples > self._joined and not (
                        len(group) < MERGED_REQUESTS and task.merges and all(one.merges for one in group)
                    ):
                        break
                    samples += task.samples
                    group.append(queue.popleft())
            for task in group:
                task.taken = True
                self._count(task, -1)
        return group

    def _choose(self) -> tuple[deque[Task] | None, float]:
        """The queue to take from, or how long to wait."""
        if self._short and not (self._long and self._turns >= SMALL_TURNS and not self._on_long):
            return self._short, 0.0
        if not self._long:
            return None, IDLE_SECONDS
        # One thread is kept free for short requests while there are some now and then.
        kept = self._last_short + RESERVED_SECONDS - time.monotonic()
        if kept > 0 and self._on_long >= len(self._threads) - 1 and self._on_long and not self._closing:
            return None, kept
        return self._long, 0.0

    # -- work ----------------------------------------------------------------------------------------------------------

    def _call(self, items: list[tuple[asyncio.Future[Any], Callable[..., Any], tuple[Any, ...]]]) -> None:
        for answer, function, arguments in items:
            if answer.cancelled():
                continue
            try:
                found = function(*arguments)
            except Exception as error:
                self._tell(_fail, [answer], error)
            else:
                self._tell(_succeed, [answer], [found])

    def _score(self, group: list[_Piece]) -> None:
        group = [piece for piece in group if not piece.answer.cancelled()]
        if late := [piece for piece in group if piece.deadline < time.monotonic()]:
            error = LateError("the request's time was up before it was scored; try again later")
            self._tell(_fail, [piece.answer for piece in late], error)
            group = [piece for piece in group if piece not in late]
        if not group:
            return
        try:
            batch = Batch.concat([piece.batch for piece in group])
            scores = group[0].predictor.score(batch)
        except SourceError as error:
            if len(group) == 1:
                self._tell(_fail, [group[0].answer], error)
            for piece in group if len(group) > 1 else ():
                self._score([piece])  # some of them may find all their rows in the cache
        except Exception as error:
            self._tell(_fail, [piece.answer for piece in group], error)
        else:
            predictor = group[0].predictor
            self.scored(predictor, batch, len(group), scores)
            stops = np.cumsum([len(piece.batch) for piece in group]).tolist()
            parts = [scores.part(a, b) for a, b in zip([0, *stops[:-1]], stops, strict=True)]
            self._tell(_succeed, [piece.answer for piece in group], parts)
            self.answered(predictor, batch, scores)

    def _tell(self, what: Callable[..., None], answers: list[asyncio.Future[Any]], outcome: object) -> None:
        try:
            self._loop.call_soon_threadsafe(what, answers, outcome)
        except RuntimeError:  # the event loop has ended, and with it all who waited
            return


def _succeed(answers: list[asyncio.Future[Any]], found: list[Any]) -> None:
    for answer, one in zip(answers, found, strict=True):
        if not answer.done():  # done: the client has gone, or its wait has timed out
            answer.set_result(one)


def _fail(answers: list[asyncio.Future[Any]], error: Exception) -> None:
    for answer in answers:
        if not answer.done():
            answer.set_exception(error)
