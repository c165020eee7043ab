"""`sparsefleet train` and `sparsefleet infer`, as a user types them."""

from __future__ import annotations

import csv
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from inspect import signature

import numpy as np
import pyarrow.parquet as pq
import pytest

from sparsefleet.checkpoint import Checkpoint, diff, latest
from sparsefleet.cli.app import COMMANDS
from sparsefleet.cli.presets import PRESETS
from sparsefleet.cli.train import train
from sparsefleet.datasets.synth import SynthSpec, synth
from sparsefleet.nn import precision
from sparsefleet.nn.precision import Half

SMALL = ("--hidden", "16,16", "--embedding-size", 4, "--batch-size", 100, "--learning-rate", 0.01)


def last_json(text: str) -> dict[str, object]:
    return json.loads(text.strip().splitlines()[-1])


@pytest.fixture(scope="session")
def model(clicks, tmp_path_factory):
    """A run's folder, and what the run printed."""
    from typer.testing import CliRunner

    from sparsefleet.cli.app import app

    folder = tmp_path_factory.mktemp("model") / "M"
    arguments = ["train", "--data", clicks / "train", "--test-data", clicks / "test", "--save", folder, "--json"]
    result = CliRunner().invoke(app, [str(a) for a in (*arguments, "--threads", 2, *SMALL)])
    assert result.exit_code == 0, result.output
    return folder, last_json(result.stdout)


def test_training_in_a_process_of_its_own_and_infer_agree(clicks, children, tmp_path):
    trained = children.run(
        *("train", "--data", clicks / "train", "--test-data", clicks / "test"),
        *("--threads", 2, "--save", tmp_path / "M", "--json", *SMALL),
    )
    assert trained.returncode == 0, trained.stderr
    assert len(trained.stdout.splitlines()) == 1  # everything for people goes to stderr
    said = last_json(trained.stdout)
    assert {"train_auc", "test_auc", "test_logloss", "samples_per_s", "rows"} <= said.keys()
    assert said["rows"] == 6000
    assert said["test_rows"] == 1500
    assert said["test_auc"] > 0.6
    assert said["samples_per_s"] > 0
    assert "best possible" in trained.stderr
    assert str(tmp_path / "M") in trained.stderr
    inferred = children.run("infer", tmp_path / "M", "--data", clicks / "test", "--json")
    assert inferred.returncode == 0, inferred.stderr
    values = last_json(inferred.stdout)
    assert values["auc"] == pytest.approx(said["test_auc"], abs=1e-6)
    assert values["logloss"] == pytest.approx(said["test_logloss"], abs=1e-6)
    assert values["rows"] == 1500


def test_the_run_leaves_json_lines(clicks, model):
    folder, said = model
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    kinds = [line["kind"] for line in lines]
    assert kinds[0] == "start"
    assert {"epoch", "test", "save"} <= set(kinds)
    (test,) = (line for line in lines if line["kind"] == "test")
    assert test["auc"] == said["test_auc"]
    (epoch,) = (line for line in lines if line["kind"] == "epoch")
    assert epoch["rows"] == 6000
    assert epoch["auc"] == said["train_auc"]


@pytest.mark.parametrize("which", ["folder", "checkpoint"])
def test_infer_takes_a_folder_or_one_checkpoint(cli, clicks, model, which):
    folder, said = model
    path = folder if which == "folder" else said["model"]
    result = cli("infer", path, "--data", clicks / "test", "--json")
    assert result.exit_code == 0, result.output
    values = last_json(result.stdout)
    assert values["auc"] == pytest.approx(said["test_auc"], abs=1e-6)
    assert values["model"] == said["model"]
    assert values["skipped"] == {}


def labels_of(clicks):
    return [int(line.split("\t", 1)[0]) for part in sorted((clicks / "test").iterdir()) for line in part.open()]


