"""Small jobs within one process: parameter servers, and trainers in threads with stores of their own."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from sparsefleet.core.batch import Batch
from sparsefleet.core.schema import CRITEO
from sparsefleet.data.base import BatchStream, Epoch, Reader
from sparsefleet.fleet import DistributedStrategy, Role
from sparsefleet.fleet.optimizer import DistributedOptimizer
from sparsefleet.models import CTRDNN, CTRDNNConfig
from sparsefleet.optim.base import UpdateRule
from sparsefleet.server import ParameterServer, ServerConfig
from sparsefleet.store import LocalStore
from sparsefleet.store.remote import RemoteConfig, RemoteStore
from sparsefleet.table import SparseTable
from sparsefleet.train import FetchHandler, FitResult, Trainer

TABLE = "SparseFeatFactors"
SLOTS = CRITEO.slot_names
LIMIT = 60.0
"""Seconds that any job here may take."""


def batches(count: int, rows: int = 20, seed: int = 0, vocabulary: int = 200, first_key: int = 0) -> list[Batch]:
    random = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        lengths = random.integers(0, 3, rows * len(SLOTS))
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        keys = (first_key + random.integers(0, vocabulary, offsets[-1])).astype(np.uint64)
        clicked = (keys[offsets[: -1 : len(SLOTS)].clip(max=len(keys) - 1)] % 3 == 0) | (random.random(rows) < 0.1)
        dense = random.standard_normal((rows, 13)).astype(np.float32)
        made.append(Batch(clicked.astype(np.float32), dense, keys, offsets, SLOTS))
    return made


def joined(parts: Sequence[Batch]) -> Batch:
    """All rows in one batch."""
    starts = np.cumsum([0, *(len(part.keys) for part in parts)])
    offsets = [part.offsets[:-1] + start for part, start in zip(parts, starts, strict=False)]
    return Batch(
        np.concatenate([part.labels for part in parts]),
        np.concatenate([part.dense for part in parts]),
        np.concatenate([part.keys for part in parts]),
        np.concatenate([*offsets, starts[-1:]]).astype(np.int64),
        SLOTS,
    )


def small_model(seed: int = 0) -> CTRDNN:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return CTRDNN(config=CTRDNNConfig(embedding_size=4, hidden=(16, 8)))


class Losses(FetchHandler):
    """The loss of each step, summed over its rows (with one training thread)."""

    def __init__(self) -> None:
        super().__init__(["loss", "rows"], period_batches=1)
        self.sums: list[float] = []
        self._rows = 0

    def handler(self, fetched: list[Any]) -> None:
        loss, rows = float(fetched[0]), int(fetched[1])
        self.sums.append(loss * (rows - self._rows))
        self._rows = rows


@dataclass
class Outcome:
    """What one trainer, or the one process, came to."""

    result: FitResult
    losses: list[float]
    model: CTRDNN
    trainer: Trainer


@dataclass
class Parameters:
    """All parameters and optimizer state of a store, in one order."""

    keys: np.ndarray
    values: np.ndarray
    state: np.ndarray
    step: int
    dense: np.ndarray
    dense_state: np.ndarray
    dense_step: int

    def assert_close(self, other: Parameters, tolerance: float = 1e-5) -> None:
        np.testing.assert_array_equal(self.keys, other.keys)
        for name in ("values", "state", "dense", "dense_state"):
            np.testing.assert_allclose(getattr(self, name), getattr(other, name), rtol=1e-4, atol=tolerance)
        assert (self.step, self.dense_step) == (other.step, other.dense_step)


def parameters_of(tables: Sequence[SparseTable], blocks: Sequence[Any]) -> Parameters:
    rows = [part for table in tables for part in table.scan()]
    keys = np.concatenate([part.keys for part in rows])
    order = np.argsort(keys)
    states = [block.state.reshape(-1, len(block.values)) for block in blocks if len(block.values)]
    assert len({table.step for table in tables}) == len({block.step for block in blocks}) == 1
    return Parameters(
        keys[order],
        np.concatenate([part.values for part in rows])[order],
        np.concatenate([part.state for part in rows])[order],
        tables[0].step,
        np.concatenate([block.values for block in blocks]),
        np.concatenate(states, axis=1),
        blocks[0].step,
    )


def local_parameters(store: LocalStore) -> Parameters:
    return parameters_of([store.sparse_tables()[TABLE]], [store.dense_tables()["dense"]])


@dataclass
class Cluster:
    """Parameter servers in threads of this process."""

    servers: list[ParameterServer]
    stores: list[RemoteStore] = field(default_factory=list)

    @property
    def endpoints(self) -> tuple[str, ...]:
        return tuple(server.endpoint for server in self.servers)

    def store(self, worker: int = 0, workers: int = 1, **settings: Any) -> RemoteStore:
        settings = {"timeout": 20.0, "connect_timeout": 20.0, **settings}
        store = RemoteStore(RemoteConfig(self.endpoints, worker, workers, **settings))
        self.stores.append(store)
        return store

    def parameters(self) -> Parameters:
        holdings = [server.state.holdings for server in self.servers]
        return parameters_of(
            [table for one in holdings for table in one.tables()],
            [block.table for one in holdings for block in one.blocks()],
        )

    def job(self, rule: UpdateRule, strategy: DistributedStrategy, worker: int, workers: int) -> DistributedOptimizer:
        job = DistributedOptimizer(rule, strategy.resolved(), Role.worker(worker, workers, self.endpoints))
        job.workplace.connect(self.store(worker, workers))
        return job

    def train(
        self,
        readers: Sequence[Reader],
        rule: UpdateRule,
        strategy: DistributedStrategy,
        *,
        test: Sequence[Reader] | None = None,
        threads: int = 1,
        epochs: int = 1,
        model: Callable[[], CTRDNN] = small_model,
        limit: float = LIMIT,
        **settings: Any,
    ) -> list[Outcome]:
        """One trainer per reader, all at once; the first error of any is raised."""
        count = len(readers)
        jobs = [self.job(rule, strategy, worker, count) for worker in range(count)]
        models = [model() for _ in range(count)]  # here: torch's generator is one for all threads
        outcomes: list[Outcome | None] = [None] * count

        def work(worker: int) -> None:
            test_reader = test[worker] if test else None
            outcomes[worker] = train_one(
                Trainer(jobs[worker], threads=threads),
                readers[worker],
                models[worker],
                epochs,
                test=test_reader,
                **settings,
            )

        in_threads([lambda worker=worker: work(worker) for worker in range(count)], limit)
        return [outcome for outcome in outcomes if outcome is not None]


def train_one(trainer: Trainer, reader: Reader, model: CTRDNN, epochs: int, **settings: Any) -> Outcome:
    losses = Losses()
    result = trainer.fit(model, reader, epochs, fetch=[losses], **settings)
    return Outcome(result, losses.sums, model, trainer)


def train_local(reader: Reader, rule: UpdateRule, epochs: int = 1, **settings: Any) -> tuple[Outcome, LocalStore]:
    """The same job as one process."""
    store = LocalStore()
    return train_one(Trainer(rule, store=store), reader, small_model(), epochs, **settings), store


class _Stream(BatchStream):
    def __init__(self, given: Sequence[Batch]) -> None:
        self._given = iter(given)

    def __next__(self) -> Batch:
        return next(self._given)


class Given(Reader):
    """Batches as they are: of two threads the first gets every other one, whoever is faster."""

    schema = CRITEO
    batch_size = 0

    def __init__(self, given: Sequence[Batch]) -> None:
        self._given = list(given)

    def epoch(self, threads: int = 1) -> Epoch:
        return Epoch([_Stream(self._given[index::threads]) for index in range(threads)])

    def consumed(self, batch: Batch) -> None:
        """Not kept."""

    def position(self) -> dict[str, Any]:
        return {}

    def seek(self, position: Mapping[str, Any]) -> None:
        assert not position


def readers(shares: Sequence[Sequence[Batch]]) -> list[Given]:
    return [Given(share) for share in shares]


def in_threads(works: Sequence[Callable[[], object]], limit: float = LIMIT) -> None:
    """Run all at once; raises the first error, and complains of what has not ended in time."""
    errors: list[BaseException] = []

    def run(work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(limit)
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads), f"still at work after {limit} s"


@contextlib.contextmanager
def cluster(servers: int, first: int = 0, **settings: Any) -> Iterator[Cluster]:
    """first: the number of the first of them, where others have the numbers before it."""
    settings = {"timeout": 20.0, **settings}
    made = Cluster([ParameterServer(ServerConfig(index=first + index, **settings)) for index in range(servers)])
    try:
        yield made
    finally:
        for store in made.stores:
            store.close()
        for server in made.servers:
            server.close()
