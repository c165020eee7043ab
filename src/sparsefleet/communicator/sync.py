"""Sync: every trainer pushes step t; servers apply the merged gradient once, when all have come; then all pull.

The merged gradient is the sum: the result is that of one process with the joint batch. A trainer that runs out of
samples leaves the rounds, and the others go on without it; epochs begin together.

Where a thread's next batch has been read already, its keys go with the push, and their rows come back with the answer:
the next round needs this trainer's part, so that nothing can change them before they are used. A message less a step:
benchmarks/hosts.md has what that and the waves are worth between two hosts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sparsefleet.communicator.base import Lane, StepGradients, marks_of
from sparsefleet.communicator.half_async import HalfAsyncCommunicator, RoundLane
from sparsefleet.communicator.merging import summed
from sparsefleet.communicator.thread_round import ThreadRound
from sparsefleet.core.batch import F32, U64
from sparsefleet.core.stopwatch import lapped
from sparsefleet.store.base import Done, ParameterStore, Pending


class SyncCommunicator(HalfAsyncCommunicator):
    _lanes: Sequence[_SyncLane] = ()

    def begin_epoch(self, number: int, lanes: int) -> list[Lane]:
        # A round is of one epoch. Whoever ran out of samples in the last one comes back now: not before all have left
        # it, or they would wait for us there; and nobody pushes before all are back, or would be taken for alone.
        self.crew.barrier(f"sync epoch {number}: the last one is over")
        self.store.rounds.join()
        self.crew.barrier(f"sync epoch {number}: all are in")
        self._round = ThreadRound(lanes, self._apply, all_left=self.store.rounds.leave)
        self._lanes = [_SyncLane(self.store, self._round, index) for index in range(lanes)]
        return list(self._lanes)

    def _apply(self, parts: list[StepGradients]) -> None:
        step, parameters, rounds = summed(parts), self.parameters, self.store.rounds
        dense, factor = parameters.dense_part(step.dense), None
        if self.config.clip_norm is not None:
            with lapped("push", "waiting"):  # the answer comes when all trainers have asked
                factor = rounds.clip_factor(step.sparse, dense, self.config.clip_norm).wait()
        looking = [lane for lane in self._lanes if lane.expected is not None]
        handed_in = rounds.push_and_pull(
            step.sparse,
            dense,
            [lane.expected for lane in looking if lane.expected is not None],
            steps=len(parts),
            marks=marks_of(parts),
            fresh=parameters.fresh(),
            factor=factor,
        )
        with lapped("push", "waiting"):  # the answer comes when all trainers have handed in theirs
            found = handed_in.wait()
        for lane, rows in zip(looking, found, strict=True):
            lane.coming = rows


class _SyncLane(RoundLane):
    """A lane whose rows may come with the answer to its push. While a round is under way its thread waits."""

    def __init__(self, store: ParameterStore, round: ThreadRound, index: int) -> None:
        super().__init__(store, round, index)
        self.looks_ahead = store.rounds.in_one_message
        self.expected: Mapping[str, U64] | None = None
        """What its thread will most likely pull next; None: nobody knows."""
        self.coming: dict[str, F32] | None = None
        """Those rows, as they are after the last round."""

    def expect(self, asked: Mapping[str, U64]) -> None:
        self.expected = asked

    def pull_all(self, asked: Mapping[str, U64]) -> Pending[dict[str, F32]]:
        expected, rows = self.expected, self.coming
        self.expected = self.coming = None
        if rows is not None and expected is asked:
            return Done(rows)
        return super().pull_all(asked)

    def leave(self) -> None:
        self.expected = self.coming = None
        super().leave()
