"""Metrics of the user's own: in results, fetch lists, reports and checkpoints, over threads and trainers."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from fit_jobs import every, network, rows_of
from small_jobs import Given, batches, cluster, in_threads, readers, small_model
from torch import nn

from sparsefleet.checkpoint import Checkpoint, latest
from sparsefleet.core.errors import ConfigError
from sparsefleet.fleet import DistributedStrategy
from sparsefleet.metrics import ClickMetrics, LabelMetrics, Metric, MetricSet
from sparsefleet.nn import SparseEmbedding
from sparsefleet.optim import SGD, Adam
from sparsefleet.train import FetchHandler, Trainer
from sparsefleet.train.reporting import JsonLinesReporter


class Totals(Metric):
    """Clicks, and the sum of predictions in millionths: whole numbers, the same in every order."""

    name = "totals"

    def __init__(self):
        self.clicks = self.predicted = 0

    def update(self, batch, outputs):
        assert outputs["probability"].shape == batch.labels.shape
        self.clicks += int(batch.labels.sum())
        self.predicted += int(np.rint(outputs["probability"].astype(np.float64) * 1e6).sum())

    def merge(self, other):
        self.clicks, self.predicted = self.clicks + other.clicks, self.predicted + other.predicted

    def to_dict(self):
        return {"clicks": self.clicks, "predicted": self.predicted}

    @classmethod
    def from_dict(cls, data):
        made = cls()
        made.clicks, made.predicted = data["clicks"], data["predicted"]
        return made

    def values(self):
        return {"click_total": self.clicks, "predicted_total": self.predicted / 1e6 if self.predicted else math.nan}


def clicks_in(folder):
    files = sorted(folder.iterdir())
    return sum(line.startswith(b"1\t") for file in files for line in file.read_bytes().splitlines())


@pytest.mark.parametrize("threads", [1, 2])
def test_its_values_are_wherever_those_of_clicks_are(clicks, tmp_path, threads):
    given, seen = Totals(), []

    class Watch(FetchHandler):
        def handler(self, fetched):
            seen.append([float(value) for value in fetched])

    trainer = Trainer(Adam(0.01), threads=threads, metrics=[given], reporters=[JsonLinesReporter(tmp_path)])
    model, test = network(), rows_of(clicks, part="test")
    watch = Watch(["click_total", "predicted_total", "auc"], period_batches=1)
    result = trainer.fit(model, rows_of(clicks), epochs=2, test=test, save=every(tmp_path / "run"), fetch=[watch])
    trained, tested = clicks_in(clicks / "train"), clicks_in(clicks / "test")
    assert result.train["click_total"] == 2 * trained
    assert result.test["click_total"] == tested
    assert result.test == trainer.evaluate(model, test)
    assert [values[0] for values in seen] == sorted(values[0] for values in seen)
    assert seen[-1][0] == 2 * trained
    told = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["click_total"] for line in told if line["kind"] == "epoch"] == [trained, 2 * trained]
    assert [line["click_total"] for line in told if line["kind"] == "test"] == [tested, tested]
    saved = Checkpoint.open(latest(str(tmp_path / "run"))).manifest.extra["training"]["metrics"]
    assert saved["own"]["totals"]["clicks"] == 2 * trained
    assert given.clicks == 0, "the trainer counts into a copy"


def test_a_resumed_run_counts_on(clicks, tmp_path):
    whole = Trainer(Adam(0.01), metrics=[Totals()]).fit(network(), rows_of(clicks), save=every(tmp_path, 7))
    steps = sorted(tmp_path.glob("step-*"))
    again = Trainer(Adam(0.01), metrics=[Totals()]).fit(network(1), rows_of(clicks), resume=str(steps[0]))
    assert again.train == whole.train
    without = Trainer(Adam(0.01)).fit(network(1), rows_of(clicks), resume=str(steps[0]))
    assert without.train == {name: value for name, value in whole.train.items() if not name.endswith("_total")}


def test_trainers_put_theirs_together():
    shares, tests = [batches(count, seed=count) for count in (4, 9)], [batches(3, seed=77), batches(2, seed=78)]
    with cluster(1) as fleet:
        jobs = [fleet.job(SGD(1e-2), DistributedStrategy(mode="sync"), worker, 2) for worker in range(2)]
        results = {}

        def train(worker):
            trainer = Trainer(jobs[worker], metrics=[Totals()])
            data, test = readers(shares)[worker], Given(tests[worker])
            results[worker] = trainer.fit(small_model(), data, test=test)

        in_threads([lambda worker=worker: train(worker) for worker in range(2)])
    for result in results.values():
        assert result.train["click_total"] == sum(b.labels.sum() for share in shares for b in share)
        assert result.test["click_total"] == sum(b.labels.sum() for share in tests for b in share)
        assert result.train == results[0].train
        assert result.test == results[0].test


def test_a_metric_that_is_none_is_refused_before_anything_is_trained():
    with pytest.raises(ConfigError, match="a metric is an object of a class derived from"):
        Trainer(metrics=[Totals])
    handler = FetchHandler(["click_totl"], 1)
    with pytest.raises(ConfigError, match=r"cannot fetch 'click_totl'; choose from .*click_total, predicted_total"):
        Trainer(metrics=[Totals()]).fit(small_model(), Given(batches(1)), fetch=[handler])


# -- several outputs ---------------------------------------------------------------------------------------------------


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = SparseEmbedding("t", 2, ["C1", "C2"])
        self.click, self.buy = nn.Linear(4, 1), nn.Linear(4, 1)

    def forward(self, batch):
        x = self.table(batch)
        return {"click": self.click(x).squeeze(1), "buy": self.buy(x).squeeze(1)}

    def loss(self, outputs, labels):
        both = nn.functional.binary_cross_entropy_with_logits
        return both(outputs["click"], labels, reduction="sum") + both(outputs["buy"], labels, reduction="sum")

    def probabilities(self, outputs):
        return torch.sigmoid(outputs["click"])


class Heads(Totals):
    name = "heads"

    def update(self, batch, outputs):
        assert sorted(outputs) == ["buy", "click", "probability"]
        for array in outputs.values():
            assert array.shape == (len(batch),)
            assert array.dtype == np.float32
        np.testing.assert_allclose(outputs["probability"], 1 / (1 + np.exp(-outputs["click"])), rtol=1e-5)
        self.clicks += len(batch)

    def values(self):
        return {"seen": self.clicks}


def test_a_metric_sees_the_outputs_of_a_model_by_name():
    trainer = Trainer(Adam(0.01), metrics=[Heads()])
    result = trainer.fit(TwoHeads(), Given(batches(5)), test=Given(batches(3, rows=7)))  # short batches are scored too
    assert (result.train["seen"], result.test["seen"]) == (100, 21)
    assert result.train["rows"] == 100


def heads(**changed):
    return type("Changed", (TwoHeads,), changed)()


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (
            heads(loss=None, probabilities=None),
            r"got outputs by name: click \(20,\), buy \(20,\) where B is 20\. Give the model a loss",
        ),
        (
            heads(probabilities=None),
            r"got outputs by name: click \(20,\), buy \(20,\) where B is 20\. Give the model a loss",
        ),
        (
            heads(loss=None, probabilities=None, forward=lambda self, batch: (torch.zeros(3), torch.zeros(3, 2))),
            r"got 2 outputs: \(3,\), \(3, 2\)",
        ),
        (
            heads(probabilities=lambda self, outputs: torch.stack(list(outputs.values()), 1)),
            r"Changed\.probabilities\(output\) must return one click probability for each of the B samples \(here 20\)"
            r", \[B\] or \[B, 1\]; got \(20, 2\)\. Other outputs go to metrics by name: let forward return a dict",
        ),
        (heads(probabilities=lambda self, outputs: torch.zeros(3)), r"\(here 20\), .* got \(3,\)"),
        (heads(probabilities=lambda self, outputs: outputs), r"got outputs by name: click \(20,\), buy \(20,\)"),
        (
            heads(loss=lambda self, outputs, labels: outputs["click"] - labels),
            r"Changed\.loss\(output, labels\) must return a tensor of one number, the loss summed .* got \(20,\)",
        ),
        (
            heads(forward=lambda self, batch: {**TwoHeads.forward(self, batch), "probability": torch.zeros(20)}),
            "returns an output 'probability'; that name is for what its probabilities",
        ),
    ],
)
def test_outputs_that_do_not_fit_are_named(model, said):
    with pytest.raises(ConfigError, match=said):
        Trainer(Adam(0.01)).fit(model, Given(batches(1)))


@pytest.mark.parametrize(
    "probabilities",
    [
        lambda self, outputs: torch.sigmoid(outputs["click"])[:, None],
        lambda self, outputs: torch.softmax(torch.stack([outputs["buy"], outputs["click"]], 1), 1)[:, 1],
    ],
    ids=["a column", "a column of several"],
)
def test_probabilities_in_a_column_are_taken(probabilities):
    model = heads(probabilities=probabilities)
    result = Trainer(Adam(0.01)).fit(model, Given(batches(2)), test=Given(batches(1)))
    assert (result.train["rows"], result.test["rows"]) == (40, 20)


@pytest.mark.parametrize("only", [0, 1])
def test_training_on_one_class_alone_is_told_once(caplog, only):
    given = [replace(batch, labels=np.full_like(batch.labels, only)) for batch in batches(4)]
    rows = sum(map(len, given))
    Trainer(SGD(0.01), threads=2).fit(small_model(), Given(given), epochs=2)
    told = [record.getMessage() for record in caplog.records if "the label" in record.getMessage()]
    assert len(told) == 1
    assert f"all {rows:,} training rows that have the label 'label' have {only} there" in told[0]
    assert f"rows of label {1 - only} were left out" in told[0]


def test_both_classes_are_not_told_nor_those_that_only_another_trainer_has(caplog):
    given = list(batches(4))
    Trainer(SGD(0.01)).fit(small_model(), Given(given))
    ones, zeros = ([replace(batch, labels=np.full_like(batch.labels, only)) for batch in given] for only in (1, 0))
    with cluster(1) as fleet:
        fleet.train(readers([ones, zeros]), SGD(0.01), DistributedStrategy(mode="sync"))
    assert "the label" not in caplog.text


def test_of_several_labels_each_is_looked_at():
    metrics = MetricSet(ClickMetrics(), (LabelMetrics("buy", 1),))
    for batch in batches(2):
        labels = np.stack([batch.labels, np.where(batch.labels == 1, 0, np.nan)], 1).astype(np.float32)
        outputs = {"probability": np.full(len(batch), 0.5, np.float32), "buy": np.full(len(batch), 0.5, np.float32)}
        metrics.update(replace(batch, labels=labels), outputs)
    bought = int(sum(batch.labels.sum() for batch in batches(2)))
    assert metrics.only_classes("click") == {"buy": (0, bought)}
    assert MetricSet(ClickMetrics()).only_classes("click") == {}
