"""A prediction is computed as in training, where denormals are zero, and read as data are, where they are numbers."""

from __future__ import annotations

import numpy as np
import pytest

from sparsefleet.kernels.float_mode import denormals_are_zero
from sparsefleet.serving.predictor import ONNX_RUNTIME, Predictor
from sparsefleet.serving.source import SparseSource


class Equal(SparseSource):
    """Rows that hold one number throughout."""

    def __init__(self, number: float) -> None:
        self._number = number

    def rows(self, table, keys):
        return np.full((len(keys), 4), self._number, np.float32), np.ones(len(keys), np.bool_)


class WatchedSession:
    def __init__(self, session) -> None:
        self._session, self.seen = session, []

    def run(self, outputs, inputs):
        self.seen.append(denormals_are_zero())
        return self._session.run(outputs, inputs)


@pytest.mark.parametrize("own_tower", [False, True])
def test_the_predictor_takes_denormals_for_zero(trained, own_tower):
    with_denormals, without = (
        Predictor(trained.bundles[0], source=Equal(number), own_tower=own_tower) for number in (1e-40, 0.0)
    )
    with_denormals._session = watched = WatchedSession(with_denormals._session)
    rows = trained.rows[:50]
    scores = with_denormals.predict(rows)
    assert watched.seen == ([True] if with_denormals.runtime == ONNX_RUNTIME else [])
    assert not denormals_are_zero()
    assert scores.tobytes() == without.predict(rows).tobytes()


def test_requests_are_parsed_where_denormals_are_numbers(trained):
    predictor = Predictor(trained.bundles[0])
    row = {**trained.rows[0], predictor.bundle.schema.dense_names[0]: 1e-39}
    feature = predictor.bundle.schema.dense[0]
    assert predictor.parser.samples([row]).dense[0, 0] == np.float32((1e-39 - feature.minimum) / feature.diff) != 0
