"""A model that was trained through a generator: infer, verify, export and serving know it; nobody reads raw rows."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from command_line import SMALL
from http_server import serving

import sparsefleet as sf
from sparsefleet.checkpoint import Checkpoint, latest
from sparsefleet.core.inputs import Inputs
from sparsefleet.serving.arrow_body import CONTENT_TYPE, batch_of_stream
from sparsefleet.serving.samples import RequestError
from sparsefleet.serving.versions import inputs_difference

GENERATOR = Path(__file__).parents[2] / "examples" / "criteo_generator.py"
COMMAND = f"{sys.executable} {GENERATOR}"
INPUTS = [("dense_input", 13), *(f"C{n}" for n in range(1, 27)), "label"]


@pytest.fixture(scope="module")
def run(clicks: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """As the page of those who come from Paddle teaches it; with the test AUC through the same command."""
    folder = tmp_path_factory.mktemp("piped") / "run"
    made = []
    for part in ("train", "test"):
        dataset = sf.DatasetFactory().create_dataset("QueueDataset")
        dataset.set_use_var(INPUTS)
        dataset.set_pipe_command(COMMAND)
        dataset.set_batch_size(100)
        dataset.set_filelist(sf.list_files(clicks / part))
        made.append(dataset)
    trainer, model = sf.Trainer(sf.optim.Adam(1e-2)), sf.CTRDNN(config=sf.CTRDNNConfig(embedding_size=4, hidden=(16,)))
    result = trainer.fit(model, made[0], test=made[1], save=sf.SavePolicy(str(folder)))
    return folder, result.test["auc"]


@pytest.fixture(scope="module")
def bundle(run: tuple[Path, float], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("bundles") / "v1"
    sf.export_checkpoint(run[0], out)
    return out


def last_json(text: str) -> dict:
    return json.loads(text.splitlines()[-1])


def said(result) -> str:
    return " ".join((result.output + (result.stderr or "")).split())


def test_a_checkpoint_knows_how_its_data_was_read(run) -> None:
    inputs = Checkpoint.open(latest(run[0])).manifest.inputs
    assert inputs["format"] == "pipe"
    assert inputs["pipe_command"] == COMMAND
    assert inputs["layout"][-1] == ["label", "label"]
    assert inputs["slots"]["C26"] == inputs["dense"]["dense_input1"] == "ready"


@pytest.mark.parametrize("workers", [1, 2])
def test_infer_refuses_raw_rows_and_says_what_to_write(cli, clicks, run, workers) -> None:
    refused = cli("infer", run[0], "--data", clicks / "test", "--workers", workers)
    assert refused.exit_code == 1
    assert "was trained on what the pipe command" in said(refused)
    assert "ready-made keys in training, values to hash here" in said(refused)
    assert "--pipe-command" in said(refused)


def test_infer_through_the_same_command(cli, clicks, run) -> None:
    result = cli("infer", run[0], "--data", clicks / "test", "--pipe-command", COMMAND, "--json")
    assert result.exit_code == 0, result.output
    assert last_json(result.stdout)["auc"] == pytest.approx(run[1], abs=1e-6)


def test_infer_where_the_user_vouches(cli, clicks, run, tmp_path) -> None:
    # The checkpoint's own schema hashes otherwise than the generator: exactly the mistake that is refused.
    result = cli("infer", run[0], "--data", clicks / "test", "--same-inputs", "--json")
    assert result.exit_code == 0, result.output
    assert last_json(result.stdout)["auc"] < run[1] - 0.05
    # Trained with Criteo's schema, which hashes as the generator does, it is true.
    model = tmp_path / "M"
    words = ("--data", clicks / "train", "--pipe-command", COMMAND, "--save", model, *SMALL, "--threads", 1)
    trained = cli("train", *words, "--schema", _criteo(tmp_path), "--test-data", clicks / "test", "--json")
    assert trained.exit_code == 0, trained.output
    result = cli("infer", model, "--data", clicks / "test", "--same-inputs", "--json")
    assert last_json(result.stdout)["auc"] == pytest.approx(last_json(trained.stdout)["test_auc"], abs=1e-6)


def _criteo(folder: Path) -> Path:
    sf.CRITEO.save(folder / "criteo.json")
    return folder / "criteo.json"


_same_network = ("--hidden", "16", "--embedding-size", "4", "--batch-size", "100", "--learning-rate", "1e-2")


def test_resuming_with_other_inputs_is_refused(cli, clicks, run) -> None:
    schema = run[0].parent / "schema.json"
    schema.write_text(json.dumps(Checkpoint.open(latest(run[0])).manifest.schema))
    refused = cli(
        "train", "--data", clicks / "train", "--resume", run[0], "--schema", schema, *_same_network, "--epochs", 2
    )
    assert refused.exit_code == 1
    assert "was trained on what the pipe command" in said(refused)


def test_another_hash_seed_is_refused(cli, clicks, run, monkeypatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "5")
    refused = cli("infer", run[0], "--data", clicks / "test", "--pipe-command", COMMAND)
    assert refused.exit_code == 1
    assert "PYTHONHASHSEED of the pipe command: 0 in training, 5 here" in said(refused)


def test_verify_does_not_call_a_shared_mistake_equal(cli, clicks, run, bundle) -> None:
    words = ("verify", "--checkpoint", run[0], "--bundle", bundle, "--data", clicks / "test", "--rows", 200)
    refused = cli(*words)
    assert refused.exit_code == 2
    assert "was trained on what the pipe command" in said(refused)
    report = cli(*words, "--pipe-command", COMMAND, "--json")
    assert report.exit_code == 0, report.output
    told = last_json(report.stdout)
    assert told["ok"]
    assert "requests to this model hold feature keys (whole numbers) for C1, C2, C3 and 23 more" in str(told["notes"])
    checks = str(told)
    assert "inputs" in checks


def test_checkpoint_show_tells_it(cli, run) -> None:
    shown = said(cli("checkpoint", "show", run[0]))
    assert "trained on what the pipe command" in shown
    assert "feature keys (whole numbers) for C1, C2, C3 and 23 more" in shown


def test_a_server_does_not_switch_to_other_inputs_unasked(bundle) -> None:
    serves = sf.Bundle.open(bundle)
    raw = Inputs.of_schema("criteo", serves.schema, "raw")
    other = replace(serves, manifest=replace(serves.manifest, inputs=raw))
    assert inputs_difference(serves, other).startswith(
        "slot C1, C2, C3 and 23 more: ready-made keys now, values to hash then"
    )
    assert inputs_difference(serves, replace(serves, manifest=replace(serves.manifest, inputs=None))) == ""
    assert inputs_difference(serves, serves) == ""


def test_a_bundle_says_what_its_inputs_are(bundle) -> None:
    opened = sf.Bundle.open(bundle)
    assert opened.inputs.pipe_command == COMMAND
    assert opened.inputs.slots["C1"] == "ready"
    assert json.loads((bundle / "manifest.json").read_text())["version"] == 3


def test_export_tells_it(cli, run, tmp_path) -> None:
    told = cli("export", run[0], "--out", tmp_path / "v2")
    assert told.exit_code == 0, told.output
    assert "requests must hold feature keys (whole numbers) for C1, C2, C3 and 23 more and numbers that" in said(told)


def first_sample(clicks: Path) -> tuple[dict, sf.Batch]:
    """The first test sample as the generator makes it."""
    reader = sf.open_reader(clicks / "test", sf.CRITEO, batch_size=1)
    with reader.epoch() as epoch:
        batch = next(epoch.streams[0])
    dense = {f"dense_input{n + 1}": float(value) for n, value in enumerate(batch.dense[0])}
    return {**dense, **{slot: int(batch.slot(slot)[0][0]) for slot in batch.slots}}, batch


def test_predictions_take_ready_keys_and_refuse_text(clicks, bundle) -> None:
    predictor = sf.Predictor(bundle)
    sample, batch = first_sample(clicks)
    wanted = predictor.predict_batch(batch)
    assert predictor.predict([sample]) == pytest.approx(wanted, abs=1e-6)
    for body in (
        {"rows": [sample] * 3},
        {"rows": [list(sample.values())]},
        {"context": {"C1": sample["C1"]}, "candidates": [{k: v for k, v in sample.items() if k != "C1"}]},
    ):
        batch = predictor.parser.body(json.dumps(body).encode())
        assert predictor.predict_batch(batch)[0] == pytest.approx(wanted[0], abs=1e-6)
    text = {**sample, "C7": "68fd1e64"}
    bodies = (
        {"rows": [sample, text]},
        {"rows": [[text[name] for name in sample]]},
        {"rows": [{**sample, "C7": [4, "68fd1e64"]}]},
        {"context": {"C7": "68fd1e64"}, "candidates": [{k: v for k, v in sample.items() if k != "C7"}]},
    )
    for body in bodies:
        with pytest.raises(RequestError, match=r"field 'C7': .*takes feature keys here"):
            predictor.parser.body(json.dumps(body).encode())
    lenient = sf.Predictor(bundle, allow_missing=True)
    short = {name: value for name, value in text.items() if name != "C1"}
    with pytest.raises(RequestError, match="field 'C7'"):
        lenient.parser.body(json.dumps({"rows": [short]}).encode())


def arrow(sample: dict) -> bytes:
    table = pa.table({name: [value] for name, value in sample.items()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def test_arrow_requests_too(clicks, bundle) -> None:
    opened = sf.Bundle.open(bundle)
    sample, batch = first_sample(clicks)
    assert np.array_equal(batch_of_stream(arrow(sample), opened.schema, opened.inputs).keys, batch.keys)
    with pytest.raises(RequestError, match=r"field 'C7': a column of text; .*takes feature keys"):
        batch_of_stream(arrow({**sample, "C7": "68fd1e64"}), opened.schema, opened.inputs)


def test_a_server_documents_it(clicks, bundle) -> None:
    sample, _ = first_sample(clicks)
    with serving(bundle, env={"PYTHONPATH": os.pathsep.join(sys.path)}) as server:
        told = server.client.get("/v1/model").json()
        assert told["inputs"]["pipe_command"] == COMMAND
        assert told["inputs"]["slots"]["C1"] == "ready"
        assert told["requests_hold"].startswith("feature keys (whole numbers) for C1")
        assert server.post("/v1/predict", {"rows": [sample]}).status_code == 200
        refused = server.post("/v1/predict", {"rows": [{**sample, "C1": "text"}]})
        assert refused.status_code == 400
        assert "feature keys" in refused.text
        bulk = server.client.post("/v1/predict", content=arrow(sample), headers={"content-type": CONTENT_TYPE})
        assert bulk.status_code == 200


def test_ready_numbers_are_not_normalised_again(cli, clicks, tmp_path) -> None:
    """Trained through a generator, with a schema that has constants: a request's numbers are ready all the same."""
    model = tmp_path / "M"
    words = ("--data", clicks / "test", "--pipe-command", COMMAND, "--save", model, *SMALL, "--threads", 1)
    assert cli("train", *words, "--schema", _criteo(tmp_path)).exit_code == 0
    sf.export_checkpoint(model, tmp_path / "ready")
    sf.export_checkpoint(model, tmp_path / "raw", same_inputs=True)
    sample, batch = first_sample(clicks)
    ready = dict(zip((*sf.CRITEO.dense_names, *sf.CRITEO.slot_names), sample.values(), strict=True))
    wanted = sf.Predictor(tmp_path / "ready").predict_batch(batch)
    assert sf.Predictor(tmp_path / "ready").predict([ready]) == pytest.approx(wanted, abs=1e-6)
    line = (clicks / "test" / "part-0").read_text().splitlines()[0].split("\t")[1:]
    raw = dict(zip(ready, [value or None for value in line[:13]] + line[13:], strict=True))
    assert sf.Predictor(tmp_path / "raw").predict([raw]) == pytest.approx(wanted, abs=1e-6)
    # A whole number is a key for the first; for the second, which takes raw values, it would be hashed as text.
    for bundle, how in (("ready", ("--pipe-command", COMMAND)), ("raw", ("--same-inputs",))):
        words = ("--checkpoint", model, "--bundle", tmp_path / bundle, "--data", clicks / "test", "--rows", 100)
        done = cli("verify", *words, *how)
        assert done.exit_code == 0, done.output
