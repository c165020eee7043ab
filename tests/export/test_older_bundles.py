"""A bundle that commit 24ee871 exported opens, and scores as that commit's `sparsefleet infer` did its checkpoint."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
from bundle_fixtures import raw_rows

from sparsefleet.export import Bundle
from sparsefleet.serving import Predictor

BUNDLE = Path(__file__).parent / "data" / "bundle-24ee871"
SAMPLES = Path(__file__).parents[1] / "checkpoint" / "data" / "version-1"


def test_it_opens_and_scores_as_it_did(tmp_path):
    bundle = Bundle.open(BUNDLE, full=True)
    assert (len(bundle.tables["SparseFeatFactors"]), bundle.manifest.checkpoint.step) == (97, 3)
    (tmp_path / "part-0").write_bytes((SAMPLES / "samples.txt").read_bytes())
    samples, _ = raw_rows(tmp_path)
    with (SAMPLES / "scores.csv").open() as file:
        expected = [float(line["probability"]) for line in csv.DictReader(file)]
    np.testing.assert_allclose(Predictor(BUNDLE).predict(samples), expected, atol=1e-6, rtol=0)
