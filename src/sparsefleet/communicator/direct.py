"""Direct: every gradient is applied at once, without waiting for anyone (Hogwild). What one process uses."""

from __future__ import annotations

from sparsefleet.communicator.base import Communicator, Lane, Parameters, StepGradients
from sparsefleet.communicator.clipping import clipped
from sparsefleet.core.batch import F32, U64
from sparsefleet.store.base import ParameterStore, Pending


class DirectCommunicator(Communicator):
    """Threads share the tables and the dense block; the store's own locks keep rows whole, nothing else is locked."""

    def begin_epoch(self, number: int, lanes: int) -> list[Lane]:
        return [_DirectLane(self.store, self.parameters, self.config.clip_norm) for _ in range(lanes)]

    def flush(self) -> None:
        self.refresh_dense()


class _DirectLane(Lane):
    def __init__(self, store: ParameterStore, parameters: Parameters, clip_norm: float | None) -> None:
        self._store, self._parameters, self._clip_norm = store, parameters, clip_norm

    def pull(self, table: str, keys: U64) -> Pending[F32]:
        return self._store.pull(table, keys)

    def push(self, gradients: StepGradients) -> None:
        marks, gradients = gradients.marks, clipped(gradients, self._clip_norm)
        dense = self._parameters.dense_part(gradients.dense)
        self._store.push_step(gradients.sparse, dense, steps=1, marks=marks).wait()
