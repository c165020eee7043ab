"""Several labels and sample weights: predictions by name, what is refused, and the same bits with weights of one."""

from __future__ import annotations

import csv

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from small_jobs import Given
from small_models import LABELS, samples, small
from torch import nn

from sparsefleet.core.batch import Batch
from sparsefleet.core.errors import ConfigError
from sparsefleet.models import FM, ModelInputs
from sparsefleet.nn.objective import judge
from sparsefleet.optim import SGD
from sparsefleet.scoring.predictions import open_predictions
from sparsefleet.train import Trainer


def weighed(batch: Batch, weights) -> Batch:
    made = np.asarray(weights, np.float32)
    return Batch(batch.labels, batch.dense, batch.keys, batch.offsets, batch.slots, weights=made)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_predictions_by_label(suffix, tmp_path):
    trainer, model = Trainer(SGD(0.01)), small("mmoe")
    given = samples(30, labels=2)
    trainer.fit(model, Given([given]))
    path = tmp_path / f"p{suffix}"
    with open_predictions(path, LABELS) as write:
        for batch, outputs in trainer.predict_outputs(model, Given([given])):
            write(batch, outputs)
    names = ["label_click", "label_buy", "probability_click", "probability_buy"]
    if suffix == ".csv":
        with path.open() as file:
            lines = list(csv.DictReader(file))
        assert list(lines[0]) == names
        assert {line["label_buy"] for line in lines} == {"", "0", "1"}
        click, buy = ([float(line[f"probability_{label}"]) for line in lines] for label in LABELS)
    else:
        table = pq.read_table(path)
        assert table.column_names == names
        click, buy = (table[f"probability_{label}"].to_pylist() for label in LABELS)
    ((_, wanted),) = trainer.predict(model, Given([given]))
    np.testing.assert_allclose(click, wanted, rtol=1e-6)
    assert not np.allclose(click, buy)


def test_models_and_samples_must_agree_on_the_number_of_labels():
    said = r"FM learns 1 label; the samples have 2: choose a model for several labels"
    with pytest.raises(ConfigError, match=said):
        Trainer(SGD(0.01)).fit(small("fm"), Given([samples(10, labels=2)]))
    with pytest.raises(ConfigError, match=r"CTRDNN learns 1 label; the samples have 2"):
        Trainer(SGD(0.01)).fit(small("ctr_dnn"), Given([samples(10, labels=2)]))
    with pytest.raises(ConfigError, match=r"MMoE learns 2 labels \(click, buy\); the samples have 1"):
        Trainer(SGD(0.01)).fit(small("mmoe"), Given([samples(10)]))
    with pytest.raises(ConfigError, match=r"FM learns one label; the schema has click, buy: choose a model"):
        FM(ModelInputs(("a",), labels=LABELS))


@pytest.mark.parametrize("name", ["ctr_dnn", "fm", "mmoe", "esmm"])
def test_a_sample_of_weight_two_counts_as_two_and_one_of_weight_zero_not(name):
    labels = 2 if name in ("mmoe", "esmm") else 1
    batch = samples(12, labels)
    twice = batch.take(np.array([0, 0, *range(1, 11)]))
    models = []
    for given in (twice, weighed(batch, [2, *[1] * 10, 0])):
        trainer, model = Trainer(SGD(0.1)), small(name)
        result = trainer.fit(model, Given([given]))
        models.append((model, result))
    for mine, other in zip(models[0][0].parameters(), models[1][0].parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)


def test_a_loss_of_ones_own_takes_weights_or_says_that_it_does_not():
    class Own(nn.Module):
        def loss(self, output, labels):
            return (output - labels).square().sum()

        def probabilities(self, output):
            return output

    class Weighted(Own):
        def loss(self, output, labels, weights):
            return (weights * (output - labels).square()).sum()

    output, labels, weights = torch.zeros(2, requires_grad=True), np.ones(2, np.float32), np.array([1, 3], np.float32)
    assert judge(Own(), output, labels).loss == 2
    assert judge(Weighted(), output, labels).loss == 2
    assert judge(Weighted(), output, labels, weights).loss == 4
    with pytest.raises(ConfigError, match=r"the samples have weights, and .*Own\.loss\(output, labels\) does not take"):
        judge(Own(), output, labels, weights)


def test_batch_norm_travels_in_checkpoints_and_scoring_uses_its_statistics(tmp_path):
    from sparsefleet.models import build, describe

    trainer, model = Trainer(SGD(0.01), threads=2), small("deepfm", batch_norm=True, dropout=0.5)
    trainer.fit(model, Given([samples(30, seed=seed) for seed in range(8)]))
    assert model.deep.norms[0].running_mean.abs().sum() > 0
    scores = [p for _, p in trainer.predict(model, Given([samples(30)]))]
    trainer.save(str(tmp_path / "c"))
    again, scoring = build(describe(model)), Trainer()
    scoring.load(again, str(tmp_path / "c"), values_only=True)
    np.testing.assert_array_equal(scores, [p for _, p in scoring.predict(again, Given([samples(30)]))])


def test_batch_norm_of_ours_takes_a_batch_of_one_sample():
    trainer, model = Trainer(SGD(0.01)), small("dnn", batch_norm=True, hidden=(8,))
    assert trainer.fit(model, Given([samples(30), samples(1)])).rows == 31
    assert int(model.tower.norms[0].num_batches_tracked) == 1
