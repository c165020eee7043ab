"""`export --outputs`: a bundle of some of a model's labels has what they need and nothing else, and scores the same."""

import inspect
import json

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from sparsefleet.core.errors import BundleError, ConfigError
from sparsefleet.core.schema import DenseFeature, Label, Schema, Slot
from sparsefleet.data.open import open_reader
from sparsefleet.export import Bundle, export_checkpoint
from sparsefleet.export.network import export_network
from sparsefleet.export.onnx_session import open_session
from sparsefleet.models import SHELF, ModelInputs
from sparsefleet.nn import SparseEmbedding, dense_input
from sparsefleet.optim import Adam
from sparsefleet.serving import Predictor
from sparsefleet.train import SavePolicy, Trainer
from sparsefleet.verify import VerifyConfig, verify

SCHEMA = Schema(
    dense=(DenseFeature("age"), DenseFeature("price")),
    slots=(Slot("user"), Slot("item")),
    label="click",
    more_labels=(Label("buy", where="click"),),
)


class TwoTasks(nn.Module):
    """Each label has an embedding of its own and a tower of its own; a third embedding is shared."""

    label_names = ("click", "buy")

    def __init__(self):
        super().__init__()
        self.shared = SparseEmbedding("shared", 3, ["user", "item"])
        self.of_click = SparseEmbedding("of_click", 4, ["item"])
        self.of_buy = SparseEmbedding("of_buy", 5, ["item"], pooling="mean")
        self.click = nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 1))
        self.buy = nn.Sequential(nn.Linear(13, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, batch):
        dense = dense_input(batch)
        click = self.click(torch.cat([self.shared(batch), self.of_click(batch), dense], 1))
        return torch.cat([click, self.buy(torch.cat([self.shared(batch), self.of_buy(batch), dense], 1))], 1)


def graph_of(path):
    return onnx.load_model(path / "model.onnx").graph


def columns(scores):
    return {name: [entry.name for entry in getattr(scores, name)] for name in ("input", "output", "initializer")}


@pytest.fixture(scope="module")
def trained_tasks(tmp_path_factory):
    """A run of `TwoTasks`, its data, and raw samples."""
    folder = tmp_path_factory.mktemp("tasks")
    random = np.random.default_rng(0)
    samples = [
        {
            "click": int(click),
            "buy": int(click and random.random() < 0.5),
            "age": float(random.random()),
            "price": float(random.random()),
            "user": f"u{random.integers(20)}",
            "item": f"i{random.integers(30)}",
        }
        for click in random.random(400) < 0.5
    ]
    (folder / "data.jsonl").write_text("\n".join(map(json.dumps, samples)) + "\n")
    torch.manual_seed(0)
    reader = open_reader(str(folder / "data.jsonl"), SCHEMA, batch_size=50, format_name="jsonl")
    Trainer(Adam(0.05), threads=1).fit(TwoTasks(), reader, epochs=2, save=SavePolicy(str(folder / "run"), keep=1))
    return folder, [{name: value for name, value in each.items() if name not in ("click", "buy")} for each in samples]


def test_what_the_others_need_is_left_out(trained_tasks, tmp_path):
    folder, samples = trained_tasks
    export_checkpoint(folder / "run", tmp_path / "all", model=TwoTasks())
    export_checkpoint(folder / "run", tmp_path / "buy", model=TwoTasks(), outputs=["buy"])
    whole, cut = (Bundle.open(tmp_path / name, full=True) for name in ("all", "buy"))
    assert [table.name for table in whole.manifest.tables] == ["shared", "of_click", "of_buy"]
    assert [table.name for table in cut.manifest.tables] == ["shared", "of_buy"]
    assert cut.network.labels == (("buy", "probability"),)
    assert [entry.module for entry in cut.network.embeddings] == ["shared", "of_buy"]
    graph = columns(graph_of(tmp_path / "buy"))
    assert graph["output"] == ["probability"]
    assert set(graph["input"]) == {"dense", *(entry.input for entry in cut.network.embeddings)}
    assert any(name.startswith("model.buy.") for name in graph["initializer"])
    assert not any(name.startswith("model.click.") for name in graph["initializer"])
    assert len(graph_of(tmp_path / "buy").node) < len(graph_of(tmp_path / "all").node)
    batch = Predictor(whole).parser.samples(samples)
    want = outputs_of(Predictor(whole), batch)
    got = outputs_of(Predictor(cut), batch)
    assert set(got) == {"buy"}
    np.testing.assert_array_equal(got["buy"], want["buy"])
    np.testing.assert_array_equal(Predictor(cut).predict(samples), want["buy"])
    assert np.abs(want["buy"] - want["click"]).max() > 0.01


def outputs_of(predictor, batch):
    """The probability of each label, by the graph's own outputs."""
    network, inputs = predictor.bundle.network, {}

    class Session:
        def run(self, names, given):
            inputs.update(given)
            return [np.zeros(len(batch), np.float32) for _ in names]

    session, predictor._session = predictor._session, Session()
    predictor.score(batch)
    predictor._session = session
    named = [output for _, output in network.labels]
    return dict(zip([label for label, _ in network.labels], session.run(named, inputs), strict=True))


@pytest.mark.slow
def test_another_order_changes_which_is_the_score(trained_tasks, tmp_path):
    folder, samples = trained_tasks
    export_checkpoint(folder / "run", tmp_path / "b", model=TwoTasks(), outputs=["buy", "click"])
    predictor = Predictor(tmp_path / "b")
    assert predictor.bundle.network.labels == (("buy", "probability"), ("click", "probability_1"))
    want = outputs_of(predictor, predictor.parser.samples(samples))
    np.testing.assert_array_equal(predictor.predict(samples), want["buy"])
    assert np.abs(want["buy"] - want["click"]).max() > 0.01


@pytest.mark.slow
def test_verify_judges_a_cut_bundle_by_its_own_labels(trained_tasks, tmp_path):
    folder, _ = trained_tasks
    export_checkpoint(folder / "run", tmp_path / "b", model=TwoTasks(), outputs=["buy"])
    config = VerifyConfig(rows=200, format="jsonl")
    report = verify(folder / "run", tmp_path / "b", str(folder / "data.jsonl"), model=TwoTasks(), config=config)
    told = report.to_dict()
    assert report.ok, told
    (table,) = (check for check in told["parameters"]["checks"] if check["what"] == "table of_click")
    assert (table["ok"], "none of the bundle's outputs needs it" in table["figure"]) == (None, True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["shared_bottom", "mmoe", "esmm"])
def test_models_of_the_shelf(name):
    kind = SHELF[name]
    torch.manual_seed(0)
    model = kind(ModelInputs(("user", "item"), 2, ("click", "buy")), kind.Settings(hidden=(8, 6))).eval()
    whole = export_network(model, ("user", "item"), 2)
    cut = export_network(model, ("user", "item"), 2, ["buy"])
    random = np.random.default_rng(0)
    inputs = {entry.input: random.standard_normal((7, entry.width)).astype(np.float32) for entry in cut.info.embeddings}
    inputs["dense"] = random.random((7, 2), np.float32)
    (want,) = open_session(whole.graph).run(["probability_1"], inputs)
    assert [entry.name for entry in open_session(cut.graph).get_outputs()] == ["probability"]
    np.testing.assert_allclose(open_session(cut.graph).run(None, inputs)[0], want, atol=1e-6)
    names = [entry.name for entry in onnx.load_model_from_string(cut.graph).graph.initializer]
    assert any("towers.1." in each for each in names)
    assert not any("towers.0." in each for each in names)


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        (["order"], "no output 'order'; it has click, buy"),
        (["buy", "buy"], "names one twice"),
        ([], "is empty; the model has click, buy"),
    ],
)
def test_names_that_are_none(trained_tasks, tmp_path, outputs, message):
    with pytest.raises(ConfigError, match=message):
        export_checkpoint(trained_tasks[0] / "run", tmp_path / "b", model=TwoTasks(), outputs=outputs)
    assert not list(tmp_path.iterdir())


