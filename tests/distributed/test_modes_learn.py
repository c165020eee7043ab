"""What the modes learn: test AUC against one process with the same settings."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small_jobs import cluster

from sparsefleet import optim
from sparsefleet.core.schema import CRITEO
from sparsefleet.data.files import list_files
from sparsefleet.data.open import open_reader
from sparsefleet.data.split import split_files
from sparsefleet.datasets.synth import SynthSpec, synth
from sparsefleet.fleet import DistributedStrategy
from sparsefleet.models import CTRDNN, CTRDNNConfig
from sparsefleet.train import Trainer


class Bounded(CTRDNN):
    """Dense features have outliers a hundred times the usual: with plain SGD where it stands in the end is then a
    matter of how long ago it met the last of them."""

    def forward(self, batch):
        return super().forward(replace(batch, dense=batch.dense.clip(-1, 1)))


def model():
    torch.manual_seed(0)
    return Bounded(config=CTRDNNConfig(hidden=(128, 64)))


class Study:
    """One data set, one rule and one batch size, for all modes and for one process."""

    def __init__(self, folder, rows, test_rows, batch_size, make=None):
        """`make`: the data, where they are not those of `data synth`."""
        self.folder, self.batch_size = folder / "d", batch_size
        if make is None:
            synth(self.folder, SynthSpec(rows, test_rows, parts=4, seed=1))
        else:
            make(self.folder, rows, test_rows)

    def reader(self, part, worker=0, workers=1, size=None):
        files = split_files(list_files(self.folder / part), worker, workers)
        return open_reader(files, CRITEO, batch_size=size or self.batch_size)

    def one_process(self, rule, size=None):
        result = Trainer(rule).fit(model(), self.reader("train", size=size), test=self.reader("test", size=1000))
        return result.test["auc"]

    def job(self, rule, **settings):
        """Two servers, two trainers."""
        with cluster(2) as fleet:
            outcomes = fleet.train(
                [self.reader("train", worker, 2) for worker in range(2)],
                rule,
                DistributedStrategy(**settings),
                test=[self.reader("test", worker, 2, 1000) for worker in range(2)],
                model=model,
                limit=900.0,
            )
        return outcomes[0].result.test["auc"]


def other_data(folder, rows, test_rows):
    """Of another maker: the one that benchmarks use."""
    command = [sys.executable, str(OTHER_DATA), str(folder), "--rows", str(rows), "--test-rows", str(test_rows)]
    subprocess.run(command, check=True, timeout=600)


OTHER_DATA = Path(__file__).parents[2] / "benchmarks" / "parts" / "other_data.py"
ADAM, SGD = optim.Adam(1e-3), optim.SGD(2e-3)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Some seconds' worth, for wide bounds."""
    return Study(tmp_path_factory.mktemp("small"), 24_000, 8_000, 100)


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    return Study(tmp_path_factory.mktemp("large"), 400_000, 40_000, 200)


@pytest.fixture(scope="module")
def large_adam(large):
    return said("one process", large.one_process(ADAM))


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    return Study(tmp_path_factory.mktemp("other"), 400_000, 40_000, 100, other_data)


@pytest.fixture(scope="module")
def other_adam(other):
    return said("one process, other data", other.one_process(ADAM))


def test_sync_and_the_joint_batch(small):
    assert small.job(ADAM, mode="sync") == pytest.approx(small.one_process(ADAM, size=200), abs=0.006)


def test_half_async_and_async(small):
    adam = small.one_process(ADAM)
    assert adam > 0.7
    assert small.job(ADAM, mode="half_async") == pytest.approx(adam, abs=0.015)
    assert small.job(ADAM, mode="async") == pytest.approx(adam, abs=0.015)


def test_geo(small):
    assert small.job(SGD, mode="geo") == pytest.approx(small.one_process(SGD), abs=0.015)


@pytest.mark.parametrize("k_steps", [2, 10])
def test_geo_with_adam(small, k_steps):
    assert small.job(ADAM, mode="geo", k_steps=k_steps) == pytest.approx(small.one_process(ADAM), abs=0.02)


@pytest.mark.slow
@pytest.mark.timeout(1200)
class TestFourHundredThousandRows:
    """The bounds that DistributedStrategy's defaults are chosen for."""

    def test_sync_and_the_joint_batch(self, large):
        joint = said("one process, joint batch", large.one_process(ADAM, size=400))
        assert said("sync", large.job(ADAM, mode="sync")) == pytest.approx(joint, abs=0.002)

    def test_half_async(self, large, large_adam):
        assert said("half_async", large.job(ADAM, mode="half_async")) == pytest.approx(large_adam, abs=0.005)

    def test_three_runs_of_async(self, large, large_adam):
        runs = [said("async", large.job(ADAM, mode="async")) for _ in range(3)]
        assert runs == pytest.approx([large_adam] * 3, abs=0.005)
        assert max(runs) - min(runs) < 0.003

    @pytest.mark.parametrize(("k_steps", "within"), [(10, 0.005), (100, 0.01)])
    @pytest.mark.parametrize("data", ["large", "other"])
    def test_geo_with_adam(self, request, data, k_steps, within):
        one_process = request.getfixturevalue(f"{data}_adam")
        job = request.getfixturevalue(data).job(ADAM, mode="geo", k_steps=k_steps)
        assert said(f"geo, {data}, k = {k_steps}", job) > one_process - within

    def test_geo(self, large):
        sgd = said("one process, SGD", large.one_process(SGD))
        assert said("geo", large.job(SGD, mode="geo")) == pytest.approx(sgd, abs=0.005)


def said(what, auc):
    print(f"{what}: test AUC {auc:.4f}")
    return auc