def test_predictions_in_the_order_of_the_input(cli, clicks, model, tmp_path):
    folder, said = model
    for name in ("p.csv", "p.parquet"):
        result = cli("infer", folder, "--data", clicks / "test", "--output", tmp_path / name, "--json")
        assert result.exit_code == 0, result.output
        assert last_json(result.stdout)["auc"] == pytest.approx(said["test_auc"], abs=1e-6)
    with (tmp_path / "p.csv").open() as file:
        header, *rows = csv.reader(file)
    assert header == ["label", "probability"]
    assert [int(label) for label, _ in rows] == labels_of(clicks)
    table = pq.read_table(tmp_path / "p.parquet")
    assert table.column_names == ["label", "probability"]
    assert table["label"].to_pylist() == labels_of(clicks)
    as_text = np.array([probability for _, probability in rows], np.float32)
    assert as_text.tobytes() == table["probability"].to_numpy().astype(np.float32).tobytes()
    assert as_text.min() > 0
    assert as_text.max() < 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p.csv", "p.parquet"]


def test_a_segment_that_no_row_has_is_told(cli, clicks, model):
    line = next(iter(sorted((clicks / "test").iterdir()))).open().readline().rstrip("\n").split("\t")
    there = line[14]  # of C1
    done = cli("infer", model[0], "--data", clicks / "test", "--segment", f"C1={there},nobody,[none]")
    assert done.exit_code == 0, done.output
    told = " ".join(done.stderr.split())
    assert told.count("--segment C1: no row has the value nobody, [none]") == 1
    assert "no row has" not in cli("infer", model[0], "--data", clicks / "test", "--segment", f"C1={there}").stderr


def test_rows_without_labels(cli, clicks, model, tmp_path):
    (tmp_path / "rows").mkdir()
    for part in (clicks / "test").iterdir():
        lines = [line.split("\t", 1)[1] for line in part.open()]
        (tmp_path / "rows" / part.name).write_text("".join(lines))
    folder, _ = model
    result = cli("infer", folder, "--data", tmp_path / "rows", "--unlabelled", "--output", tmp_path / "p.csv", "--json")
    assert result.exit_code == 0, result.output
    assert last_json(result.stdout)["auc"] is None
    cli("infer", folder, "--data", clicks / "test", "--output", tmp_path / "with.csv")
    with (tmp_path / "p.csv").open() as file, (tmp_path / "with.csv").open() as other:
        bare, labelled = list(csv.reader(file))[1:], list(csv.reader(other))[1:]
    assert {label for label, _ in bare} == {""}
    assert [probability for _, probability in bare] == [probability for _, probability in labelled]


@pytest.mark.parametrize("output", ["p.txt", "p"])
def test_an_output_of_no_known_kind(cli, clicks, model, tmp_path, output):
    result = cli("infer", model[0], "--data", clicks / "test", "--output", tmp_path / output)
    assert result.exit_code == 1
    assert "must end in .csv or .parquet" in result.stderr


def test_an_output_that_cannot_be_written(cli, clicks, model, tmp_path):
    result = cli("infer", model[0], "--data", clicks / "test", "--output", tmp_path / "none" / "p.csv")
    assert result.exit_code == 1
    assert f"cannot write predictions to {tmp_path / 'none' / 'p.csv'}: No such file" in result.stderr
    (tmp_path / "file").write_text("")
    result = cli("infer", model[0], "--data", clicks / "test", "--output", tmp_path / "file" / "p.csv")
    assert result.exit_code == 1
    assert f"cannot write predictions to {tmp_path / 'file' / 'p.csv'}: Not a directory" in result.stderr


@pytest.mark.parametrize("reader", ["queue", "memory", "pyreader", "feeder"])
def test_every_reader_resumes_to_the_same_bits(cli, clicks, tmp_path, reader):
    arguments = ("train", "--data", clicks / "train", "--reader", reader, "--threads", 1, "--epochs", 2, "--keep", 9)
    arguments += ("--shuffle",) if reader == "memory" else ()
    whole = cli(*arguments, *SMALL, "--save", tmp_path / "A", "--save-every", 45, "--json")
    assert whole.exit_code == 0, whole.output
    shutil.copytree(tmp_path / "A" / "step-00000090", tmp_path / "B" / "step-00000090")
    resumed = cli(*arguments, *SMALL, "--save", tmp_path / "B", "--resume", tmp_path / "B", "--json")
    assert resumed.exit_code == 0, resumed.output
    assert diff(str(tmp_path / "A"), str(tmp_path / "B"))["same"]
    said, again = last_json(whole.stdout), last_json(resumed.stdout)
    assert said["train_auc"] == again["train_auc"]
    assert (said["rows"], again["rows"]) == (12000, 3000)
    assert said["steps"] == again["steps"] == 120


