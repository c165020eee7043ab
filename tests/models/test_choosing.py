"""`--model` and `--set`: names of ours, classes of the user's own, and through which commands they go."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from small_models import SCHEMA, SETTINGS

from sparsefleet.checkpoint import Checkpoint, latest
from sparsefleet.core.errors import ConfigError
from sparsefleet.core.schema import Schema, Slot
from sparsefleet.models import CTRDNN, SHELF, DeepFM, choosing
from sparsefleet.models.settings import described
from sparsefleet.scoring import saved_model

OWN = Path(__file__).with_name("my_model.py")
SMALL = ("--batch-size", 100, "--learning-rate", 0.01, "--threads", 1)


def last_json(text):
    return json.loads(text.strip().splitlines()[-1])


@pytest.mark.parametrize("name", SHELF)
def test_every_setting_is_explained_and_makes_a_model_from_text(name):
    settings = described(SHELF[name])
    assert all(entry.help for entry in settings)
    assert {entry.name for entry in settings} >= SETTINGS[name].keys()
    text = {key: ",".join(map(str, v)) if isinstance(v, tuple) else str(v) for key, v in SETTINGS[name].items()}
    if name == "esmm":
        with pytest.raises(
            ConfigError, match="ESMM learns two labels, the click and what follows on it; the schema has"
        ):
            choosing.make(name, SCHEMA, text)
        return
    model = choosing.make(name, SCHEMA, text)
    if name != "ctr_dnn":
        assert {key: getattr(model.settings, key) for key in text} == SETTINGS[name]


@pytest.mark.parametrize("name", ["mmoe", "shared_bottom", "dnn"])
def test_a_model_for_several_labels_with_one_is_trained_and_told(cli, clicks, name):
    done = cli("train", "--data", clicks / "test", "--model", name, "--embedding-size", 4, "--set", "hidden=8", *SMALL)
    assert done.exit_code == 0, done.output
    told = " ".join(done.stderr.split()).count(f"{name} is made for several labels, and the schema has one, label: ")
    assert told == (name != "dnn")


@pytest.mark.parametrize("spelling", ["deepfm", "DeepFM", "deep-fm"])
def test_spellings(spelling):
    assert choosing.choose(spelling) is DeepFM


@pytest.mark.parametrize(
    ("model", "sets", "options", "said"),
    [
        ("deepfn", [], {}, "--model deepfn: there is no such model; do you mean deepfm"),
        ("deepfm", ["cin=3"], {}, "DeepFM has no setting 'cin'; it has embedding_size, init_range, hidden"),
        ("deepfm", ["hidden=a,b"], {}, "hidden=a,b: give whole numbers, separated by commas"),
        ("deepfm", ["hidden="], {}, "hidden= must be at least one width"),
        ("deepfm", ["dropout=1"], {}, "dropout=1.0 must be 0 or above and below 1"),
        ("deepfm", ["dropout"], {}, "--set dropout: give name=value"),
        ("deepfm", ["dropout=.1", "dropout=.2"], {}, "--set dropout=… is given twice"),
        ("deepfm", ["batch_norm=maybe"], {}, "batch_norm=maybe: give yes or no"),
        ("deepfm", ["hidden=3"], {"--hidden": (3,)}, "--hidden and --set hidden=… both are given"),
        ("lr", [], {"--hidden": (3,)}, "--hidden: lr has no such setting; `sparsefleet models lr` tells those it has"),
        ("dcnv2", ["structure=round"], {}, "structure='round' is not a choice; choose parallel or stacked"),
        ("din", [], {}, "DIN needs history slots and a target slot for each: --set history="),
        ("din", ["history=x", "target=item"], {}, "history=x: the schema's slots are user, item"),
        ("din", ["history=clicked", "target=clicked"], {}, "target=clicked is a history too"),
        ("nowhere.py:Net", [], {}, "there is no file nowhere.py"),
        ("no.such.package:Net", [], {}, "importing it failed: ModuleNotFoundError"),
        (f"{OWN}:Yours", [], {}, "has no class 'Yours'; its models are MyNet, ByHand, Lone"),
        (f"{OWN}:Lone", [], {}, "Lone must be a class derived from sparsefleet.models.SchemaModel"),
        (f"{OWN}:MyNet", ["height=3"], {}, "MyNet has no setting 'height'; it has size, widths"),
    ],
)
def test_what_is_refused(model, sets, options, said):
    with pytest.raises(ConfigError) as error:
        choosing.make(model, SCHEMA, choosing.parse_sets(sets), options)
    assert said in str(error.value)


def test_an_own_class_without_a_dataclass_takes_its_settings_by_annotations():
    assert choosing.make(f"{OWN}:ByHand", SCHEMA, {"size": "3"}).size == 3


def test_a_history_that_shares_no_rows_with_its_target_is_told(caplog):
    sets = {"history": "clicked", "target": "item", "hidden": "4"}
    choosing.make("din", SCHEMA, sets)
    assert "slots clicked and item hash the same value to different keys" in caplog.text
    caplog.clear()
    shared = Schema(dense=(), slots=(Slot("item", "item"), Slot("clicked", "item")))
    choosing.make("din", shared, sets)
    assert not caplog.text


def test_the_list_of_models(cli):
    listed = cli("models")
    assert listed.exit_code == 0
    assert all(f"\n{name}  " in f"\n{listed.stdout}" for name in SHELF)
    told = last_json(cli("models", "dcnv2", "--json").stdout)
    assert told["dcnv2"]["reference"].startswith("Wang et al.")
    assert "rank" in {entry["name"] for entry in told["dcnv2"]["settings"]}
    own = cli("models", f"{OWN}:MyNet")
    assert "Widths of the layers." in own.stdout


def test_a_model_of_the_shelf_from_the_command_line(cli, clicks, tmp_path):
    run = ("--data", clicks / "test", "--save", tmp_path / "M", *SMALL)
    trained = cli("train", *run, "--model", "deepfm", "--embedding-size", 3, "--set", "hidden=8", "--json")
    assert trained.exit_code == 0, trained.output
    saved = Checkpoint.open(latest(str(tmp_path / "M"))).manifest.model
    assert (saved["name"], saved["settings"]["embedding_size"], saved["settings"]["hidden"]) == ("DeepFM", 3, [8])
    assert type(saved_model(str(tmp_path / "M"))[0]) is DeepFM
    refused = cli("infer", tmp_path / "M", "--data", clicks / "test", "--model", "lr")
    assert "the checkpoint holds DeepFM, a model of ours; leave --model out" in " ".join(refused.output.split())
    refused = cli("train", *run, "--model", "lr", "--preset", "paddle")
    assert "--preset paddle is of ctr_dnn; leave it out with --model lr" in " ".join(refused.output.split())


def test_presets_are_as_before(cli, clicks, tmp_path):
    from sparsefleet.cli.train_parts import network

    model = network(SCHEMA, "paddle", None, "4", None)
    assert isinstance(model, CTRDNN)
    assert model.config.initializer.to_list() == ["Uniform", -1.0, 1.0] or "1.0" in str(model.config.initializer)


def test_a_model_of_ones_own_through_every_command(cli, clicks, tmp_path):
    own = tmp_path / "elsewhere" / "net.py"
    own.parent.mkdir()
    shutil.copy(OWN, own)
    where, run, bundle = f"{own}:MyNet", tmp_path / "M", tmp_path / "B"
    trained = cli(
        *("train", "--data", clicks / "test", "--save", run, *SMALL),
        *("--model", where, "--set", "size=3", "--set", "widths=8,4"),
    )
    assert trained.exit_code == 0, trained.output
    saved = Checkpoint.open(latest(str(run))).manifest.model
    assert (saved["name"], saved["class"], saved["settings"]) == ("custom", "net.MyNet", {"size": 3, "widths": [8, 4]})
    untold = cli("infer", run, "--data", clicks / "test")
    assert "a model of your own (net.MyNet), and no code" in " ".join(untold.output.split())
    scored = cli("infer", run, "--data", clicks / "test", "--model", where, "--json")
    assert last_json(scored.stdout)["auc"] > 0.5
    shuffled = cli("importance", run, "--data", clicks / "test", "--model", where, "--column", "C1", "--json")
    assert shuffled.exit_code == 0, shuffled.output
    assert last_json(shuffled.stdout)["auc"] == last_json(scored.stdout)["auc"]
    exported = cli("export", run, "--out", bundle, "--model", where)
    assert exported.exit_code == 0, exported.output
    same = cli(
        *("verify", "--checkpoint", run, "--bundle", bundle, "--data", clicks / "test"),
        *("--model", where, "--rows", 50, "--json"),
    )
    assert same.exit_code == 0, same.output
    assert last_json(same.stdout)["ok"]


@pytest.mark.slow
def test_a_model_of_ones_own_in_many_processes(children, clicks, tmp_path):
    where = f"{OWN}:MyNet"
    trained = children.run(
        *("train", "--data", clicks / "train", "--test-data", clicks / "test", "--save", tmp_path / "M", "--json"),
        *("--servers", 2, "--workers", 2, "--mode", "sync", "--batch-size", 100, "--learning-rate", 0.01),
        *("--model", where, "--set", "size=3", "--log-dir", tmp_path / "log"),
    )
    assert trained.returncode == 0, trained.stderr
    said = last_json(trained.stdout)
    assert (said["rows"], said["trainers"]) == (6000, 2)
    scored = children.run(
        *("infer", tmp_path / "M", "--data", clicks / "test", "--model", where, "--workers", 2, "--json"),
        *("--output", tmp_path / "p.csv"),
    )
    assert scored.returncode == 0, scored.stderr
    assert last_json(scored.stdout)["auc"] == said["test_auc"]


def test_a_ready_application_with_any_model(clicks):
    from sparsefleet.applications import ClickModel
    from sparsefleet.optim import Adam
    from sparsefleet.train import Trainer

    job = ClickModel("fm", clicks / "test", embedding_size=3)
    result = Trainer(Adam(1e-2)).fit(job.model, job.load(clicks / "test"))
    assert result.rows == 1500
