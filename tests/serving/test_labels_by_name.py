"""A bundle of two labels, in this process: every way to score gives both by name. Made of an old bundle."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from bundle_edits import rewrite
from bundle_fixtures import raw_rows

from sparsefleet.core.errors import BundleError
from sparsefleet.serving.answers import answer_bytes
from sparsefleet.serving.batcher import MicroBatcher
from sparsefleet.serving.config import ServeConfig
from sparsefleet.serving.describe import described
from sparsefleet.serving.kserve.tensors import outputs_of, tensors_of
from sparsefleet.serving.metrics import Metrics
from sparsefleet.serving.openapi import openapi
from sparsefleet.serving.predictor import Predictor, Scores
from sparsefleet.verify.http_client import ONLY, labelled_scores, scores_of
from sparsefleet.verify.places import by_label
from sparsefleet.verify.scores import check_scores, score_samples

ONE = Path(__file__).parents[1] / "export" / "data" / "bundle-24ee871"
SAMPLES = Path(__file__).parents[1] / "checkpoint" / "data" / "version-1" / "samples.txt"


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The old bundle with a second output: 1 - probability, for the label `buy`."""
    bundle = tmp_path_factory.mktemp("two") / "bundle"
    shutil.copytree(ONE, bundle)
    graph = onnx.load_model_from_string((bundle / "model.onnx").read_bytes())
    graph.graph.initializer.append(onnx.helper.make_tensor("one", onnx.TensorProto.FLOAT, [], [1.0]))
    graph.graph.node.append(onnx.helper.make_node("Sub", ["one", "probability"], ["probability_1"]))
    other = onnx.helper.make_tensor_value_info("probability_1", onnx.TensorProto.FLOAT, ["batch"])
    graph.graph.output.append(other)
    rewrite(bundle, "model.onnx", graph.SerializeToString())
    network = json.loads((bundle / "network.json").read_text())
    network["version"] = 2
    network["labels"] = [["label", "probability"], ["buy", "probability_1"]]
    for entry in network["embeddings"]:
        entry["length"] = None
    rewrite(bundle, "network.json", json.dumps(network).encode())
    return bundle


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, object]]:
    folder = tmp_path_factory.mktemp("rows")
    (folder / "part-0").write_bytes(SAMPLES.read_bytes())
    return raw_rows(folder)[0]


def test_a_predictor_gives_both(two: Path, rows: list[dict[str, object]]) -> None:
    one, both = Predictor(ONE), Predictor(two)
    wanted = one.predict(rows)
    assert (one.labels, both.labels) == (("label",), ("label", "buy"))
    assert list(one.predict_labels(rows)) == ["label"]
    np.testing.assert_array_equal(both.predict(rows), wanted)
    found = both.predict_labels(rows)
    np.testing.assert_array_equal(found["label"], wanted)
    np.testing.assert_allclose(found["buy"], 1 - wanted, rtol=1e-6)
    assert not both.trouble()
    # In pieces, joined, and of nothing.
    scores = both.score(both.parser.samples(rows))
    cut = [scores.part(0, 3), scores.part(3, len(rows))]
    np.testing.assert_array_equal(Scores.joined(cut).by_label["buy"], found["buy"])
    assert both.predict_labels([])["buy"].tolist() == []
    many = both.parser.samples(rows * 600)
    assert both.score(many).by_label["buy"].shape == (len(many),)
    assert described(both.bundle)["labels"] == ["label", "buy"]
    assert described(one.bundle)["labels"] == ["label"]


def test_an_output_that_the_graph_does_not_have_is_refused(two: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(two, copy)
    network = (copy / "network.json").read_text().replace("probability_1", "probability_2")
    rewrite(copy, "network.json", network.encode())
    with pytest.raises(BundleError, match=r"network\.json says 'probability_2', float32 \[B\]"):
        Predictor(copy)


def test_answers(two: Path, rows: list[dict[str, object]]) -> None:
    one, both = Predictor(ONE), Predictor(two)
    plain = json.loads(answer_bytes("v", one.score(one.parser.samples(rows))))
    assert set(plain) == {"version", "scores"}
    scores = both.score(both.parser.samples(rows))
    answer = json.loads(answer_bytes("v", scores, "r-1"))
    assert answer["scores"] == plain["scores"] == answer["scores_by_label"]["label"]
    assert answer["scores_by_label"]["buy"] == pytest.approx([1 - score for score in plain["scores"]], abs=1e-6)
    assert scores_of(answer, len(rows), "here") == ("v", answer["scores_by_label"])
    assert scores_of(plain, len(rows), "here") == ("v", {ONLY: plain["scores"]})
    for wrong in ({"buy": ["x"]}, {}, [1], {"buy": None}):
        assert labelled_scores({"scores": [0.5], "scores_by_label": wrong}) is None
    assert outputs_of(one.bundle) == ("scores",)
    assert outputs_of(both.bundle) == ("scores", "scores_label", "scores_buy") == tuple(tensors_of(scores))
    config = ServeConfig(bundle=str(two))
    for predictor, required in ((one, ["version", "scores"]), (both, ["version", "scores", "scores_by_label"])):
        document = openapi(predictor.bundle, config)["paths"]["/v1/predict"]["post"]["responses"]["200"]
        assert document["content"]["application/json"]["schema"]["required"] == required


def test_pieces_of_a_long_request_go_together(two: Path, rows: list[dict[str, object]]) -> None:
    predictor = Predictor(two)
    batch = predictor.parser.samples(rows * 40)

    async def ask() -> tuple[Scores, Scores]:
        batcher = MicroBatcher(2, 64, 100_000, Metrics())
        deadline = asyncio.get_running_loop().time() + 60
        try:
            scored = await batcher.score(predictor, batch, deadline)
            return scored, await batcher.score(predictor, batch.samples(0, 0), deadline)
        finally:
            batcher.close()

    scored, nothing = asyncio.run(ask())
    np.testing.assert_allclose(scored.by_label["buy"], 1 - scored.probabilities, rtol=1e-6)
    assert list(nothing.by_label) == ["label", "buy"]


def test_verify_compares_each_label(two: Path, rows: list[dict[str, object]]) -> None:
    predictor = Predictor(two)
    found = by_label(predictor.score(predictor.parser.samples(rows)))
    off = {**found, "buy": found["buy"] + np.float32(0.01)}
    places = {
        "bundle": SimpleNamespace(scores=lambda samples: found),
        "http": SimpleNamespace(scores=lambda samples: off),
        "redis": SimpleNamespace(scores=lambda samples: {ONLY: found["label"]}),
    }
    scored = score_samples(places, rows, found, found)
    checks = {check.what: check.ok for check in check_scores(scored, 1e-6, "").checks}
    assert checks == {
        "scores of bundle, label label": True,
        "scores of bundle, label buy": True,
        "scores of http, label label": True,
        "scores of http, label buy": False,
        "scores of redis": False,
    }
    assert scored.failed["redis"] == "it scores one label, the checkpoint the labels label, buy"