def test_a_run_that_is_done_says_so_when_resumed(cli, clicks, model):
    folder, said = model
    arguments = ("train", "--data", clicks / "train", "--test-data", clicks / "test", "--resume", folder, *SMALL)
    again = cli(*arguments, "--json")
    assert again.exit_code == 0, again.output
    assert (
        f"nothing left to train of {said['model']}: its epoch was done before; --epochs 2 goes on"
        in again.stderr.replace("\n", "")
    )
    assert last_json(again.stdout)["test_auc"] == said["test_auc"]
    more = cli(*arguments, "--epochs", 2)
    assert more.exit_code == 0, more.output
    assert "nothing left" not in more.stderr


@pytest.fixture(scope="session")
def more_clicks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("more") / "data"
    synth(folder, SynthSpec(rows=20000, test_rows=3000, parts=2, seed=2))
    return folder


@pytest.mark.parametrize(
    ("optimizer", "rate"),
    [("sgd", 0.003), ("adagrad", 0.03), ("rowwise_adagrad", 0.05), ("adam", 0.005), ("ftrl", 0.05)],
)
def test_every_optimizer_learns(cli, more_clicks, optimizer, rate):
    result = cli(
        *("train", "--data", more_clicks / "train", "--test-data", more_clicks / "test", "--optimizer", optimizer),
        *("--hidden", "16,16", "--embedding-size", 4, "--batch-size", 50, "--learning-rate", rate, "--json"),
    )
    assert result.exit_code == 0, result.output
    assert last_json(result.stdout)["test_auc"] > 0.6


def test_decay_and_warmup_and_presets(cli, clicks):
    base = ("train", "--data", clicks / "train", "--test-data", clicks / "test", "--json", "--threads", 1, *SMALL)
    plain = last_json(cli(*base).stdout)
    for more in (
        ("--lr-decay", 0.5, "--lr-decay-steps", 10),
        ("--warmup-steps", 30),
        ("--preset", "paddle"),
        ("--l2", 1e-3),
        ("--exact",),
        ("--clip-norm", 0.01),
        ("--init-range", 0.5),
        ("--sparse-feature-dim", 0),
        ("--sparse-feature-dim", 1000),
        ("--seed", 5),
    ):
        result = cli(*base, *more)
        assert result.exit_code == 0, result.output
        said = last_json(result.stdout)
        assert said["test_logloss"] != plain["test_logloss"], more  # the option does something
        assert 0.4 < said["test_auc"] < 1


@pytest.mark.parametrize("gains", [True, False])
def test_bf16(cli, clicks, monkeypatch, caplog, gains):
    """Where the processor gains by it, it changes the arithmetic; elsewhere it says that it does not."""
    note = None if gains else "bf16: this processor gains nothing by it"
    monkeypatch.setattr(precision, "decide", lambda *_: Half(gains, False, note))
    precision.this_machine.cache_clear()
    base = ("train", "--data", clicks / "train", "--test-data", clicks / "test", "--json", "--threads", 1, *SMALL)
    try:
        plain, half = cli(*base), cli(*base, "--precision", "bf16")
    finally:
        precision.this_machine.cache_clear()
    assert half.exit_code == 0, half.output
    assert [record.message for record in caplog.records] == ([] if gains else [note])
    same = last_json(half.stdout)["test_logloss"] == last_json(plain.stdout)["test_logloss"]
    assert same == (not gains)
    assert 0.4 < last_json(half.stdout)["test_auc"] < 1


def test_the_same_seed_gives_the_same_model_in_another_process(cli, clicks, children, tmp_path):
    arguments = ("train", "--data", clicks / "train", "--threads", 1, "--seed", 7, *SMALL)
    assert cli(*arguments, "--save", tmp_path / "A").exit_code == 0
    done = children.run(*arguments, "--save", tmp_path / "B", env={"PYTHONHASHSEED": "2"})
    assert done.returncode == 0, done.stderr
    assert diff(str(tmp_path / "A"), str(tmp_path / "B"))["same"]


