"""From a CSV with a header to a served score, by commands alone; and the same table in other formats."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import SMALL, CommandLine
from http_server import serving

from sparsefleet.core.schema import Schema

COLUMNS = ("id", "ts", "site", "age", "price", "tags", "click")


def write_table(file: Path, rows: int) -> list[dict[str, object]]:
    made: list[dict[str, object]] = []
    for i in range(rows):
        site, age = f'shop "{i % 13}", Ltd', 20 + i % 9
        made.append(
            {
                "id": f"r{i:06d}",
                "ts": f"2024-05-{1 + i % 28:02d} {i % 24:02d}:15:00",
                "site": site,
                "age": age,
                "price": round(0.37 * (i % 101) + (500 if i % 50 == 0 else 0), 2),
                "tags": "|".join(f"t{(i * k) % 7}" for k in range(1, 2 + i % 3)),
                "click": int((i % 13) % 3 == 0),
            }
        )
    with file.open("w", newline="") as out:
        writer = csv.DictWriter(out, COLUMNS)
        writer.writeheader()
        writer.writerows(made)
    return made


@pytest.mark.slow
def test_from_csv_to_a_served_score(shell: CommandLine, tmp_path: Path) -> None:
    rows = write_table(tmp_path / "f.csv", 3000)
    done = shell.run("data", "inspect", "f.csv", "--out", "schema.toml")
    assert done.returncode == 0, done.stderr
    assert "left out: an identifier" in done.stdout
    schema = Schema.load(tmp_path / "schema.toml")
    assert schema.label == "click"
    assert schema.dense_names == ("price",)
    assert [slot.name for slot in schema.slots] == ["hour", "weekday", "site", "age", "tags"]
    assert [slot.split for slot in schema.slots] == [None, None, None, None, "|"]

    split = shell.run("data", "prepare", "f.csv", "--schema", "schema.toml", "--out", "data", "--parts", "2")
    assert split.returncode == 0, split.stderr
    trained = shell.result("train", "--data", "data/train", "--save", "model", "--epochs", "2", *SMALL)
    assert trained
    score = shell.result("infer", "model", "--data", "data/test", "--output", "scores.csv")
    assert score["auc"] > 0.6
    exported = shell.run("export", "model", "--out", "bundle")
    assert exported.returncode == 0, exported.stderr

    (tmp_path / "few.csv").write_text("\n".join((tmp_path / "f.csv").read_text().split("\n")[:6]) + "\n")
    shell.result("infer", "model", "--data", "few.csv", "--output", "few-scores.csv")
    wanted = [float(line["probability"]) for line in csv.DictReader((tmp_path / "few-scores.csv").open())]
    with serving(tmp_path / "bundle") as server:
        # A whole number and its text are one value.
        for convert in (lambda value: value, str):
            asked = [{name: convert(row[name]) for name in schema.fields} for row in rows[:5]]
            answer = server.post("/v1/predict", {"rows": asked})
            assert answer.status_code == 200, answer.text
            assert answer.json()["scores"] == pytest.approx(wanted, abs=1e-5)
        wrong = server.post("/v1/predict", {"rows": [{**asked[0], "price": "cheap"}]})
        assert wrong.status_code == 400
        assert "price" in wrong.text
        verified = shell.run(
            "verify", "--checkpoint", "model", "--bundle", "bundle", "--data", "data/test", "--url", server.url
        )
    assert verified.returncode == 0, verified.stdout + verified.stderr

    # The same rows as JSON lines and Parquet score the same.
    few = rows[:5]
    (tmp_path / "few.jsonl").write_text("".join(json.dumps(row) + "\n" for row in few))
    pq.write_table(pa.Table.from_pylist(few), tmp_path / "few.parquet")
    for name in ("few.jsonl", "few.parquet"):
        shell.result("infer", "model", "--data", name, "--output", "again.csv")
        again = [float(line["probability"]) for line in csv.DictReader((tmp_path / "again.csv").open())]
        assert again == pytest.approx(wanted, abs=1e-6)


@pytest.mark.slow
def test_from_multislot_to_a_served_score(shell: CommandLine, tmp_path: Path) -> None:
    """Lines of a data generator, label first, two slots of numbers: nobody has said what they hold."""
    lines, asked = [], []
    for i in range(2000):
        keys = [900 + i % 13, *([800 + i % 5] if i % 2 else [])]
        numbers = [round(i % 101 / 101, 4), round(-(i % 7) / 7, 4)]
        lines.append(f"1 {int(i % 13 % 3 == 0)} 2 {numbers[0]} {numbers[1]} 1 {0.25 * (i % 4)} ")
        lines[-1] += f"1 {10**18 + i % 11} {len(keys)} {' '.join(map(str, keys))}"
        row = {"slot2_1": numbers[0], "slot2_2": numbers[1], "slot3": 0.25 * (i % 4)}
        asked.append({**row, "slot4": 10**18 + i % 11, "slot5": keys})
    (tmp_path / "lines.txt").write_text("\n".join(lines) + "\n")
    done = shell.run("data", "inspect", "lines.txt", "--out", "schema.toml")
    assert done.returncode == 0, done.stderr
    assert "5 slots without names: slot1 is the first of a line" in " ".join(done.stdout.split())
    trained = shell.run(
        *("train", "--data", "lines.txt", "--schema", "schema.toml", "--save", "model", "--epochs", "8"), *SMALL
    )
    assert trained.returncode == 0, trained.stderr
    score = shell.result("infer", "model", "--data", "lines.txt", "--output", "scores.csv")
    assert score["auc"] > 0.9
    exported = shell.run("export", "model", "--out", "bundle")
    assert exported.returncode == 0, exported.stderr
    wanted = [float(line["probability"]) for line in csv.DictReader((tmp_path / "scores.csv").open())]
    with serving(tmp_path / "bundle") as server:
        answer = server.post("/v1/predict", {"rows": asked[:50]})
        assert answer.status_code == 200, answer.text
        assert answer.json()["scores"] == pytest.approx(wanted[:50], abs=1e-5)
        wrong = server.post("/v1/predict", {"rows": [{**asked[0], "slot4": "text"}]})
        assert wrong.status_code == 400
        assert "slot4" in wrong.text


MEASURED = """format = "sparsefleet-schema"
version = 2
label = "click"
sparse_feature_dim = 0
dense = [
  { name = "price", measure = "min-max", function = "log1p" },  # in euros
  { name = "age", measure = "standard" },
]
slots = [
  { name = "site" },
  { name = "price_range", column = "price", quantiles = 10 },
]
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_measured_settings_are_numbers_typed_by_hand(shell: CommandLine, tmp_path: Path) -> None:
    """Prepared, trained, scored, exported, verified and served: the same to the last digit."""
    write_table(tmp_path / "f.csv", 3000)
    (tmp_path / "schema.toml").write_text(MEASURED)
    early = shell.run("train", "--data", "f.csv", "--schema", "schema.toml", "--save", "early", *SMALL)
    assert early.returncode != 0
    assert "slot 'price_range': quantiles = 10 is not measured yet: run `sparsefleet data prepare" in " ".join(
        early.stderr.split()
    )
    split = shell.run("data", "prepare", "f.csv", "--schema", "schema.toml", "--out", "data", "--parts", "2")
    assert split.returncode == 0, split.stderr
    assert "buckets        10 of price_range, bounds " in split.stdout
    assert "normalisation  age: (x - " in split.stdout
    measured = Schema.load(tmp_path / "data" / "schema.toml")
    assert "# in euros" in (tmp_path / "data" / "schema.toml").read_text()
    typed = json.loads(json.dumps(measured.to_dict()))
    for part in (*typed["dense"], *typed["slots"]):
        part.pop("measure", None)
        part.pop("quantiles", None)
    (tmp_path / "typed.json").write_text(json.dumps(typed))
    assert Schema.load(tmp_path / "typed.json").to_dict() != measured.to_dict()

    scores = {}
    for name, schema in (("model", "data/schema.toml"), ("typed", "typed.json")):
        # One thread: the same bits.
        trained = shell.run(
            *("train", "--data", "data/train", "--schema", schema, "--save", name, "--threads", "1", *SMALL)
        )
        assert trained.returncode == 0, trained.stderr
        shell.result("infer", name, "--data", "data/test", "--output", f"{name}.csv")
        scores[name] = (tmp_path / f"{name}.csv").read_text()
    assert scores["model"] == scores["typed"]
    exported = shell.run("export", "model", "--out", "bundle")
    assert exported.returncode == 0, exported.stderr
    wanted = [float(line["probability"]) for line in csv.DictReader((tmp_path / "typed.csv").open())]
    rows = list(csv.DictReader(next((tmp_path / "data" / "test").iterdir()).open()))
    with serving(tmp_path / "bundle") as server:
        asked = [{name: row[name] for name in measured.fields} for row in rows]
        answer = server.post("/v1/predict", {"rows": asked})
        assert answer.status_code == 200, answer.text
        assert answer.json()["scores"] == pytest.approx(wanted, abs=1e-5)
        verified = shell.run(
            "verify", "--checkpoint", "model", "--bundle", "bundle", "--data", "data/test", "--url", server.url
        )
    assert verified.returncode == 0, verified.stdout + verified.stderr
