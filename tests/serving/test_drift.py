"""How far requests are from the training data: what a bundle keeps of it, and what a server tells."""

import json
import re
import shutil

import numpy as np
import pytest
from bundle_edits import rewrite
from bundle_fixtures import NAMES, SCHEMA
from http_server import serving

from sparsefleet.core.errors import BundleError, ConfigError
from sparsefleet.core.schema import Schema
from sparsefleet.data import PyReader
from sparsefleet.data.open import open_reader
from sparsefleet.export import Bundle, export_checkpoint
from sparsefleet.export import profile as profiles
from sparsefleet.export.manifest import SCORE_BOUNDS
from sparsefleet.export.profile import key_bins, make_profile, parse_profile
from sparsefleet.kernels.reference.table import mix64
from sparsefleet.serving import Predictor
from sparsefleet.serving.metrics import Metrics
from sparsefleet.serving.predictor import COUNTED, Scores


@pytest.fixture(scope="module")
def bundle(trained, tmp_path_factory):
    """With a profile of the very rows that it was trained on."""
    out = tmp_path_factory.mktemp("drift") / "b"
    seen = open_reader(str(trained.data / "train"), SCHEMA, batch_size=500)
    export_checkpoint(trained.checkpoint(3), out, name="b", seen=seen, seen_as="clicks")
    return out


def told(predictor):
    return {name: dict(values) for name, _, _, values in predictor.drift.metrics()}


def count(predictor, rows, times=1):
    batch = predictor.parser.samples(rows)
    predictor._uncounted = COUNTED  # the next one is counted
    by_slot = predictor.score(batch).by_slot
    for _ in range(times):
        predictor.drift.add(batch, by_slot)


def test_what_is_kept_is_what_was_trained_on(trained, bundle):
    profile = Bundle.open(bundle).profile
    assert (profile.data, profile.samples) == ("clicks", 3000)
    spread = profile.spread
    assert not spread.unknown_S.any()  # every value that training met has a row
    np.testing.assert_array_equal(spread.lengths_SK.sum(1), 3000)
    np.testing.assert_array_equal(spread.numbers_nK.sum(1), 3000)
    with open_reader(str(trained.data / "train"), SCHEMA, batch_size=3000).epoch() as epoch:
        (batch,) = epoch.streams[0]
    for place, slot in enumerate(SCHEMA.slot_names):
        keys, _ = batch.slot(slot)
        by_twin = np.bincount((mix64(keys) >> np.uint64(58)).astype(int), minlength=64)
        np.testing.assert_array_equal(spread.keys_SK[place], by_twin)
    for place in range(len(SCHEMA.dense)):
        bounds = profile.bounds_nK[place]
        wanted = np.bincount(np.searchsorted(bounds, batch.dense[:, place]), minlength=16)
        np.testing.assert_array_equal(spread.numbers_nK[place], wanted)
    assert parse_profile(profile.to_json(SCHEMA), SCHEMA, "x").to_json(SCHEMA) == profile.to_json(SCHEMA)
    assert Bundle.open(trained.bundles[0]).profile is None


def test_only_what_changed_drifts(trained, bundle):
    predictor = Predictor(bundle)
    count(predictor, trained.rows[:10])
    assert not told(predictor)["number_drift"]  # too few to tell chance from change
    count(predictor, trained.rows, 20)
    calm = told(predictor)
    assert set(calm["slot_drift"]) == set(SCHEMA.slot_names)
    assert max(calm["slot_length_drift"].values()) < 0.01
    assert max(calm["number_drift"].values()) < 0.15  # 300 other samples of the same kind
    strange = [{**row, "C3": "never seen", "C5": [], "I7": 10**6} for row in trained.rows]
    count(predictor, strange, 200)
    found = told(predictor)
    assert found["slot_drift"]["C3"] > 1
    assert found["slot_unknown_share"]["C3"] > max(0.9, calm["slot_unknown_share"]["C3"] + 0.1)
    assert found["slot_unknown_share_trained"]["C3"] == 0
    assert found["slot_length_drift"]["C5"] > 1
    assert found["number_drift"]["I7"] > 1
    assert found["slot_drift"]["C1"] == pytest.approx(calm["slot_drift"]["C1"], abs=0.02)
    assert found["number_drift"]["I1"] == pytest.approx(calm["number_drift"]["I1"], abs=0.02)
    count(predictor, trained.rows, 900)  # and what has been is forgotten
    assert told(predictor)["slot_unknown_share"]["C3"] == pytest.approx(calm["slot_unknown_share"]["C3"], abs=0.02)


