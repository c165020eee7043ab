"""The matrix: four modes, each with every reader, on two servers and two trainers, from text files."""

from __future__ import annotations

from collections import Counter

import pytest
from small_jobs import cluster, small_model

from sparsefleet import optim
from sparsefleet.core.schema import CRITEO
from sparsefleet.data.files import list_files
from sparsefleet.data.open import open_reader
from sparsefleet.data.split import split_files
from sparsefleet.datasets.synth import SynthSpec, synth
from sparsefleet.fleet import DistributedStrategy
from sparsefleet.train import Trainer

ROWS, TEST_ROWS, TRAINERS = 3000, 600, 2
READERS = ("feeder", "pyreader", "queue", "memory")
RULES = {
    "sync": (optim.Adam(1e-2), optim.FTRL(1e-1)),
    "half_async": (optim.Adam(1e-2), optim.SGD(2e-3)),
    "async": (optim.Adam(1e-2), optim.Adagrad(2e-2)),
    "geo": (optim.SGD(2e-3), optim.Adam(1e-2)),
}
STRATEGIES = {mode: DistributedStrategy(mode=mode, k_steps=5 if mode == "geo" else 2) for mode in RULES}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    synth(folder / "d", SynthSpec(ROWS, TEST_ROWS, parts=5, seed=3))
    return folder / "d"


@pytest.fixture(scope="module")
def all_rows(data):
    counts = Counter()
    with open_reader(list_files(data / "train"), CRITEO, batch_size=500).epoch(1) as epoch:
        for batch in epoch.streams[0]:
            counts.update(rows_of(batch))
    assert counts.total() == ROWS
    return counts


@pytest.fixture(scope="module")
def untrained(data):
    test = open_reader(list_files(data / "test"), CRITEO, batch_size=200)
    return Trainer(optim.SGD(0.0)).evaluate(small_model(), test)["logloss"]


def rows_of(batch):
    """What makes a row that row."""
    return [(float(label), dense.tobytes()) for label, dense in zip(batch.labels, batch.dense, strict=True)]


class Counted:
    """Notes what the trainer says it has trained."""

    def __init__(self, reader):
        self.counts, consumed = Counter(), reader.consumed

        def count_and_consume(batch):
            self.counts.update(rows_of(batch))
            consumed(batch)

        reader.consumed = count_and_consume


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("mode", RULES)
def test_matrix(mode, reader, data, all_rows, untrained):
    for threads, rule in enumerate(RULES[mode], start=1):
        run_job(mode, reader, rule, threads, data, all_rows, untrained)


def run_job(mode, reader, rule, threads, data, all_rows, untrained):
    def open_share(folder, worker, kind="queue", size=60):
        return open_reader(split_files(list_files(data / folder), worker, TRAINERS), CRITEO, kind=kind, batch_size=size)

    readers = [open_share("train", worker, reader) for worker in range(TRAINERS)]
    tests = [open_share("test", worker) for worker in range(TRAINERS)]
    counted = [Counted(each) for each in readers]
    with cluster(2) as fleet:
        outcomes = fleet.train(readers, rule, STRATEGIES[mode], test=tests, threads=threads)
    assert counted[0].counts + counted[1].counts == all_rows  # each row once, by one of the trainers
    assert min(outcome.result.rows for outcome in outcomes) > ROWS / 3
    assert sum(outcome.result.rows for outcome in outcomes) == ROWS
    for outcome in outcomes:
        assert outcome.result.lost == ()
        assert outcome.result.test["rows"] == TEST_ROWS
        assert outcome.result.test["logloss"] < untrained - 0.05
        assert 0.47 < outcome.result.test["auc"] < 0.8  # 600 rows say no more
