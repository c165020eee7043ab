"""Direct: every gradient is applied at once, without waiting for anyone (Hogwild). What one process uses."""

from __future__ import annotations

from sparsefleet.communicator.base import Communicator, Lane, StepGradients
from sparsefleet.core.batch import F32, U64
from sparsefleet.store.base import ParameterStore, Pending


class DirectCommunicator(Communicator):
    """Threads share the tables and the dense block; the store's own locks keep rows whole, nothing else is locked."""

    _dense_name: str
    _dense_values: F32

    def start(self, dense_name: str, dense_values: F32, lanes: int) -> None:
        self._dense_name, self._dense_values = dense_name, dense_values

    def lane(self) -> Lane:
        return _DirectLane(self.store, self._dense_name)

    def flush(self) -> None:
        self.store.pull_dense(self._dense_name, self._dense_values).wait()


class _DirectLane(Lane):
    def __init__(self, store: ParameterStore, dense_name: str) -> None:
        self._store, self._dense_name = store, dense_name

    def pull(self, table: str, keys: U64) -> Pending[F32]:
        return self._store.pull(table, keys)

    def push(self, gradients: StepGradients) -> None:
        pending = [self._store.push(table, rows.keys, rows.rows) for table, rows in gradients.sparse.items()]
        if len(gradients.dense):
            pending.append(self._store.push_dense(self._dense_name, gradients.dense))
        for answer in pending:
            answer.wait()
