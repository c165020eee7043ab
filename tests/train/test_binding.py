"""Another model than the trainer's own can be scored, and leaves both as they were."""

from __future__ import annotations

import numpy as np
import pytest
from fit_jobs import dense_values, network, rows_of, trainer
from torch import nn

from sparsefleet.core.errors import ConfigError
from sparsefleet.nn import SparseEmbedding


def weights(model: nn.Module) -> np.ndarray:
    return np.concatenate([parameter.detach().numpy().ravel() for parameter in model.parameters()])


def test_scoring_another_model_overwrites_nobodys_weights(clicks):
    job, mine, other = trainer(), network(), network(seed=5)
    job.fit(mine, rows_of(clicks))
    trained, untrained, before = weights(mine).copy(), weights(other).copy(), dense_values(job).copy()
    scores = job.evaluate(other, rows_of(clicks, part="test"))
    np.testing.assert_array_equal(weights(other), untrained)
    np.testing.assert_array_equal(weights(mine), trained)
    np.testing.assert_array_equal(dense_values(job), before)
    assert scores["auc"] != job.evaluate(mine, rows_of(clicks, part="test"))["auc"], "its own weights were scored"


def test_the_next_fit_goes_on_counting(clicks):
    job, model = trainer(), network()
    first = job.fit(model, rows_of(clicks))
    job.evaluate(network(seed=5), rows_of(clicks, part="test"))
    assert job.fit(model, rows_of(clicks)).steps == 2 * first.steps


def test_a_model_with_other_tables_has_no_rows_to_be_scored_with(clicks):
    class Other(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = SparseEmbedding("elsewhere", 4, ["C1"])

    job = trainer()
    job.fit(network(), rows_of(clicks))
    with pytest.raises(ConfigError, match="tables that the trainer's model has not: elsewhere"):
        job.evaluate(Other(), rows_of(clicks, part="test"))
