"""`seen` counts how often a key occurs in the samples trained, whatever the batch size, the threads and the mode.

`--min-seen` keeps rows by it: which rows are served must not depend on how training was cut into batches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np
import pytest
from small_jobs import TABLE, Given, batches, cluster, joined, local_parameters, small_model, train_local

from sparsefleet import optim
from sparsefleet.core.batch import Batch
from sparsefleet.fleet import DistributedStrategy
from sparsefleet.store import LocalStore
from sparsefleet.table import SparseTable
from sparsefleet.train import Trainer

SMALL = batches(40, rows=10)
"""400 samples, ten at a time."""


def occurrences(data: Iterable[Batch]) -> Counter[int]:
    return Counter(key for batch in data for key in batch.keys.tolist())


def seen(tables: Iterable[SparseTable]) -> Counter[int]:
    counted: Counter[int] = Counter()
    for table in tables:
        for rows in table.scan():
            counted.update(dict(zip(rows.keys.tolist(), rows.seen.tolist(), strict=True)))
    return +counted  # without rows that only were pulled


@pytest.mark.parametrize("rule", [optim.Adam(0.01), optim.SGD(0.01)], ids=["adam", "sgd"])
@pytest.mark.parametrize("size", [1, 4, 40], ids=["10 samples", "40 samples", "400 samples"])
def test_in_one_process(rule, size):
    data = [joined(SMALL[first : first + size]) for first in range(0, len(SMALL), size)]
    _, store = train_local(Given(data), rule, test=Given(batches(3, seed=5)))
    assert seen([store.sparse_tables()[TABLE]]) == occurrences(SMALL)


def test_in_threads():
    store = LocalStore()
    Trainer(optim.Adam(0.01), store=store, threads=3).fit(small_model(), Given(SMALL))
    assert seen([store.sparse_tables()[TABLE]]) == occurrences(SMALL)


def test_scoring_and_reading_do_not_count():
    store = LocalStore()
    job, model = Trainer(optim.Adam(0.01), store=store), small_model()
    job.fit(model, Given(SMALL[:5]))
    job.evaluate(model, Given(SMALL))
    store.pull(TABLE, np.arange(10**6, 10**6 + 50, dtype=np.uint64)).wait()
    assert len(local_parameters(store).keys) >= 50
    assert seen([store.sparse_tables()[TABLE]]) == occurrences(SMALL[:5])


@pytest.mark.parametrize(
    "settings",
    [
        {"mode": "sync"},
        {"mode": "half_async"},
        {"mode": "async"},
        {"mode": "async", "max_merge": 4},
        {"mode": "geo", "k_steps": 3},
        {"mode": "geo", "k_steps": 100},
    ],
    ids=lambda settings: " ".join(map(str, settings.values())),
)
@pytest.mark.parametrize("size", [1, 4], ids=["10 samples", "40 samples"])
def test_two_servers_and_two_trainers_of_two_threads(settings, size):
    data = [joined(SMALL[first : first + size]) for first in range(0, len(SMALL), size)]
    with cluster(2) as servers:
        servers.train(
            [Given(data[0::2]), Given(data[1::2])],
            optim.Adam(0.01),
            DistributedStrategy(**settings),
            test=[Given(batches(2, seed=worker)) for worker in (5, 6)],
            threads=2,
            epochs=2,
        )
        tables = [table for server in servers.servers for table in server.state.holdings.tables()]
        counted = seen(tables)
    assert counted == occurrences(SMALL + SMALL)
