"""SGD's usual rate keeps away from where training diverges. docs/defaults.md has the measurements."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import sparsefleet as sf
from sparsefleet.datasets.synth import SynthSpec, synth

ROWS, BATCH = 200_000, 100
"""So many samples that 1.5e-3 diverges; 50,000 are too few."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its dense features have values far from the usual, as real ones do: they are what SGD diverges at."""
    folder = tmp_path_factory.mktemp("usual") / "data"
    synth(folder, SynthSpec(ROWS, 1000, parts=1))
    return folder


def test_half_as_much_again_as_sgds_usual_rate_does_not_diverge(data: Path) -> None:
    trainer = sf.Trainer(sf.optim.SGD(1.5 * sf.optim.usual_rate("sgd", BATCH)), threads=2, quiet=True)
    schema = sf.Schema.load(data / "schema.json")
    result = trainer.fit(sf.CTRDNN(), sf.open_reader(str(data / "train"), schema, batch_size=BATCH))
    assert result.rows == ROWS
    assert math.isfinite(result.train["logloss"])
    assert result.train["auc"] > 0.6
