"""`sparsefleet verify` on a checkpoint, its bundle and a server: equal where they are, and pointing at what is not."""

from __future__ import annotations

import json
import shutil

import numpy as np
import onnx
import onnx.numpy_helper
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bundle_edits import change_tensor, failed_checks, rewrite, with_schema
from bundle_fixtures import SCHEMA
from http_server import serving

from sparsefleet.datasets.show import show
from sparsefleet.export import export_checkpoint
from sparsefleet.export.onnx_session import open_session
from sparsefleet.models import CTRDNN
from sparsefleet.scoring.saved_model import saved_model
from sparsefleet.verify import VerifyConfig
from sparsefleet.verify import verify as compare

ROWS = "SparseFeatFactors"


@pytest.fixture
def verify(trained, cli):
    def run(bundle, *more, status=0, data=None):
        where = ("--checkpoint", trained.checkpoint(1), "--bundle", bundle, "--data", data or trained.data / "test")
        done = cli("verify", *where, "--rows", 200, "--json", *more)
        assert done.exit_code == status, done.output
        return json.loads(done.stdout) if done.stdout else done.stderr

    return run


def change_row(bundle, copy):
    """A copy with one value of one row another."""
    shutil.copytree(bundle, copy)
    path = copy / "sparse" / f"{ROWS}.rows"
    data = bytearray(path.read_bytes())
    row = np.frombuffer(data[-4:], "<f4")[0]
    data[-4:] = np.float32(row + 0.5).tobytes()
    rewrite(copy, f"sparse/{ROWS}.rows", bytes(data))
    return copy


def test_equal_places(trained, verify):
    with serving(trained.bundles[0]) as server:
        report = verify(trained.bundles[0], "--url", server.url)
    assert report["ok"]
    assert list(report["places"]) == ["checkpoint", "bundle", "http"]
    assert report["rows"] == 200
    tensors = [check["what"] for check in report["parameters"]["checks"] if check["what"].startswith("tensor ")]
    assert "tensor tower.layers.0.weight" in tensors
    assert len(tensors) == 6
    (table,) = (check for check in report["parameters"]["checks"] if check["what"].startswith("table "))
    assert table["compared"] > 10_000
    assert (table["missing"], table["surplus"], table["differing"], table["max"]) == (0, 0, 0, 0.0)
    for check in report["scores"]["checks"]:
        assert check["count"] == 200
        assert 0 <= check["p50"] <= check["p90"] <= check["p99"] <= check["max"] < 1e-6
    assert len(report["worst"]) == 10
    worst = report["worst"][0]
    assert worst["input"] == {name: _raw(value) for name, value in trained.rows[worst["row"]].items()}
    assert worst["where"].endswith(f"part-0, line {worst['row'] + 1}")
    assert set(worst["scores"]) == {"checkpoint", "bundle", "http"}
    slot = worst["slots"][4]
    assert (slot["slot"], slot["parts_at"]) == ("C5", [])
    assert slot["keys"]["checkpoint"] == slot["keys"]["bundle"]
    assert slot["rows"]["checkpoint"] == slot["rows"]["bundle"]
    assert len(slot["rows"]["bundle"][0]) == 4


def _raw(value):
    return str(value) if isinstance(value, int) else value


class OfItsBatch(CTRDNN):
    def forward(self, batch):
        score = super().forward(batch)
        return score - score.mean(0)


