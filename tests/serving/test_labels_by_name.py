"""A bundle of two labels, in this process: every way to score gives both by name. Made of an old bundle."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from bundle_edits import rewrite
from bundle_fixtures import raw_rows

from sparsefleet.core.errors import BundleError
from sparsefleet.export import Bundle
from sparsefleet.export.warm_up import make_warm_up
from sparsefleet.serving.answers import answer_bytes
from sparsefleet.serving.batcher import MicroBatcher
from sparsefleet.serving.config import ServeConfig
from sparsefleet.serving.describe import described
from sparsefleet.serving.kserve.tensors import outputs_of, tensors_of
from sparsefleet.serving.metrics import Metrics
from sparsefleet.serving.openapi import openapi
from sparsefleet.serving.predictor import Predictor, Scores
from sparsefleet.serving.shadow import Shadow
from sparsefleet.serving.versions import labels_difference
from sparsefleet.verify.http_client import ONLY, labelled_scores, scores_of
from sparsefleet.verify.places import by_label
from sparsefleet.verify.scores import check_scores, score_samples

# One label or two: both in ONNX Runtime here (`own_tower=False`), so that scores are equal to the last bit.
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
    one, both = Predictor(ONE, own_tower=False), Predictor(two)
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
    one, both = Predictor(ONE, own_tower=False), Predictor(two)
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


# -- the warm-up -------------------------------------------------------------------------------------------------------


def with_warm_up(path: Path, copy: Path, raw: bytes) -> Path:
    shutil.copytree(path, copy)
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["files"].append({"path": "warmup.json", "bytes": 0, "checksum": "crc32:00000000"})
    (copy / "manifest.json").write_text(json.dumps(manifest))
    rewrite(copy, "warmup.json", raw)
    return copy


def made_for(path: Path) -> dict[str, object]:
    bundle = Bundle.open(path)
    return json.loads(make_warm_up(bundle.graph, bundle.network, bundle.schema, bundle.tables).to_json())


def test_the_warm_up_holds_every_label(two: Path, tmp_path: Path) -> None:
    one, both = made_for(ONE), made_for(two)
    assert (one["version"], both["version"]) == (1, 2)
    for alone, sample in zip(one["samples"], both["samples"], strict=True):
        assert list(sample) == ["dense", "keys", "scores"]
        assert list(sample["scores"]) == ["label", "buy"]
        assert sample["scores"]["label"] == alone["score"]
        assert sample["scores"]["buy"] == pytest.approx(1 - alone["score"], abs=1e-6)
    assert not Predictor(with_warm_up(two, tmp_path / "right", json.dumps(both).encode())).trouble()
    both["samples"][1]["scores"]["buy"] = 0.987
    wrong = Predictor(with_warm_up(two, tmp_path / "wrong", json.dumps(both).encode()))
    assert re.fullmatch(r"sample 1 of the warm-up scores 0\.\d+ for buy; the bundle says 0\.987000", wrong.trouble()), (
        wrong.trouble()
    )
    # A bundle of an earlier release, which kept the first label's scores alone.
    assert not Predictor(with_warm_up(two, tmp_path / "old", json.dumps(one).encode())).trouble()
    one["samples"][2]["score"] = 0.987
    old = Predictor(with_warm_up(two, tmp_path / "old and wrong", json.dumps(one).encode()))
    assert "sample 2 of the warm-up scores" in old.trouble()


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ({"label": 0.5}, "network.json has the labels label, buy: files of two bundles?"),
        ({"buy": 0.5, "label": 0.5}, "files of two bundles?"),
        ({"label": 0.5, "buy": 1.5}, "wanted is a probability"),
        ({"label": 0.5, "buy": None}, "wanted is a probability"),
        ([0.5, 0.5], "files of two bundles?"),
        (None, "files of two bundles?"),
    ],
)
def test_a_warm_up_of_other_labels_is_refused(two: Path, tmp_path: Path, scores: object, message: str) -> None:
    document = made_for(two)
    document["samples"][0]["scores"] = scores
    with pytest.raises(BundleError, match=re.escape(message)):
        Bundle.open(with_warm_up(two, tmp_path / "copy", json.dumps(document).encode()))


# -- a shadow ----------------------------------------------------------------------------------------------------------


def test_a_shadow_is_compared_by_label(two: Path, rows: list[dict[str, object]], tmp_path: Path) -> None:
    """The shadow's `label` is the same, its `buy` a quarter lower."""
    shutil.copytree(two, tmp_path / "lower")
    graph = onnx.load_model_from_string((two / "model.onnx").read_bytes())
    (one,) = (entry for entry in graph.graph.initializer if entry.name == "one")
    one.CopyFrom(onnx.helper.make_tensor("one", onnx.TensorProto.FLOAT, [], [0.75]))
    rewrite(tmp_path / "lower", "model.onnx", graph.SerializeToString())
    current, shadow = Predictor(two), Predictor(tmp_path / "lower")
    metrics, scores = Metrics(), current.score(current.parser.samples(rows))
    versions = SimpleNamespace(current=current, shadow=shadow, hold_shadow=lambda: contextlib.nullcontext(shadow))
    at_once = SimpleNamespace(submit_idle=lambda work, item, samples: work([item]) is None)
    Shadow(versions, at_once, metrics).follow(current, current.parser.samples(rows), scores)
    told, named = metrics.text("v", 0, {}), f'version="{shadow.version}"'
    assert f"sparsefleet_shadow_rows_total{{{named}}} {len(rows)}" in told

    def figure(name: str, label: str) -> float:
        (found,) = re.findall(rf'^sparsefleet_shadow_{name}{{{re.escape(named)},label="{label}"}} (\S+)$', told, re.M)
        return float(found)

    assert figure("difference_sum", "label") == figure("difference_max", "label") == 0
    assert figure("difference_sum", "buy") == pytest.approx(0.25 * len(rows), rel=1e-5)
    assert figure("difference_max", "buy") == pytest.approx(0.25, rel=1e-5)
    count, found = metrics.shadow_summary(shadow.version)
    assert (count, [name for name, _, _ in found]) == (len(rows), ["label", "buy"])
    # By name, not by place: a model of one label has that one in common with it.
    alone = Predictor(ONE, own_tower=False)
    versions.current = alone
    Shadow(versions, at_once, metrics).follow(
        alone, current.parser.samples(rows), alone.score(current.parser.samples(rows))
    )
    assert metrics.shadow_summary(shadow.version)[0] == 2 * len(rows)
    assert f'{named},label="label"}} 0' in metrics.text("v", 0, {})


