"""A model trained on lines whose order set_use_var said: every command reads them in that order, or refuses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import sparsefleet as sf
from sparsefleet.checkpoint import Checkpoint, latest
from sparsefleet.core.errors import ConfigError
from sparsefleet.data import dataset_factory
from sparsefleet.train.given_data import differing_schemas

USER, AD, LABEL = "user", "ad", "label"
ORDERS = {
    "label first": [LABEL, ("numbers", 2), USER, AD],
    "dense last": [USER, AD, LABEL, ("numbers", 2)],
    "interleaved": [USER, ("price", 1), AD, LABEL],  # a whole number passes for a key
    "widths of 1": [("price", 1), ("age", 1), USER, AD, LABEL],
    "variables": [
        sf.fluid.layers.data(LABEL, dtype="int64"),
        sf.fluid.layers.data(AD, dtype="int64", lod_level=1),
        sf.fluid.layers.data("price", shape=[1], dtype="float32"),
        sf.fluid.layers.data(USER, dtype="int64", lod_level=1),
    ],
}
THROUGH = ("--pipe-command", "cat")
NETWORK = ("--hidden", "16", "--embedding-size", "4", "--batch-size", "50", "--learning-rate", "1e-2", "--threads", 1)
EPOCHS = 2


def names_of(order: list) -> list[str]:
    return [one if isinstance(one, str) else one[0] if isinstance(one, tuple) else one.name for one in order]


def write(folder: Path, order: list, rows: int, seed: int) -> Path:
    """A file of MultiSlot lines in this order; user 1 to 9 and price 1 to 9 say something, ad 1 to 9 says less."""
    random = np.random.default_rng(seed)
    lines = []
    for _ in range(rows):
        user, ad, price = random.integers(1, 10, 3)
        clicked = int(random.random() < 1 / (1 + np.exp(-(0.7 * (user - 5) - 0.4 * (price - 5)))))
        values = {USER: [user], AD: [ad, 20 + ad], LABEL: [clicked], "price": [price], "age": [0.5]}
        values |= {"numbers": [price, 0.5]}
        if "interleaved" in str(folder):
            values[AD] = [ad]
        lines.append(" ".join(f"{len(values[name])} {' '.join(map(str, values[name]))}" for name in names_of(order)))
    folder.mkdir(parents=True)
    (folder / "part-0").write_text("\n".join(lines) + "\n")
    return folder


def dataset(files: Path, order: list) -> sf.QueueDataset:
    made = sf.DatasetFactory().create_dataset("QueueDataset")
    made.set_use_var(order)
    made.set_pipe_command("cat")
    made.set_batch_size(50)
    made.set_filelist(sf.list_files(files))
    return made


class Trained:
    def __init__(self, folder: Path, order: list) -> None:
        self.order = order
        self.train, self.test = write(folder / "train", order, 2000, 1), write(folder / "test", order, 600, 2)
        self.run = folder / "run"
        data = dataset(self.train, order)
        self.model = sf.CTRDNN(
            data.schema.slot_names, len(data.schema.dense), sf.CTRDNNConfig(embedding_size=4, hidden=(16,))
        )
        trainer = sf.Trainer(sf.optim.Adam(1e-2), quiet=True)
        save = sf.SavePolicy(str(self.run))
        result = trainer.fit(self.model, data, EPOCHS, test=dataset(self.test, order), save=save)
        self.auc = result.test["auc"]


@pytest.fixture(scope="module", params=list(ORDERS))
def trained(request, tmp_path_factory) -> Trained:
    made = Trained(tmp_path_factory.mktemp("ordered") / request.param, ORDERS[request.param])
    assert made.auc > 0.7
    return made


@pytest.fixture(scope="module", params=["label first", "interleaved"])
def older(request, tmp_path_factory) -> Trained:
    """Of a release that kept the order in `inputs` alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dataset_factory, "with_layout", lambda schema, layout: schema)
        made = Trained(tmp_path_factory.mktemp("older") / request.param, ORDERS[request.param])
    manifest = Checkpoint.open(latest(made.run)).manifest
    assert "multislot" not in manifest.schema
    assert [name for name, _ in manifest.inputs["layout"]] == names_of(made.order)
    return made


