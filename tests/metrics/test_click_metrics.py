import math

import numpy as np
import pytest
from sklearn.metrics import log_loss, roc_auc_score

from sparsefleet.core.errors import ConfigError
from sparsefleet.metrics import ClickMetrics, WindowMetrics


def clicks(rows, seed=0):
    random = np.random.default_rng(seed)
    truth = random.beta(1, 3, rows)
    labels = (random.random(rows) < truth).astype(np.float32)
    return np.clip(truth + random.normal(0, 0.1, rows), 0, 1).astype(np.float32), labels


def test_against_scikit_learn():
    probabilities, labels = clicks(50_000)
    metrics = ClickMetrics()
    for start in range(0, 50_000, 999):
        metrics.count(probabilities[start : start + 999], labels[start : start + 999])
    values = metrics.values()
    assert values["auc"] == pytest.approx(roc_auc_score(labels, probabilities), abs=1e-3)
    q = np.clip(probabilities.astype(np.float64), 1e-7, 1 - 1e-7)
    assert values["logloss"] == pytest.approx(log_loss(labels, q), rel=1e-9)
    assert values["accuracy"] == pytest.approx(((probabilities > 0.5) == labels).mean())
    assert values["click_ratio"] == pytest.approx(probabilities.sum() / labels.sum(), rel=1e-5)
    assert values["rows"] == 50_000


def test_ties_count_half():
    metrics = ClickMetrics()
    metrics.count(np.full(10, 0.3, np.float32), np.array([0, 1] * 5, np.float32))
    assert metrics.values()["auc"] == 0.5


def test_one_class_has_no_auc():
    metrics = ClickMetrics()
    assert math.isnan(metrics.values()["auc"])
    metrics.count(np.array([0.2], np.float32), np.array([1], np.float32))
    assert math.isnan(metrics.values()["auc"])


def test_merging_parts_is_exact():
    probabilities, labels = clicks(3_000)
    whole, merged = ClickMetrics(), ClickMetrics()
    whole.count(probabilities, labels)
    for part in range(3):
        piece = ClickMetrics()
        piece.count(probabilities[part::3], labels[part::3])
        merged.merge(ClickMetrics.from_dict(piece.to_dict()))
    assert merged.values() == whole.values()  # to the last digit
    with pytest.raises(ConfigError, match="100 and 4096 thresholds cannot be merged"):
        whole.merge(ClickMetrics(100))


def test_metrics_of_an_older_checkpoint_are_read():
    metrics = ClickMetrics()
    metrics.count(*clicks(1_000))
    new = metrics.to_dict()
    old = {name: value for name, value in new.items() if not name.endswith("_parts")}
    old |= {
        "log_loss_sum": metrics.log_loss / 2**32,
        "predicted": metrics.predicted / 2**32,
        "clicks": float(metrics.clicks),
    }
    assert ClickMetrics.from_dict(old).values() == pytest.approx(metrics.values(), rel=1e-12)


def test_rows_without_label_are_left_out():
    metrics = ClickMetrics()
    metrics.count(np.array([0.2, 0.4], np.float32), np.array([1, np.nan], np.float32))
    assert (metrics.rows, metrics.bad) == (1, 1)


def test_window_is_the_pooled_auc_of_the_last_batches():
    probabilities, labels = clicks(1_000)
    window, last = WindowMetrics(slide_steps=3), ClickMetrics()
    for start in range(0, 1_000, 100):
        window.update(probabilities[start : start + 100], labels[start : start + 100])
    last.count(probabilities[700:], labels[700:])
    assert window.auc() == last.values()["auc"]


@pytest.mark.parametrize("make", [lambda: ClickMetrics(0), lambda: WindowMetrics(slide_steps=0)])
def test_nonsense_is_refused(make):
    with pytest.raises(ConfigError, match="must be 1 or above"):
        make()
    with pytest.raises(ConfigError, match="not metrics"):
        ClickMetrics.from_dict({"histograms": "!"})
