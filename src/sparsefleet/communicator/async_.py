"""Async: every thread trains on its own; gradients go to the servers, dense values come back.

Without merging (`max_merge` 1) a thread keeps its step's gradients until it knows the keys of its next batch, and sends
both in one message: when the rows are there, the step has been applied, and the dense values after it have come. (With
a message for each, sent one behind the other, a step of a hundred samples took a tenth more processor time.) A thread
that has no next batch sends its last step alone.

With merging a step's gradients go into a queue. The sender takes what has gathered there, at most `max_merge` steps,
and merges it into one message.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from sparsefleet.communicator.base import Communicator, CommunicatorConfig, Lane, Parameters, StepGradients, marks_of
from sparsefleet.communicator.clipping import clipped
from sparsefleet.communicator.merging import merged
from sparsefleet.core.batch import F32, U64
from sparsefleet.core.errors import SparseFleetError, StoreError
from sparsefleet.crew import Crew
from sparsefleet.store.base import Done, OneOf, ParameterStore, Pending


class AsyncCommunicator(Communicator):
    def __init__(
        self, store: ParameterStore, config: CommunicatorConfig | None = None, crew: Crew | None = None
    ) -> None:
        super().__init__(store, config, crew)
        self._queue: deque[tuple[_MergingLane, StepGradients]] = deque()
        self._lanes: Sequence[_AsyncLane] = ()
        self._busy = False
        self._messages = itertools.count(1)
        self._closing = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._sender: threading.Thread | None = None

    def start(self, parameters: Parameters, done: int = 0) -> None:
        super().start(parameters, done)
        if self.config.max_merge == 1:
            return
        self._sender = threading.Thread(target=self._send_all, name="async-sender", daemon=True)
        self._sender.start()

    def begin_epoch(self, number: int, lanes: int) -> list[Lane]:
        made = [_MergingLane(self) if self.config.max_merge > 1 else _SendingLane(self) for _ in range(lanes)]
        self._lanes = made
        return list(made)

    def send(self, parts: list[StepGradients]) -> Pending[None]:
        """Send the steps as one; waited for, they are applied and the dense values are those after them."""
        step = merged(parts, self.parameters)
        dense = self.parameters.dense_part(step.dense)
        return self.store.push_step(step.sparse, dense, steps=len(parts), marks=marks_of(parts), fresh=self._fresh())

    def send_and_pull(self, step: StepGradients, asked: Mapping[str, U64]) -> Pending[dict[str, F32]]:
        """Send one step and ask for rows as they are after it; when they are there, all is as `send` says."""
        dense = self.parameters.dense_part(step.dense)
        return self.store.push_and_pull(step.sparse, dense, asked, steps=1, marks=step.marks, fresh=self._fresh())

    def _fresh(self) -> dict[str, F32]:
        return self.parameters.fresh() if next(self._messages) % self.config.dense_refresh == 0 else {}

    def enqueue(self, lane: _MergingLane, gradients: StepGradients) -> None:
        """Wait for room in the queue, leave a copy there, then wait for the lane's own staleness bound."""
        config = self.config
        gradients = clipped(gradients, config.clip_norm)
        # the dense array is the replica's own
        copy = StepGradients(gradients.sparse, gradients.dense.copy(), gradients.marks)
        with self._changed:
            self._wait_for(lambda: len(self._queue) < config.send_queue_size)
            lane.outstanding += 1
            self._queue.append((lane, copy))
            self._changed.notify_all()
            if config.staleness is not None:
                bound = config.staleness
                self._wait_for(lambda: lane.outstanding <= bound)

    def flush(self) -> None:
        with self._changed:
            self._wait_for(lambda: not self._queue and not self._busy)
        for lane in self._lanes:
            lane.settle()
        self.refresh_dense()

    def staleness(self) -> int:
        return sum(lane.outstanding for lane in self._lanes)

    @property
    def keeps_back(self) -> bool:
        return True

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
                self.send([gradients for _, gradients in taken]).wait()
            except BaseException as error:
                with self._changed:
                    self._error = error
                    self._changed.notify_all()
                return
            with self._changed:
                for lane, _ in taken:
                    lane.outstanding -= 1
                self._busy = False
                self._changed.notify_all()

    def _wait_for(self, reached: Callable[[], bool]) -> None:
        """With `_changed` held. A send that failed, or the end of sending, ends the wait with an error."""
        self._changed.wait_for(lambda: self._error is not None or self._closing or reached())
        if self._error is not None:
            raise self._error
        if self._closing:
            raise StoreError("training has been given up: gradients are no longer sent")