def test_the_command(trained, cli, tmp_path):
    """A model of one label has one output, which goes by the label's name."""
    refused = cli("export", trained.checkpoint(1), "--out", tmp_path / "b", "--outputs", "click,buy")
    assert refused.exit_code == 1
    assert "the model has no output 'click'; it has label" in " ".join(refused.output.split())
    assert not list(tmp_path.iterdir())
    done = cli("export", trained.checkpoint(1), "--out", tmp_path / "b", "--outputs", "label")
    assert done.exit_code == 0, done.output
    want = Predictor(trained.bundles[0]).predict(trained.rows)
    np.testing.assert_array_equal(Predictor(tmp_path / "b").predict(trained.rows), want)


class Branching(nn.Module):
    """What it computes depends on its data: no graph can say that."""

    def __init__(self):
        super().__init__()
        self.embedding = SparseEmbedding("rows", 3, ["user", "item"])
        self.last = nn.Linear(8, 1)

    def forward(self, batch):
        score = self.last(torch.cat([self.embedding(batch), dense_input(batch)], 1)).squeeze(1)
        return score * 2 if batch.dense[:, 0].mean() > 0 else score


def test_a_model_that_torch_cannot_export_is_refused_with_the_reason_and_the_line(capfd):
    with pytest.raises(BundleError, match="torch cannot export this model to ONNX") as refused:
        export_network(Branching(), ("user", "item"), 2)
    told = str(refused.value)
    line = inspect.getsourcelines(Branching.forward)[1] + 2
    assert "data-dependent expression" in told
    assert f"{__file__}, line {line}" in told
    assert "\x1b" not in told
    assert "\n" not in told
    assert capfd.readouterr() == ("", "")  # no graphs, no advice for torch's developers
