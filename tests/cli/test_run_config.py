"""`sparsefleet train --config run.toml`, and the file that a run leaves."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
import typer
from command_line import CommandLine
from typer.testing import CliRunner

from sparsefleet.checkpoint import Checkpoint, diff, latest
from sparsefleet.cli.run_config import config_text, read_config
from sparsefleet.cli.train_roles import handed_on

SMALL = """
hidden = [16, 16]
embedding_size = 4
batch-size = 100
learning_rate = 0.01
threads = 1
"""


def said(result) -> str:
    return " ".join(result.stderr.split())


def test_a_run_from_a_file_is_the_run_from_options_and_repeats_itself(cli, clicks, tmp_path, monkeypatch):
    monkeypatch.chdir(clicks)
    (tmp_path / "mine.toml").write_text(f'data = "train"\nsave = "{tmp_path}/file"\nepochs = 5\n{SMALL}')
    done = cli("train", "--config", tmp_path / "mine.toml", "--epochs", 1, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["steps"] == 60, "the command line counts before the file"
    options = ("--hidden", "16,16", "--embedding-size", 4, "--batch-size", 100, "--learning-rate", 0.01, "--threads", 1)
    assert cli("train", "--data", "train", *options, "--save", tmp_path / "options").exit_code == 0
    assert diff(str(latest(tmp_path / "file")), str(latest(tmp_path / "options")))["same"]

    left = tomllib.loads((tmp_path / "file/run.toml").read_text())
    assert left == {
        "data": str(clicks / "train"),
        "epochs": 1,
        "hidden": "16,16",
        "embedding-size": 4,
        "batch-size": 100,
        "learning-rate": 0.01,
        "threads": 1,
        "save": str(tmp_path / "file"),
    }
    assert '# optimizer = "adam"' in (tmp_path / "file/run.toml").read_text(), "what is so by default, for people"
    monkeypatch.chdir(tmp_path)
    again = cli("train", "--config", "file/run.toml", "--save", "again")
    assert again.exit_code == 0, again.output
    assert diff(str(latest(tmp_path / "file")), str(latest(tmp_path / "again")))["same"]
    assert Checkpoint.open(latest(tmp_path / "again")).manifest.step == 60


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epoch = 3", "epoch is no option of this command; did you mean epochs?"),
        ("json = true", "json belongs on the command line"),
        ("epochs = true", "epochs = true: it takes a value, not true or false"),
        ("shuffle = 1", "shuffle = 1: it takes true or false"),
        ("batch-size = 5\nbatch_size = 6", "batch_size stands there twice"),
        ("[training]\nepochs = 3", "there is no section [training]; the only one is [model]"),
        ("epochs = ", "is not TOML"),
        ("save = 2020-01-01", "a date is no value of an option"),
        ("patience = 2", "--patience goes by validation data"),
        ('mode = "sync"\nk-steps = 3', "--k-steps does nothing in one process"),
    ],
)
def test_what_a_file_may_not_say(cli, clicks, tmp_path, text, message):
    (tmp_path / "run.toml").write_text(f'data = "{clicks}/train"\n{text}')
    done = cli("train", "--config", tmp_path / "run.toml")
    assert done.exit_code == 1
    assert message in said(done)


def test_a_file_that_is_not_there(cli, tmp_path):
    done = cli("train", "--config", tmp_path / "none.toml")
    assert done.exit_code == 1
    assert "none.toml cannot be read: No such file" in said(done)


def read(context: typer.Context, value: str) -> object:
    return read_config(context, Path(value))


def command_with_models(heard: list) -> typer.Typer:
    parser = typer.Typer()

    @parser.command()
    def command(
        context: typer.Context,
        config: str = typer.Option(None, is_eager=True, callback=read),
        model_name: str = typer.Option("ctr_dnn", "--model"),
        settings: list[str] = typer.Option([], "--set"),  # noqa: B008
        hidden: str = "",
        shuffle: bool = False,
        servers: int = 0,
    ) -> None:
        heard.append((model_name, list(settings), hidden, shuffle, handed_on(context), config_text(context)))

    return parser


def test_the_section_of_the_model_goes_to_model_and_set(tmp_path):
    """As a command with --model and --set has them, whichever settings its models know."""
    file = tmp_path / "run.toml"
    file.write_text(
        'shuffle = false\nservers = 2\n[model]\nname = "deepfm"\nhidden = [8, 4]\ndropout = 0.2\nwide = true\n'
    )
    heard: list = []
    done = CliRunner().invoke(command_with_models(heard), ["--config", str(file)])
    assert done.exit_code == 0, done.output
    name, settings, hidden, shuffle, handed, text = heard[0]
    assert (name, settings, hidden, shuffle) == ("deepfm", ["dropout=0.2", "wide=true"], "8,4", False)
    assert handed == ["--model=deepfm", "--set=dropout=0.2", "--set=wide=true", "--hidden=8,4", "--no-shuffle"]
    assert tomllib.loads(text)["set"] == ["dropout=0.2", "wide=true"]
    # What the file has left repeats it.
    file.write_text(text)
    assert CliRunner().invoke(command_with_models(heard), ["--config", str(file)]).exit_code == 0
    assert heard[1] == heard[0]


def test_train_makes_the_model_of_the_section(cli, clicks, tmp_path):
    settings = (
        f'data = "{clicks}/train"\nsave = "{tmp_path}/file"\nbatch-size = 100\nlearning-rate = 0.01\nthreads = 1\n'
    )
    model = '[model]\nname = "deepfm"\nhidden = [8, 4]\nembedding_size = 4\ndropout = 0.2\n'
    (tmp_path / "run.toml").write_text(settings + model)
    done = cli("train", "--config", tmp_path / "run.toml")
    assert done.exit_code == 0, done.output
    made = Checkpoint.open(latest(tmp_path / "file")).manifest.model
    assert made["name"] == "DeepFM"
    assert made["settings"]["hidden"] == [8, 4]
    assert made["settings"]["dropout"] == 0.2
    words = ("--model", "deepfm", "--hidden", "8,4", "--embedding-size", 4, "--set", "dropout=0.2")
    words = (*words, "--batch-size", 100, "--learning-rate", 0.01, "--threads", 1, "--save", tmp_path / "options")
    assert cli("train", "--data", clicks / "train", *words).exit_code == 0
    assert diff(str(latest(tmp_path / "file")), str(latest(tmp_path / "options")))["same"]


@pytest.mark.slow
def test_a_job_of_many_processes_from_a_file(shell: CommandLine, small_clicks) -> None:
    (shell.folder / "job.toml").write_text(
        f'data = "{small_clicks}/train"\nservers = 1\nworkers = 2\nmode = "sync"\nsave = "model"\n{SMALL}'
    )
    result = shell.result("train", "--config", "job.toml")
    assert (result["trainers"], result["rows"]) == (2, 2000)
    left = tomllib.loads((shell.folder / "model/run.toml").read_text())
    assert (left["servers"], left["workers"], left["mode"]) == (1, 2, "sync")