class _AsyncLane(Lane):
    def __init__(self, owner: AsyncCommunicator) -> None:
        self._owner = owner
        self.outstanding = 0
        """Steps that are handed in and not known to be applied."""

    def settle(self) -> None:
        """Return when what this lane has sent by itself is applied."""


class _MergingLane(_AsyncLane):
    def pull(self, table: str, keys: U64) -> Pending[F32]:
        return self._owner.store.pull(table, keys)

    def pull_all(self, asked: Mapping[str, U64]) -> Pending[dict[str, F32]]:
        return self._owner.store.pull_all(asked)

    def push(self, gradients: StepGradients) -> None:
        self._owner.enqueue(self, gradients)


class _SendingLane(_AsyncLane):
    """Keeps the last step until its thread asks for rows: the step's dense array is its own until then."""

    def __init__(self, owner: AsyncCommunicator) -> None:
        super().__init__(owner)
        self._kept: StepGradients | None = None
        self._sent: Pending[object] = Done(None)
        self._lock = threading.Lock()  # a save settles all lanes from a thread of its own

    def pull(self, table: str, keys: U64) -> Pending[F32]:
        return OneOf(self.pull_all({table: keys}), table)

    def pull_all(self, asked: Mapping[str, U64]) -> Pending[dict[str, F32]]:
        with self._lock:
            kept, self._kept = self._kept, None
            if kept is None:
                return _Following(self, self._owner.store.pull_all(asked))
            rows = self._owner.send_and_pull(kept, asked)
            self._sent = rows
            return _Following(self, rows)

    def push(self, gradients: StepGradients) -> None:
        self.settle()
        with self._lock:
            self._kept, self.outstanding = clipped(gradients, self._owner.config.clip_norm), 1
        if not self._owner.parameters.tables:
            self.settle()  # no pull will do it before the next step

    def settle(self) -> None:
        with self._lock:
            kept, self._kept = self._kept, None
            if kept is not None:
                try:
                    self._sent = self._owner.send([kept])
                except SparseFleetError as error:
                    self._sent = _Failed(error)  # a save may go without: the lane's thread must be told as well
        self._sent.wait()
        self.outstanding = 0

    def leave(self) -> None:
        self.settle()

    def give_up(self, error: BaseException) -> None:
        """Nobody waits for this thread. The step that it made before it failed is sent, if that can be done at once."""
        with self._lock:
            kept, self._kept = self._kept, None
        if kept is not None:
            with contextlib.suppress(SparseFleetError):
                self._sent = self._owner.send([kept])


class _Failed:
    """A step that could not be sent."""

    __slots__ = ("_error",)

    def __init__(self, error: SparseFleetError) -> None:
        self._error = error

    def wait(self, timeout: float | None = None) -> None:
        raise self._error


class _Following:
    """Rows that were asked for with or after a push; with them, the push has been applied."""

    __slots__ = ("_lane", "_rows")

    def __init__(self, lane: _SendingLane, rows: Pending[dict[str, F32]]) -> None:
        self._lane, self._rows = lane, rows

    def wait(self, timeout: float | None = None) -> dict[str, F32]:
        self._lane.settle()
        return self._rows.wait(timeout)