def test_rows_whose_score_depends_on_the_others(trained, tmp_path, monkeypatch):
    """Torch and the bundle say the same of the same batch, and a request gets something else."""
    monkeypatch.setattr("sparsefleet.export.exporting.require_rows_alone", lambda network: None)
    model, schema = saved_model(trained.checkpoint(1))
    own = OfItsBatch(schema.slot_names, model.dense_features, model.config)
    export_checkpoint(trained.checkpoint(1), tmp_path / "b", model=own)
    config = VerifyConfig(rows=200)
    report = compare(trained.checkpoint(1), tmp_path / "b", str(trained.data / "test"), model=own, config=config)
    assert not report.ok
    wrong = {check.what: check.figure for check in report.graph.checks if check.ok is False}
    assert list(wrong) == [f"samples scored alone and in another order, {side}" for side in ("torch", "bundle")]
    for figure in wrong.values():
        assert "the score of a row depends on the rows scored with it: sample " in figure
        assert "gets 0." in figure
        assert "with 63 others, 0.5 alone" in figure
    fine = compare(trained.checkpoint(1), trained.bundles[0], str(trained.data / "test"), config=config)
    alone = [check for check in fine.graph.checks if check.what.startswith("samples scored alone")]
    assert [check.ok for check in alone] == [True, True]


def test_a_changed_tensor(trained, verify, tmp_path):
    changed = change_tensor(trained.bundles[0], tmp_path / "changed", "tower.layers.0.weight")
    wrong = failed_checks(report := verify(changed, status=1))
    assert {what for what in wrong if what.startswith(("tensor", "table"))} == {"tensor tower.layers.0.weight"}
    tensor = wrong["tensor tower.layers.0.weight"]
    assert (tensor["differing"], tensor["at"]) == (1, [1, 3])
    assert tensor["max"] == pytest.approx(0.25, abs=1e-6)
    assert not report["graph"]["ok"]
    assert "scores of bundle" in wrong
    assert all(not slot["parts_at"] for slot in report["worst"][0]["slots"]), "it is not the rows that differ"


def test_a_changed_tensor_whose_checksum_was_left_is_refused(trained, verify, tmp_path):
    changed = change_tensor(trained.bundles[0], tmp_path / "changed", "tower.layers.0.weight", checksums=False)
    report = verify(changed, status=1)
    assert not report["ok"]
    assert "model.onnx: damaged" in report["error"]


@pytest.mark.parametrize(
    ("edit", "setting", "item"),
    [
        (lambda schema: schema["slots"][2].update(hash_prefix="99"), "hash prefixes", "C3"),
        (lambda schema: schema.update(hash_seed=5), "hash seed", "hash_seed"),
        (lambda schema: schema.update(sparse_feature_dim=1000), "folding of keys", "sparse_feature_dim"),
        (lambda schema: schema["dense"][1].update(diff=600.0), "normalisation", "I2"),
    ],
)
def test_a_changed_schema(trained, verify, tmp_path, edit, setting, item):
    """The report names the setting; and the rows' own keys and numbers show it, not only the files' word."""
    wrong = failed_checks(report := verify(with_schema(trained.bundles[0], tmp_path / "changed", edit), status=1))
    assert list(wrong[setting]["differences"]) == [item]
    values = wrong[setting]["differences"][item]
    assert values["checkpoint"] != values["bundle"]
    seen = "numbers of the rows, normalised" if setting == "normalisation" else "keys of the rows"
    if item in ("C3", "I2"):
        assert list(wrong[seen]["differences"]) == [item]
    else:
        assert len(wrong[seen]["differences"]) == 26
    assert report["graph"]["ok"], "the network itself is the same"
    assert report["parameters"]["ok"]
    parting = {slot["slot"] for row in report["worst"] for slot in row["slots"] if slot["parts_at"]}
    assert parting == ({"C3"} if item == "C3" else set() if item == "I2" else set(SCHEMA.slot_names))


def test_a_changed_row(trained, verify, tmp_path):
    wrong = failed_checks(verify(change_row(trained.bundles[0], tmp_path / "changed"), status=1))
    table = wrong[f"table {ROWS}, bundle"]
    assert (table["differing"], table["missing"], table["surplus"]) == (1, 0, 0)
    (example,) = table["examples"]
    assert example["max"] == pytest.approx(0.5, abs=1e-6)
    assert f"key {example['key']}, value 3" in table["figure"]


