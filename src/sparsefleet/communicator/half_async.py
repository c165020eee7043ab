"""Half-async: all threads of one trainer meet, merge, push, pull; trainers do not wait for each other."""

from __future__ import annotations

from collections.abc import Mapping

from sparsefleet.communicator.base import Communicator, Lane, StepGradients, marks_of
from sparsefleet.communicator.clipping import clipped
from sparsefleet.communicator.merging import merged
from sparsefleet.communicator.thread_round import ThreadRound
from sparsefleet.core.batch import F32, U64
from sparsefleet.store.base import ParameterStore, Pending


class HalfAsyncCommunicator(Communicator):
    _round: ThreadRound | None = None

    def begin_epoch(self, number: int, lanes: int) -> list[Lane]:
        self._round = ThreadRound(lanes, self._apply)
        return [RoundLane(self.store, self._round, index) for index in range(lanes)]

    def _apply(self, parts: list[StepGradients]) -> None:
        step = clipped(merged(parts, self.parameters), self.config.clip_norm)
        parameters = self.parameters
        self.store.push_step(
            step.sparse,
            parameters.dense_part(step.dense),
            steps=len(parts),
            marks=marks_of(parts),
            fresh=parameters.fresh(),
        ).wait()

    def flush(self) -> None:
        self.refresh_dense()

    def parked(self) -> int:
        return self._round.waiting if self._round else 0

    def abandon(self) -> None:
        if self._round:
            self._round.fail(RuntimeError("training has been given up"))


class RoundLane(Lane):
    """A lane whose pushes wait for the trainer's other threads."""

    def __init__(self, store: ParameterStore, round: ThreadRound, index: int) -> None:
        self._store, self._round, self._index = store, round, index

    def pull(self, table: str, keys: U64) -> Pending[F32]:
        return self._store.pull(table, keys)

    def pull_all(self, asked: Mapping[str, U64]) -> Pending[dict[str, F32]]:
        return self._store.pull_all(asked)

    def push(self, gradients: StepGradients) -> None:
        self._round.hand_in(self._index, gradients)

    def leave(self) -> None:
        self._round.leave()

    def give_up(self, error: BaseException) -> None:
        # Not a leave: in sync the others would go on as if this trainer had run out of samples.
        self._round.fail(error)
