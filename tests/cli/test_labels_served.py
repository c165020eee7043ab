"""Scores of several labels, by name: from training to a served answer, and what compares them."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest
from command_line import CommandLine
from http_server import Served, serving
from waiting import wait_until

from sparsefleet.core.schema import Schema
from sparsefleet.serving.predictor import Predictor


@pytest.mark.slow
@pytest.mark.parametrize("model", ["esmm", "mmoe"])
def test_two_labels_from_training_to_a_server(shell: CommandLine, tmp_path: Path, model: str) -> None:
    made = shell.run("data", "synth", "--kind", "events", "--rows", 4000, "--parts", 2, "--out", "data")
    assert made.returncode == 0, made.stderr
    trained = shell.run(
        *("train", "--data", "data/train", "--save", "run", "--batch-size", 200, "--model", model),
        *("--set", "hidden=8" if model == "esmm" else "experts=2", "--embedding-size", 4),
    )
    assert trained.returncode == 0, trained.stderr
    told = shell.result("infer", "run", "--data", "data/test", "--output", "scores.csv")
    assert {"auc", "buy_auc"} <= told.keys()
    with (tmp_path / "scores.csv").open() as file:
        lines = list(csv.DictReader(file))
    wanted = {label: [float(line[f"probability_{label}"]) for line in lines] for label in ("click", "buy")}
    exported = shell.run("export", "run", "--out", "bundle", "--test-data", "data/test", "--require", "buy_auc>=0.1")
    assert exported.returncode == 0, exported.stderr
    lineage = json.loads((tmp_path / "bundle" / "manifest.json").read_text())["lineage"]
    assert sum(lineage["scores"]) == len(lines)
    assert {"auc", "buy_auc"} <= lineage["metrics"].keys()

    schema = Schema.load(tmp_path / "data" / "schema.toml")
    files = sorted((tmp_path / "data" / "test").iterdir())
    rows = [row for file in files for row in csv.DictReader(file.open())]
    asked = [{name: row[name] or None for name in schema.fields} for row in rows[:300]]
    predictor = Predictor(tmp_path / "bundle")
    assert predictor.labels == ("click", "buy")
    found = predictor.predict_labels(asked)
    for label in wanted:
        np.testing.assert_allclose(found[label], wanted[label][:300], atol=1e-5)
    np.testing.assert_array_equal(predictor.predict(asked), found["click"])

    coarse = shell.run("export", "run", "--out", "coarse", "--rows", "int8", "--name", "coarse")
    assert coarse.returncode == 0, coarse.stderr
    log, shadow = tmp_path / "log.jsonl", ("--shadow", str(tmp_path / "coarse"))
    with serving(tmp_path / "bundle", "--log-requests", str(log), "--grpc-port", "0", *shadow) as server:
        for count in (1, 300):  # a short request, and one that goes in pieces
            answer = server.post("/v1/predict", {"rows": asked[:count]}).json()
            assert list(answer["scores_by_label"]) == ["click", "buy"]
            for label in wanted:
                np.testing.assert_allclose(answer["scores_by_label"][label], wanted[label][:count], atol=1e-5)
            assert answer["scores"] == answer["scores_by_label"]["click"]
        assert server.client.get("/v1/model").json()["labels"] == ["click", "buy"]
        far = _shadow_differences(server, 1)
        assert list(far) == ["buy", "click"]
        assert all(0 < found < 0.1 for found in far.values())  # int8 rounds
        described = server.client.get("/openapi.json").json()
        answered = described["paths"]["/v1/predict"]["post"]["responses"]["200"]["content"]["application/json"][
            "schema"
        ]
        assert answered["required"] == ["version", "scores", "scores_by_label"]
        _check_grpc(server.about["grpc"], asked[:3], schema, wanted)
        verified = shell.run(
            *("verify", "--checkpoint", "run", "--bundle", "bundle", "--data", "data/test"),
            *("--url", server.url, "--tolerance", "1e-5", "--json"),
        )
        assert verified.returncode == 0, verified.stdout + verified.stderr
        named = [check["what"] for check in json.loads(verified.stdout.splitlines()[-1])["scores"]["checks"]]
        assert {f"scores of {place}, label {label}" for place in ("bundle", "http") for label in wanted} <= set(named)
        assert server.terminate() == 0
    with serving(tmp_path / "bundle") as server:
        replayed = shell.run("replay", log, "--url", server.url, "--json")
        assert replayed.returncode == 0, replayed.stdout + replayed.stderr
        assert json.loads(replayed.stdout.splitlines()[-1])["differences"]["count"] >= 2 * 301


def _shadow_differences(server: Served, least: int) -> dict[str, float]:
    """By label, once the shadow has scored so many rows along: it does so when there is time."""

    def told() -> dict[str, float]:
        text = server.client.get("/metrics").text
        rows = re.search(r"^sparsefleet_shadow_rows_total{.*} (\d+)$", text, re.M)
        found = re.findall(r'^sparsefleet_shadow_difference_sum{version="coarse",label="(\w+)"} (\S+)$', text, re.M)
        return {label: float(far) for label, far in found} if rows and int(rows[1]) >= least else {}

    return wait_until(told, 30, "the shadow")


def _check_grpc(
    address: str, asked: list[dict[str, str | None]], schema: Schema, wanted: dict[str, list[float]]
) -> None:
    grpc = pytest.importorskip("grpc", reason="no grpcio: pip install 'sparsefleet[grpc]'")
    from sparsefleet.serving.kserve.messages import METHODS, SERVICE, messages

    types = messages()
    tensor, contents = types["InferTensor"], types["InferTensorContents"]
    inputs = []
    for name in schema.fields:
        values = [row[name] for row in asked]
        if name in schema.number_fields:
            held = contents(fp32_contents=[float("nan") if value is None else float(value) for value in values])
        else:
            held = contents(bytes_contents=[(value or "").encode() for value in values])
        kind = "FP32" if name in schema.number_fields else "BYTES"
        inputs.append(tensor(name=name, datatype=kind, shape=[len(asked)], contents=held))
    with grpc.insecure_channel(address) as channel:

        def call(method: str, **fields: object) -> object:
            given, answered = (types[name] for name in METHODS[method])
            ask = channel.unary_unary(f"/{SERVICE}/{method}", given.SerializeToString, answered.FromString)
            return ask(given(**fields), timeout=20)

        names = [output.name for output in call("ModelMetadata", name="model").outputs]
        assert names == ["scores", "scores_click", "scores_buy"]
        answer = call("ModelInfer", model_name="model", inputs=inputs)
        assert [output.name for output in answer.outputs] == names
        for raw, label in zip(answer.raw_output_contents, ("click", "click", "buy"), strict=True):
            np.testing.assert_allclose(np.frombuffer(raw, "<f4"), wanted[label][: len(asked)], atol=1e-5)
        chosen = (
            [types["InferRequestedOutputTensor"](name="scores_buy")] if "InferRequestedOutputTensor" in types else []
        )
        if chosen:
            (only,) = call("ModelInfer", model_name="model", inputs=inputs, outputs=chosen).outputs
            assert only.name == "scores_buy"