def test_another_version_on_the_server(trained, verify):
    with serving(trained.bundles[1]) as server:
        wrong = failed_checks(report := verify(trained.bundles[0], "--url", server.url, status=1))
    assert wrong["version"]["differences"]["version"] == {"bundle": "v1", "http": "v2"}
    assert wrong["version that answered"]["versions"] == ["v2"]
    assert "scores of http" in wrong
    assert "scores of bundle" not in wrong
    assert report["parameters"]["ok"]


def test_a_server_of_another_schema_is_told_by_its_settings(trained, verify, tmp_path):
    def rename(schema):
        schema["slots"][25]["name"] = "Z"

    other = with_schema(trained.bundles[0], tmp_path / "other", rename)
    network = json.loads((other / "network.json").read_text())
    network["embeddings"][0]["slots"][25] = "Z"
    rewrite(other, "network.json", json.dumps(network).encode())
    manifest = json.loads((other / "manifest.json").read_text())
    manifest["inputs"]["slots"]["Z"] = manifest["inputs"]["slots"].pop("C26")
    (other / "manifest.json").write_text(json.dumps(manifest))
    with serving(other) as server:
        wrong = failed_checks(verify(trained.bundles[0], "--url", server.url, status=1))
    assert wrong["slots"]["differences"] == {"number 26": {"checkpoint": "C26", "bundle": "C26", "http": "Z"}}
    assert "answered 400" in wrong["scores of http"]["figure"]


@pytest.mark.parametrize(("rows", "largest"), [("float16", 1e-4), ("int8", 2e-3)])
def test_row_types_and_rows_left_out_have_their_own_measure(trained, verify, tmp_path, rows, largest):
    export_checkpoint(trained.checkpoint(1), tmp_path / "small", rows=rows, min_seen=2)
    report = verify(tmp_path / "small")
    (table,) = (check for check in report["parameters"]["checks"] if check["what"].startswith("table "))
    assert table["allowed"].startswith(rows)
    assert 0 < table["max"] < largest
    assert table["dropped"] > 1000
    assert "left out on purpose" in table["figure"]
    (bundle, cost) = report["scores"]["checks"]
    assert bundle["max"] < 1e-6, "as close to what was exported as with float32"
    assert cost["max"] > 1e-5
    assert cost["ok"] is None


def test_rows_that_are_missing_or_too_many(trained, verify, tmp_path):
    """A bundle that left rows out without saying so, and one that kept what it says it left out."""
    export_checkpoint(trained.checkpoint(1), tmp_path / "few", min_seen=2)
    export_checkpoint(trained.checkpoint(1), tmp_path / "all", min_seen=0)
    for path, says in ((tmp_path / "few", 0), (tmp_path / "all", 2)):
        manifest = json.loads((path / "manifest.json").read_text())
        manifest["min_seen"] = says
        (path / "manifest.json").write_text(json.dumps(manifest))
    few, many = (failed_checks(verify(tmp_path / name, status=1))[f"table {ROWS}, bundle"] for name in ("few", "all"))
    assert few["missing"] > 1000
    assert (few["surplus"], len(few["missing_keys"])) == (0, 5)
    assert many["surplus"] == few["missing"]
    assert (many["missing"], len(many["surplus_keys"])) == (0, 5)


def test_the_bundle_of_another_checkpoint(trained, verify):
    wrong = failed_checks(verify(trained.bundles[2], status=1))
    assert wrong[f"table {ROWS}, bundle"]["differing"] > 1000
    assert wrong["step"]["differences"]["step"] == {"checkpoint": 6, "bundle": 18}


def test_a_sample_of_the_rows(trained, verify):
    report = verify(trained.bundles[0], "--sparse-sample", 2000)
    (table,) = (check for check in report["parameters"]["checks"] if check["what"].startswith("table "))
    assert 1500 < table["compared"] < 2500
    assert f"of {_rows_of(trained):,} compared" in table["figure"]


def _rows_of(trained):
    return json.loads((trained.bundles[0] / "manifest.json").read_text())["tables"][0]["rows"]