def last_json(text: str) -> dict:
    return json.loads(text.splitlines()[-1])


def said(result) -> str:
    return " ".join((result.output + (result.stderr or "")).split())


def all_commands_agree(cli, made: Trained, out: Path) -> None:
    for how in (THROUGH, ("--format", "multislot"), ()):
        scored = cli("infer", made.run, "--data", made.test, *how, "--json")
        assert scored.exit_code == 0, scored.output
        assert last_json(scored.stdout)["auc"] == pytest.approx(made.auc, abs=1e-6)
    told = cli("importance", made.run, "--data", made.test, *THROUGH, "--json")
    assert told.exit_code == 0, told.output
    assert last_json(told.stdout)["auc"] == pytest.approx(made.auc, abs=1e-6)
    assert last_json(told.stdout)["losses"][0]["name"] == USER
    words = ("--test-data", made.test, "--train-data", made.train, *THROUGH)
    exported = cli("export", made.run, "--out", out, *words)
    assert exported.exit_code == 0, exported.output
    assert sf.Bundle.open(out).manifest.lineage.metrics["auc"] == pytest.approx(made.auc, abs=1e-6)
    report = cli("verify", "--checkpoint", made.run, "--bundle", out, "--data", made.test, *THROUGH, "--json")
    assert report.exit_code == 0, report.output
    assert last_json(report.stdout)["ok"]


def test_every_command_reads_in_the_order_of_training(cli, trained, tmp_path) -> None:
    all_commands_agree(cli, trained, tmp_path / "bundle")
    assert sf.saved_model(trained.run)[1].multislot == tuple(names_of(trained.order))


def test_requests_are_by_name(trained, tmp_path) -> None:
    """The schema of a bundle has the order, and a server does not mind."""
    sf.export_checkpoint(trained.run, tmp_path / "v1")
    predictor = sf.Predictor(tmp_path / "v1")
    with dataset(trained.test, trained.order).epoch() as epoch:
        batch = next(epoch.streams[0])
    schema = predictor.bundle.schema
    sample = {name: float(value) for name, value in zip(schema.dense_names, batch.dense[0], strict=True)}
    sample |= {name: batch.keys[a:b].tolist() for name, a, b in spans(batch)}
    assert predictor.predict([sample])[0] == pytest.approx(predictor.predict_batch(batch)[0], abs=1e-6)


def spans(batch: sf.Batch):
    offsets = batch.offsets.tolist()
    return [(name, offsets[number], offsets[number + 1]) for number, name in enumerate(batch.slots)]


def test_a_run_is_resumed_in_that_order(cli, trained, tmp_path) -> None:
    schema = tmp_path / "schema.json"
    sf.saved_model(trained.run)[1].save(schema)
    resumes(cli, trained, schema, tmp_path)


def resumes(cli, made: Trained, schema: Path, out: Path) -> None:
    """By the command, and by the script that trained."""
    words = ("--data", made.train, "--resume", made.run, "--schema", schema, *THROUGH, *NETWORK)
    more = ("--epochs", EPOCHS + 1, "--save", out / "by command", "--test-data", made.test, "--json")
    done = cli("train", *words, *more)
    assert done.exit_code == 0, done.output
    data, test = dataset(made.train, made.order), dataset(made.test, made.order)
    model = sf.CTRDNN(data.schema.slot_names, len(data.schema.dense), made.model.config)
    trainer = sf.Trainer(sf.optim.Adam(1e-2), quiet=True)
    result = trainer.fit(model, data, EPOCHS + 1, test=test, resume=str(made.run))
    assert result.test["auc"] == pytest.approx(last_json(done.stdout)["test_auc"], abs=1e-6)
    new = sf.CTRDNN(data.schema.slot_names, len(data.schema.dense), made.model.config)
    begun = sf.Trainer(sf.optim.Adam(1e-2), quiet=True).fit(new, data, 1, test=test, start_from=str(made.run))
    assert begun.test["auc"] > 0.7


def test_checkpoints_of_before_are_read_in_their_order(cli, older, tmp_path) -> None:
    all_commands_agree(cli, older, tmp_path / "bundle")
    schema = tmp_path / "schema.json"
    sf.saved_model(older.run)[1].save(schema)
    resumes(cli, older, schema, tmp_path)


