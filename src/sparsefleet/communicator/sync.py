"""Sync: every trainer pushes step t; servers apply the merged gradient once, when all have come; then all pull.

The merged gradient is the sum: the result is that of one process with the joint batch. A trainer that runs out of
samples leaves the rounds, and the others go on without it; epochs begin together.
"""

from __future__ import annotations

from sparsefleet.communicator.base import Lane, StepGradients, marks_of
from sparsefleet.communicator.half_async import HalfAsyncCommunicator, RoundLane
from sparsefleet.communicator.merging import summed
from sparsefleet.communicator.thread_round import ThreadRound
from sparsefleet.core.stopwatch import lapped


class SyncCommunicator(HalfAsyncCommunicator):
    def begin_epoch(self, number: int, lanes: int) -> list[Lane]:
        # A round is of one epoch. Whoever ran out of samples in the last one comes back now: not before all have left
        # it, or they would wait for us there; and nobody pushes before all are back, or would be taken for alone.
        self.crew.barrier(f"sync epoch {number}: the last one is over")
        self.store.rounds.join()
        self.crew.barrier(f"sync epoch {number}: all are in")
        self._round = ThreadRound(lanes, self._apply, all_left=self.store.rounds.leave)
        return [RoundLane(self.store, self._round, index) for index in range(lanes)]

    def _apply(self, parts: list[StepGradients]) -> None:
        step, parameters, rounds = summed(parts), self.parameters, self.store.rounds
        dense, factor = parameters.dense_part(step.dense), None
        if self.config.clip_norm is not None:
            with lapped("push", "waiting"):  # the answer comes when all trainers have asked
                factor = rounds.clip_factor(step.sparse, dense, self.config.clip_norm).wait()
        handed_in = rounds.push(
            step.sparse, dense, steps=len(parts), marks=marks_of(parts), fresh=parameters.fresh(), factor=factor
        )
        with lapped("push", "waiting"):  # the answer comes when all trainers have handed in theirs
            handed_in.wait()
