"""Async: every thread trains on its own; gradients are merged and sent in the background, dense values come back.

A step's gradients go into a queue. The sender takes what has gathered there, at most `max_merge` steps, merges it into
one message, and after it has been applied reads the dense parameters anew.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from sparsefleet.communicator.base import Communicator, CommunicatorConfig, Lane, Parameters, StepGradients
from sparsefleet.communicator.merging import merged
from sparsefleet.core.batch import F32, U64
from sparsefleet.core.errors import StoreError
from sparsefleet.store.base import Done, ParameterStore, Pending


@dataclass(slots=True)
class _Outstanding:
    """Steps of one lane that are handed in and not applied."""

    steps: int = 0


class AsyncCommunicator(Communicator):
    def __init__(self, store: ParameterStore, config: CommunicatorConfig | None = None) -> None:
        super().__init__(store, config)
        self._queue: deque[tuple[_Outstanding, StepGradients]] = deque()
        self._busy = False
        self._messages = itertools.count(1)
        self._closing = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._sender: threading.Thread | None = None

    def start(self, parameters: Parameters) -> None:
        super().start(parameters)
        self._sender = threading.Thread(target=self._send_all, name="async-sender", daemon=True)
        self._sender.start()

    def begin_epoch(self, number: int, lanes: int) -> list[Lane]:
        made = [_AsyncLane(self) for _ in range(lanes)]
        self._outstanding = [lane.outstanding for lane in made]
        return list(made)

    def push_now(self, gradients: StepGradients) -> None:
        """Without a queue: applied when this returns."""
        self._apply([gradients])

    def enqueue(self, lane: _Outstanding, gradients: StepGradients) -> None:
        """Wait for room in the queue, leave a copy there, then wait for the lane's own staleness bound."""
        config = self.config
        copy = StepGradients(gradients.sparse, gradients.dense.copy())  # the dense array is the replica's own
        with self._changed:
            self._wait_for(lambda: len(self._queue) < config.send_queue_size)
            lane.steps += 1
            self._queue.append((lane, copy))
            self._changed.notify_all()
            if config.staleness is not None:
                bound = config.staleness
                self._wait_for(lambda: lane.steps <= bound)

    def flush(self) -> None:
        with self._changed:
            self._wait_for(lambda: not self._queue and not self._busy)
        self.refresh_dense()

    def staleness(self) -> int:
        return sum(lane.steps for lane in self._outstanding)

    @property
    def keeps_back(self) -> bool:
        return self.config.max_merge > 1

    def close(self) -> None:
        try:
            self.flush()
        finally:
            self.abandon()

    def abandon(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._sender is not None:
            # A send under way ends by itself, at the latest with the store's time-out.
            self._sender.join(1.0)

    def _send_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closing)
                if self._closing:
                    return
                taken = [self._queue.popleft() for _ in range(min(len(self._queue), self.config.max_merge))]
                self._busy = True
                self._changed.notify_all()
            try:
                self._apply([gradients for _, gradients in taken])
            except BaseException as error:
                with self._changed:
                    self._error = error
                    self._changed.notify_all()
                return
            with self._changed:
                for lane, _ in taken:
                    lane.steps -= 1
                self._busy = False
                self._changed.notify_all()

    def _apply(self, parts: list[StepGradients]) -> None:
        step = merged(parts, self.parameters)
        pushed = self.store.push_step(step.sparse, self.parameters.dense_part(step.dense), steps=len(parts))
        fresh = next(self._messages) % self.config.dense_refresh == 0
        refreshed: Pending[None] = self.begin_refresh() if fresh else Done(None)
        pushed.wait()
        refreshed.wait()

    def _wait_for(self, reached: Callable[[], bool]) -> None:
        """With `_changed` held. A send that failed, or the end of sending, ends the wait with an error."""
        self._changed.wait_for(lambda: self._error is not None or self._closing or reached())
        if isinstance(self._error, StoreError):
            raise self._error
        if self._error is not None:
            raise StoreError(f"sending gradients failed: {self._error!r}") from self._error
        if self._closing:
            raise StoreError("training has been given up: gradients are no longer sent")


class _AsyncLane(Lane):
    def __init__(self, owner: AsyncCommunicator) -> None:
        self._owner = owner
        self.outstanding = _Outstanding()

    def pull(self, table: str, keys: U64) -> Pending[F32]:
        return self._owner.store.pull(table, keys)

    def push(self, gradients: StepGradients) -> None:
        if self._owner.config.max_merge == 1:
            self._owner.push_now(gradients)
        else:
            self._owner.enqueue(self.outstanding, gradients)
