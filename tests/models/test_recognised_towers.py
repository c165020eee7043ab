"""Which models' networks servers recognise as plain towers (serving/plain_tower.py), and that those score the same."""

import numpy as np
import pytest
from small_models import DENSE, SLOTS, small

from sparsefleet.export.network import export_network
from sparsefleet.export.onnx_session import open_session, run_session
from sparsefleet.models import SHELF
from sparsefleet.serving import plain_tower

PLAIN = ("ctr_dnn", "dnn")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in PLAIN else pytest.mark.slow) for name in SHELF]
)
def test_what_is_recognised_scores_the_same(name):
    network = export_network(small(name).eval(), SLOTS, DENSE)
    found = plain_tower.plain_tower(network.graph)
    assert (found is not None) == (name in PLAIN)
    if found is None:
        return
    widths = {entry.input: entry.width for entry in network.info.embeddings} | {"dense": DENSE}
    draw = np.random.default_rng(0)
    inputs = {given: draw.standard_normal((20, widths[given]), np.float32) for given in found.inputs}
    tower = plain_tower.ServedTower(found.weights, found.biases, found.column)
    np.testing.assert_allclose(
        tower.probabilities(np.concatenate([inputs[given] for given in found.inputs], axis=1)),
        run_session(open_session(network.graph), network.info.output, inputs),
        rtol=0,
        atol=1e-6,
    )