def test_answers_that_would_mean_something_else() -> None:
    assert labels_difference(("click",), ("click",)) == labels_difference(("click",), ("click", "buy")) == ""
    assert "no scores for buy" in labels_difference(("click", "buy"), ("click",))
    assert labels_difference(("click", "buy"), ("buy", "click")) == "plain scores are of click, now of buy"


def test_metrics_forget_versions_of_long_ago(rows: list[dict[str, object]]) -> None:
    predictor, metrics = Predictor(ONE, own_tower=False), Metrics()
    batch = predictor.parser.samples(rows)
    scores = predictor.score(batch)
    for number in range(100):
        for version in ("steady", f"v{number}"):
            metrics.scored(version, batch.slots, 1, scores)
            metrics.predicted(version)
            metrics.shadowed(version, {"label": np.zeros(len(rows)), "buy": np.zeros(len(rows))})
    told = metrics.text("steady", 0, {})
    for name, labels in (("answers_total", ""), ("scores_count", ""), ("shadow_difference_sum", ',label="buy"')):
        kept = re.findall(rf'^sparsefleet_{name}{{version="(\w+)"{labels}}}', told, re.M)
        assert len(kept) == 32
        assert {"steady", "v99", "v69"} <= set(kept)
    assert 'sparsefleet_answers_total{version="steady"} 100\n' in told