def test_another_order_is_refused(cli, trained, tmp_path) -> None:
    schema = sf.saved_model(trained.run)[1]
    model, trainer = sf.saved_model(trained.run)[0], sf.Trainer(quiet=True)
    trainer.load(model, str(trained.run), values_only=True)
    first, *rest = trained.order
    with pytest.raises(ConfigError) as refused:
        trainer.evaluate(model, dataset(trained.test, [*rest, first]))
    told = str(refused.value)
    assert "these samples would be read otherwise (a line is (" in told
    assert "and scored on values of other slots: read them in the order of training, by set_use_var or in the" in told
    assert f"multislot = {json.dumps(names_of(trained.order))}" in told
    # A schema that somebody has saved from a checkpoint of before, whose order is not in it.
    document = {name: value for name, value in schema.to_dict().items() if name != "multislot"}
    (tmp_path / "schema.json").write_text(json.dumps(document))
    words = ("--data", trained.train, "--schema", tmp_path / "schema.json", *THROUGH, *NETWORK, "--epochs", EPOCHS + 1)
    for how in ("--resume", "--start-from"):
        resumed = cli("train", *words, how, trained.run)
        assert resumed.exit_code == 1
        assert "these samples would be read otherwise (a line is (" in said(resumed)


def test_schemas_that_say_different_orders() -> None:
    """Only one that says none, as those of before, is like any."""
    schemas = [dataset_factory.inputs_of(order)[0] for order in (["user", "label", "ad"], ["label", "user", "ad"])]
    one, other = (schema.to_dict() for schema in schemas)
    without = {name: value for name, value in one.items() if name != "multislot"}
    assert differing_schemas(without, one) == differing_schemas(one, without) == differing_schemas(one, one) == []
    assert differing_schemas(one, other) == ["multislot is ['user', 'label', 'ad'] there, ['label', 'user', 'ad'] here"]


def test_who_vouches_may_read_in_another_order(trained, tmp_path) -> None:
    """The same rows, written with the label elsewhere."""
    rest = [one for one in trained.order if names_of([one]) != [LABEL]]
    moved = [LABEL, *rest] if names_of(trained.order)[-1] == LABEL else [*rest, LABEL]
    files = write(tmp_path / trained.train.parent.name, moved, 600, 2)
    model, trainer = sf.saved_model(trained.run)[0], sf.Trainer(quiet=True)
    trainer.load(model, str(trained.run), values_only=True)
    other = dataset(files, moved)
    with pytest.raises(ConfigError, match="values of other slots"):
        trainer.evaluate(model, other)
    other = dataset(files, moved)
    other.same_inputs = True
    assert trainer.evaluate(model, other)["auc"] == pytest.approx(trained.auc, abs=1e-6)


def test_lines_without_a_label(cli, trained, tmp_path) -> None:
    unlabelled = [one for one in trained.order if names_of([one]) != [LABEL]]
    files = write(tmp_path / trained.train.parent.name, unlabelled, 600, 2)
    out = tmp_path / "scores.csv"
    done = cli("infer", trained.run, "--data", files, *THROUGH, "--unlabelled", "--output", out)
    assert done.exit_code == 0, done.output
    wanted = cli("infer", trained.run, "--data", trained.test, *THROUGH, "--output", tmp_path / "wanted.csv")
    assert wanted.exit_code == 0, wanted.output

    def scores(path: Path) -> np.ndarray:
        header, *lines = path.read_text().splitlines()
        place = next(number for number, name in enumerate(header.split(",")) if "probability" in name)
        return np.array([float(line.split(",")[place]) for line in lines])

    assert np.array_equal(scores(out), scores(tmp_path / "wanted.csv"))
    # As a script of Fluid infers: inputs without the label.
    model, trainer = sf.saved_model(trained.run)[0], sf.Trainer(quiet=True)
    trainer.load(model, str(trained.run), values_only=True)
    given = np.concatenate([made for _, made in trainer.predict(model, dataset(files, unlabelled))])
    assert given == pytest.approx(scores(out), abs=1e-6)