def test_parquet_rows_and_why_not_ready_keys(trained, verify, cli, tmp_path):
    table = pa.table({name: [row[name] for row in trained.rows] for name in trained.rows[0]})
    table = table.append_column("label", pa.array([int(line[0]) for line in trained.lines]))
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=64)
    report = verify(trained.bundles[0], data=tmp_path / "rows.parquet")
    assert report["worst"][0]["input"] == trained.rows[report["worst"][0]["row"]]
    assert not report["notes"]
    lines = list(show(trained.data / "test" / "part-0", schema=SCHEMA, rows=50))
    (tmp_path / "slots").write_text("\n".join(lines) + "\n")
    where = ("--checkpoint", trained.checkpoint(1), "--bundle", trained.bundles[0])
    done = cli("verify", *where, "--same-inputs", "--data", tmp_path / "slots")
    assert done.exit_code == 2
    assert "holds ready-made keys, and requests to this model hold raw values" in " ".join(done.stderr.split())


def test_a_table_for_people(trained, cli):
    where = ("--checkpoint", trained.checkpoint(1), "--data", trained.data / "test")
    done = cli("verify", *where, "--bundle", trained.bundles[0])
    assert done.exit_code == 0
    for text in (
        "1. Is the pruned graph right?",
        "2. Are parameters",
        "3. Are the serving",
        "equal: checkpoint, bundle",
    ):
        assert text in done.stdout
    assert "the data has 300 samples; 1,000 were asked for" in done.stdout
    done = cli("verify", *where, "--bundle", trained.bundles[1])
    assert done.exit_code == 1
    for text in ("DIFFERS", "The 10 worst rows", "rows in bundle", "differs: "):
        assert text in done.stdout


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"--checkpoint": "none"}, "no checkpoint at"),
        ({"--bundle": "none"}, "no bundle at"),
        ({"--data": "none"}, "no such file"),
        ({"--url": "127.0.0.1:1"}, "is not the address of a server"),
        ({"--url": "http://127.0.0.1:1"}, "cannot be reached"),
        ({"--rows": 0}, "rows=0"),
        ({"--tolerance": -1}, "tolerance=-1"),
        ({"--sparse-sample": 0}, "sparse_sample=0"),
    ],
)
def test_what_cannot_be_compared_at_all(trained, cli, change, message):
    given = {"--checkpoint": trained.checkpoint(1), "--bundle": trained.bundles[0], "--data": trained.data / "test"}
    done = cli("verify", *(word for pair in {**given, **change}.items() for word in pair))
    assert done.exit_code == 2, done.output
    assert message in done.stderr
    assert not done.stdout


def test_levels_of_optimization_are_compared(trained, verify, monkeypatch):
    """ONNX Runtime fuses operators before it runs a network: each level's scores are held to those without any."""
    levels = {"basic", "extended", "all"}

    def found(report):
        named = {level: f"ONNX Runtime's optimization {level}" for level in levels}
        checks = report["graph"]["checks"]
        return {level: c for level, name in named.items() for c in checks if c["what"].split(" (")[0] == name}

    report = verify(trained.bundles[0])
    assert set(found(report)) == levels
    assert all(check["ok"] and check["max"] <= 1e-6 for check in found(report).values())

    def open_wrongly(graph, threads=1, optimization="all"):
        """As a fusion with a bug would: one level computes from another bias."""
        if optimization == "extended":
            model = onnx.load_model_from_string(graph)
            (bias,) = (entry for entry in model.graph.initializer if entry.name.endswith("layers.0.bias"))
            bias.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(bias) + 1, bias.name))
            graph = model.SerializeToString()
        return open_session(graph, threads, optimization)

    monkeypatch.setattr("sparsefleet.serving.predictor.open_session", open_wrongly)
    report = verify(trained.bundles[0], status=1)
    assert {level for level, check in found(report).items() if not check["ok"]} == {"extended"}
    assert list(failed_checks(report)) == ["ONNX Runtime's optimization extended"]
