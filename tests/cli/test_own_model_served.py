"""A model of a user's own, from its file: train, infer, export, serve, verify; the server needs no code of it."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest
from command_line import CommandLine
from http_server import serving

from sparsefleet.core.schema import Schema

OWN = Path(__file__).parents[1] / "models" / "my_model.py"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "settings"), [("MyNet", ("size=3", "widths=8,4")), ("ByHand", ("size=3",))])
def test_a_model_of_ones_own_is_served(
    shell: CommandLine, tmp_path: Path, name: str, settings: tuple[str, ...]
) -> None:
    (tmp_path / "mine").mkdir()
    shutil.copy(OWN, tmp_path / "mine" / "net.py")
    where = f"mine/net.py:{name}"
    made = shell.run("data", "synth", "--kind", "events", "--rows", 3000, "--out", "data")
    assert made.returncode == 0, made.stderr
    # One label: a model of one's own learns what its schema says.
    schema = Schema.load(tmp_path / "data" / "schema.toml")
    text = (tmp_path / "data" / "schema.toml").read_text()
    assert "more_labels" in text
    kept = [line for line in text.split("\n") if '"buy"' not in line]
    (tmp_path / "data" / "schema.toml").write_text("\n".join(kept))
    assert Schema.load(tmp_path / "data" / "schema.toml").labels == (schema.label,)
    sets = [word for setting in settings for word in ("--set", setting)]
    trained = shell.run(
        *("train", "--data", "data/train", "--save", "run", "--batch-size", 200, "--model", where, *sets)
    )
    assert trained.returncode == 0, trained.stderr
    shell.result("infer", "run", "--data", "data/test", "--model", where, "--output", "scores.csv")
    with (tmp_path / "scores.csv").open() as file:
        wanted = [float(line["probability"]) for line in csv.DictReader(file)]
    exported = shell.run("export", "run", "--out", "bundle", "--model", where)
    assert exported.returncode == 0, exported.stderr
    (tmp_path / "mine" / "net.py").rename(tmp_path / "mine" / "gone.py")
    files = sorted((tmp_path / "data" / "test").iterdir())
    rows = [row for file in files for row in csv.DictReader(file.open())]
    asked = [{field: row[field] or None for field in schema.fields} for row in rows[:20]]
    with serving(tmp_path / "bundle") as server:
        answer = server.post("/v1/predict", {"rows": asked}).json()
        assert answer["scores"] == pytest.approx(wanted[:20], abs=1e-5)
        assert set(answer) == {"version", "scores"}
        (tmp_path / "mine" / "gone.py").rename(tmp_path / "mine" / "net.py")
        verified = shell.run(
            *("verify", "--checkpoint", "run", "--bundle", "bundle", "--data", "data/test"),
            *("--url", server.url, "--model", where, "--json"),
        )
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert json.loads(verified.stdout.splitlines()[-1])["ok"]