def test_tensorboard(cli, clicks, tmp_path):
    pytest.importorskip("tensorboard")
    base = ("train", "--data", clicks / "train", "--test-data", clicks / "test", *SMALL)
    result = cli(*base, "--tensorboard", tmp_path / "board")
    assert result.exit_code == 0, result.output
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "board"))
    events.Reload()
    assert {"train/auc", "train/loss", "test/auc", "test/logloss"} <= set(events.Tags()["scalars"])


def test_where_the_time_went(cli, clicks):
    result = cli("train", "--data", clicks / "train", "--profile", "--json", *SMALL)
    assert result.exit_code == 0, result.output
    said = last_json(result.stdout)
    profile = said["profile"]
    assert list(profile["parts"]) == ["reading", "rows", "forward", "backward", "push", "waiting", "other"]
    assert profile["steps"] == said["steps"]
    assert sum(part["percent"] for part in profile["parts"].values()) == pytest.approx(100)
    assert sum(part["ms"] for part in profile["parts"].values()) == pytest.approx(profile["ms_per_step"])
    for part in [*profile["parts"], "all"]:
        assert re.search(rf"^{part} +\d+\.\d{{3}} +\d+\.\d ", result.stderr, re.MULTILINE), part
    assert "profile" not in last_json(cli("train", "--data", clicks / "train", "--json", *SMALL).stdout)


def test_a_schema_file(cli, clicks, tmp_path):
    """The one beside the data is taken; a given one wins; the model keeps it."""
    shutil.copytree(clicks, tmp_path / "data")
    schema = json.loads((tmp_path / "data" / "schema.json").read_text())
    schema["sparse_feature_dim"] = 500
    (tmp_path / "data" / "schema.json").write_text(json.dumps(schema))
    result = cli("train", "--data", tmp_path / "data" / "train", "--save", tmp_path / "M", *SMALL)
    assert result.exit_code == 0, result.output
    shown = json.loads(cli("checkpoint", "show", tmp_path / "M", "--json").stdout)
    assert shown["tables"][0]["rows"] <= 500
    result = cli(
        *("train", "--data", tmp_path / "data" / "train", "--schema", clicks / "schema.json", "--save", tmp_path / "N"),
        *SMALL,
    )
    assert result.exit_code == 0, result.output
    shown = json.loads(cli("checkpoint", "show", tmp_path / "N", "--json").stdout)
    assert shown["tables"][0]["rows"] > 500
    assert cli("infer", tmp_path / "M", "--data", clicks / "test").exit_code == 0


def test_brackets_in_paths_are_no_markup(cli, clicks, tmp_path):
    folder = tmp_path / "[bold]a[/x]"
    shutil.copytree(clicks / "test", folder)
    result = cli("train", "--data", folder, "--save", tmp_path / "[red]M", *SMALL)
    assert result.exit_code == 0, result.output
    assert "[red]M" in result.stderr
    result = cli("infer", tmp_path / "[red]M", "--data", folder, "--output", tmp_path / "[x].csv")
    assert result.exit_code == 0, result.output
    assert "[bold]a[/x]" in result.stderr


HELP = {
    ("train",): "--data --test-data --schema --reader --format --shuffle --pipe-command --on-bad-row --preset "
    "--embedding-size --hidden --init-range --sparse-feature-dim --epochs --batch-size --threads --optimizer "
    "--learning-rate --lr-decay --lr-decay-steps --l2 --exact --clip-norm --warmup-steps --precision --seed --save "
    "--save-every --keep "
    "--resume --json --log-dir --profile --tensorboard",
    ("infer",): "--data --output --format --pipe-command --batch-size --threads --on-bad-row --unlabelled --precision "
    "--json",
    ("data", "synth"): "--rows --test-rows --parts --out --seed",
    ("data", "prepare"): "--out",
    ("data", "download"): "--url --out",
    ("data", "show"): "--format",
    ("checkpoint", "show"): "--json",
    ("checkpoint", "verify"): "--json",
    ("checkpoint", "diff"): "--json",
    ("export",): "--out --rows --min-seen --outputs --test-data --train-data --require --same-inputs --json",
    ("serve",): "--port --sparse --fallback --queue-rows --deadline --token --tls-cert --canary --shadow --allow-extra",
    ("publish",): "--thin --rollback --prefix",
    ("verify",): "--checkpoint --bundle --data --url --redis --tolerance --json",
    ("replay",): "--url --concurrency --tolerance --json",
    (): "train infer data checkpoint --version",
}


