"""What each family is for, on samples with a planted truth: it must beat what cannot see that truth.

Everything is drawn from a seed and trained with one thread: the same figures every time.
"""

from __future__ import annotations

import numpy as np
import torch
from small_jobs import Given

from sparsefleet import models
from sparsefleet.core.batch import Batch
from sparsefleet.metrics import ClickMetrics
from sparsefleet.models import ModelInputs
from sparsefleet.optim import Adam
from sparsefleet.train import Trainer

BATCH = 250


def batch_of(slots: dict[str, np.ndarray], labels: np.ndarray, first_key: dict[str, int]) -> Batch:
    """slots: [B] or [B, n] values of each; a slot's values begin at its first key."""
    pairs = {}
    for name, values in slots.items():
        values = values.reshape(len(labels), -1)
        keys = (first_key[name] + values.ravel()).astype(np.uint64)
        pairs[name] = keys, np.arange(0, len(keys) + 1, values.shape[1])
    return Batch.from_slots(pairs, labels=labels.astype(np.float32))


def cut(batch: Batch) -> Given:
    return Given([batch.samples(at, min(at + BATCH, len(batch))) for at in range(0, len(batch), BATCH)])


def trained(kind, inputs, train, test, epochs, rate=0.01, **settings):
    """The outputs for the test samples, by name."""
    torch.manual_seed(0)
    model = kind(inputs, kind.Settings(**settings))
    trainer = Trainer(Adam(rate))
    trainer.fit(model, cut(train), epochs)
    parts = [outputs for _, outputs in trainer.predict_outputs(model, cut(test))]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def auc(probabilities, labels):
    metrics = ClickMetrics()
    metrics.count(probabilities.astype(np.float32), labels.astype(np.float32))
    return metrics.values()["auc"]


def drawn(random, logits):
    return (random.random(len(logits)) < 1 / (1 + np.exp(-logits))).astype(np.float32)


def test_models_of_interactions_beat_logistic_regression():
    random = np.random.default_rng(0)
    users, ads = random.standard_normal((2, 40, 3))
    keys = {"user": 0, "ad": 100, "hour": 200}

    def samples(count):
        user, ad, hour = random.integers(0, 40, (3, count))
        return batch_of(
            {"user": user, "ad": ad, "hour": hour}, drawn(random, 1.5 * (users[user] * ads[ad]).sum(1)), keys
        )

    train, test = samples(12000), samples(4000)
    inputs = ModelInputs(tuple(keys))
    common = {"embedding_size": 6, "init_range": 0.1}
    figures = {
        kind.name: auc(trained(kind, inputs, train, test, 4, **settings)["probability"], test.labels)
        for kind, settings in (
            (models.LogisticRegression, {}),
            (models.FM, common),
            (models.DeepFM, {**common, "hidden": (32, 16)}),
            (models.DCNv2, {**common, "hidden": (32, 16), "cross_layers": 2}),
        )
    }
    plain = figures.pop("LogisticRegression")
    assert plain < 0.6
    assert min(figures.values()) > plain + 0.15, figures


def test_attention_over_a_history_beats_its_sum():
    """A user clicks on what his history holds already: the sum of many items tells it badly."""
    random = np.random.default_rng(0)
    items, length = 60, 8
    keys = {"item": 0, "clicked": 0, "hour": 1000}  # an item is the same item in either slot

    def samples(count):
        history = random.integers(0, items, (count, length))
        target = random.integers(0, items, count)
        known = random.random(count) < 0.5
        target[known] = history[known, random.integers(0, length, known.sum())]
        logits = np.where((history == target[:, None]).any(1), 2.0, -2.0)
        slots = {"item": target, "clicked": history, "hour": random.integers(0, 24, count)}
        return batch_of(slots, drawn(random, logits), keys)

    train, test = samples(12000), samples(4000)
    inputs = ModelInputs(tuple(keys))
    common = {"embedding_size": 8, "init_range": 0.5, "hidden": (32, 16)}
    summed = auc(trained(models.DNN, inputs, train, test, 4, **common)["probability"], test.labels)
    attended = trained(models.DIN, inputs, train, test, 4, **common, history=("clicked",), target=("item",))
    assert auc(attended["probability"], test.labels) > summed + 0.05


def test_conversions_from_all_samples_beat_those_of_clicked_samples_alone():
    """Few samples are clicked; who learns from all of them knows the ads that a click never showed."""
    random = np.random.default_rng(0)
    good_user, good_ad = random.standard_normal((2, 300))
    keys = {"user": 0, "ad": 1000}

    def samples(count):
        user, ad = random.integers(0, 300, (2, count))
        worth = good_user[user] + good_ad[ad]
        click, buy = drawn(random, worth - 2.5), drawn(random, 1.5 * worth - 1.0)
        slots = {"user": user, "ad": ad}
        seen = batch_of(slots, np.stack([click, np.where(click == 1, buy, np.nan)], 1), keys)
        return seen, batch_of(slots, buy, keys)

    (train, _), (test, buys) = samples(15000), samples(5000)
    clicked = train.take(np.flatnonzero(train.labels[:, 0] == 1))
    after_click = Batch(clicked.labels[:, 1].copy(), clicked.dense, clicked.keys, clicked.offsets, clicked.slots)
    common = {"embedding_size": 6, "init_range": 0.1, "hidden": (16,)}
    few = trained(models.DNN, ModelInputs(tuple(keys)), after_click, buys, 6, **common)["probability"]
    both = ModelInputs(tuple(keys), labels=("click", "buy"))
    all_of_them = trained(models.ESMM, both, train, test, 3, **common)
    assert auc(all_of_them["click"], test.labels) > 0.6
    assert auc(all_of_them["buy"], buys.labels) > auc(few, buys.labels) + 0.02