def test_drift_of_scores_is_that_of_the_last_ones_and_not_of_chance():
    metrics = Metrics()
    reference = [0] * (len(SCORE_BOUNDS) - 2) + [100, 100]
    low, high = np.full(500, 0.85, np.float32), np.full(500, 0.95, np.float32)

    def scored(*scores):
        found = np.concatenate(scores)
        metrics.scored("v1", (), 1, Scores(found, 0, 0))
        text = metrics.text("v1", 0, {}, reference)
        told = re.search(r"^sparsefleet_score_drift{.*} (\S+)$", text, re.M)
        return told and float(told[1])

    assert scored(low[:60]) is None
    assert scored(high[:60]) == 0
    for _ in range(1000):  # a million as they should be, in the weeks before
        assert scored(low, high) < 0.01
    for _ in range(100):
        index = scored(low, low)
    assert index > 0.25


def test_long_data_is_thinned_evenly(trained, bundle, monkeypatch):
    monkeypatch.setattr(profiles, "MOST_SAMPLES", 700)
    opened = Bundle.open(bundle)
    with open_reader(str(trained.data / "train"), SCHEMA, batch_size=100).epoch() as epoch:
        profile = make_profile("d", epoch.streams[0], opened.network, opened.schema, opened.tables)
    assert 350 <= profile.samples <= 700


def test_bins_of_keys():
    keys = np.array([0, 1, 2, 2**63, 2**64 - 1], np.uint64)
    np.testing.assert_array_equal(key_bins(keys), mix64(keys) >> np.uint64(58))


def test_samples_of_another_schema_are_refused(trained, tmp_path):
    seen = PyReader(Schema(dense=(), slots=SCHEMA.slots), lambda: iter(()))
    with pytest.raises(ConfigError, match=r"seen: samples of slots C1, .* and 0 dense features; the model has"):
        export_checkpoint(trained.checkpoint(3), tmp_path / "b", seen=seen)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda told: told["slots"].pop("C3"), "field 'C3' is missing"),
        (lambda told: told["slots"]["C3"]["keys"].pop(), "has 63 counts; wanted are 64"),
        (lambda told: told["slots"]["C3"]["lengths"].insert(0, -1), "wanted is a count"),
        (lambda told: told["numbers"]["I1"]["bounds"].reverse(), "numbers that ascend"),
        (lambda told: told["numbers"].update(I99={}), "unknown fields 'I99'"),
        (lambda told: told.update(samples=0), "field 'samples' is 0"),
        (lambda told: told.update(version=2), "version 2 of the profile format"),
    ],
)
def test_profiles_that_are_none(bundle, tmp_path, edit, message):
    shutil.copytree(bundle, tmp_path / "b")
    document = json.loads((tmp_path / "b" / "profile.json").read_text())
    edit(document)
    rewrite(tmp_path / "b", "profile.json", json.dumps(document).encode())
    with pytest.raises(BundleError, match=message):
        Bundle.open(tmp_path / "b")


@pytest.mark.slow
def test_a_server_tells_it(trained, cli, tmp_path):
    train = ("--train-data", trained.data / "train")
    done = cli("export", trained.checkpoint(3), "--out", tmp_path / "b", "--name", "b", *train)
    assert done.exit_code == 0, done.output
    assert Bundle.open(tmp_path / "b").profile.data == str(trained.data / "train")
    with serving(tmp_path / "b") as server:

        def metric(name):
            text = server.client.get("/metrics").text
            found = re.findall(rf'^sparsefleet_{name}{{version="b",(?:slot|feature)="(\w+)"}} (\S+)$', text, re.M)
            return {of: float(value) for of, value in found}

        assert metric("slot_unknown_share_trained") == dict.fromkeys(SCHEMA.slot_names, 0.0)
        rows = [{**row, "C3": "never seen", "I7": 10**6} for row in trained.rows] * 6
        rows = [[row[name] for name in NAMES] for row in rows]
        for _ in range(40):  # 72,000 rows in pieces of 128, one in 16 of which is counted
            assert server.post("/v1/predict", {"rows": rows}).status_code == 200
        assert metric("slot_unknown_share")["C3"] == 1
        assert metric("slot_drift")["C3"] > 1
        assert metric("number_drift")["I7"] > 1
        assert max(value for name, value in metric("number_drift").items() if name != "I7") < 0.3
        assert metric("slot_length_drift")["C3"] < 0.01