def test_the_preset_of_bars_is_what_bars_has_published():
    """All of it is an option of the command, so that none is left out in silence."""
    published = {
        "model_name": "dnn",
        "settings": ["dropout=0.2"],
        "embedding_size": 16,
        "hidden": "1000,1000,1000,1000,1000",
        "init_range": pytest.approx(3**0.5 * 1e-4, rel=0.02),  # uniform, as spread as a normal of 1e-4
        "batch_size": 10_000,
        "optimizer": "adam",
        "learning_rate": 1e-3,
        "l2": 1e-5,
        "exact": True,
        "clip_norm": 10.0,
        "threads": 1,
        "plateau_factor": 0.1,
        "plateau_patience": 1,
        "patience": 2,
        "epochs": 100,
    }
    assert PRESETS["bars-criteo-x4"].options == published
    assert {*published} <= {*signature(train).parameters}


def test_a_preset_is_a_set_of_defaults(cli, clicks, tmp_path):
    """What stands on the command line comes before it; what a checkpoint says of its rules shows the rest."""
    small = ("--hidden", "16,16", "--embedding-size", 4, "--batch-size", 100)
    given = ("--data", clicks / "test", "--epochs", 1, "--save", tmp_path / "M", *small)
    result = cli("train", "--preset", "bars-criteo-x4", *given)
    assert result.exit_code == 0, result.output
    manifest = Checkpoint.open(latest(str(tmp_path / "M"))).manifest
    (table,), (block,) = manifest.tables, manifest.blocks
    assert table.dim == 4
    assert table.rule["exact"] is True
    assert table.rule["weight_decay"] == pytest.approx(1e-5 * 100)  # of the sum of 100 losses
    assert table.rule["epsilon"] == block.rule["epsilon"] == pytest.approx(1e-8 * 100)
    assert table.rule["learning_rate"] == block.rule["learning_rate"] == 1e-3
    assert block.rule["weight_decay"] == 0
    assert "bars-criteo-x4: DNN on Criteo_x4" in re.sub(r"[│\s]+", " ", cli("train", "--help").stdout)


@pytest.mark.parametrize("command", HELP, ids=" ".join)
def test_help_names_every_option(cli, command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    result = cli(*command, "--help")
    assert result.exit_code == 0
    text = re.sub(r"\x1b\[[0-9;]*m", "", result.stdout)
    for option in HELP[command].split():
        assert option in text, option


def test_version(cli):
    from sparsefleet import __version__

    assert cli("--version").stdout.strip() == __version__


@pytest.mark.parametrize(
    ("words", "status", "shown"),
    [
        (["--version"], 0, "0."),
        (["--help"], 0, "Score rows with a saved model"),
        (["trian"], 2, "Did you mean 'train'?"),
        (["train", "--help"], 0, "--learning-rate"),
        (["train", "--no-such"], 2, "No such option: --no-such"),
        (["train", "--data", "x", "--mode", "geoo"], 1, "mode='geoo' is not a mode"),
        (["checkpoint", "show", "--no-such"], 2, "No such option: --no-such"),
    ],
)
def test_who_only_asks_does_not_wait_for_torch(words: list[str], status: int, shown: str) -> None:
    code = "import sys; sys.modules['torch'] = None; from sparsefleet.cli import main; main()"
    environment = {"PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=60, env=environment
    )
    assert (done.returncode, done.stderr.count("Traceback")) == (status, 0), done.stderr
    assert shown in done.stdout + done.stderr


def test_the_list_of_commands_has_their_own_words() -> None:
    for command, text in COMMANDS.items():
        name = command.replace("-", "_")
        module = importlib.import_module(f"sparsefleet.cli.{name}")
        own = module.app.info.help if hasattr(module, "app") else getattr(module, name).__doc__
        assert own.startswith(text.rstrip("."))
