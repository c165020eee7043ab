"""Models by name: what a checkpoint remembers of a model, and what comes back from that."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from model_contract import ModelContract
from small_models import MANY, SETTINGS
from torch import nn
from typer.testing import CliRunner

from sparsefleet.applications import MultiSlotCTR
from sparsefleet.checkpoint import Checkpoint, latest
from sparsefleet.cli.app import app
from sparsefleet.core.errors import BundleError, CheckpointError, ConfigError
from sparsefleet.core.initializer import Constant, Normal, Uniform, from_list
from sparsefleet.core.schema import CRITEO
from sparsefleet.data.open import open_reader
from sparsefleet.export import export_checkpoint
from sparsefleet.models import CTRDNN, SHELF, CTRDNNConfig, ModelInputs, Rebuildable, build, describe, registry
from sparsefleet.nn import SparseEmbedding, dense_input
from sparsefleet.optim import Adam
from sparsefleet.serving import Predictor
from sparsefleet.train import SavePolicy, Trainer

TINY = CTRDNNConfig(embedding_size=3, hidden=(8, 4), initializer=Uniform(-0.5, 0.25), pooling="mean")


class TestCTRDNN(ModelContract):
    def make(self):
        return CTRDNN(config=TINY)


class TestShelf(ModelContract):
    """All the others."""

    @pytest.fixture(autouse=True, params=[name for name in SHELF if name != "ctr_dnn"])
    def choose(self, request):
        self.name = request.param

    def make(self):
        kind, inputs = SHELF[self.name], ModelInputs.of(CRITEO)
        if self.name in MANY:
            inputs = replace(inputs, labels=("click", "buy"))
        settings = dict(SETTINGS[self.name])
        if self.name == "din":
            settings |= {"history": ("C1",), "target": ("C2",)}
        return kind(inputs, kind.Settings(**settings))

    @pytest.mark.slow
    def test_it_learns_and_a_checkpoint_scores_the_same(self, clicks, tmp_path):
        if self.name in MANY:
            pytest.skip("these samples have one label; tests/models/test_many_labels.py trains on several")
        super().test_it_learns_and_a_checkpoint_scores_the_same(clicks, tmp_path)


def test_all_settings_come_back():
    model = build(describe(CTRDNN(["a", "b"], 2, TINY)))
    assert isinstance(model, CTRDNN)
    assert model.config == TINY
    assert model.embedding.slots == ("a", "b")
    assert model.tower.layers[0].in_features == 2 * 3 + 2


@pytest.mark.parametrize("initializer", [Uniform(-1.0, 0.5), Normal(0.1, 2.0), Constant(3.0)])
def test_initializers_come_back(initializer):
    assert from_list(initializer.to_list()) == initializer


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": "transformer"}, "a model 'transformer' that this release does not know; it knows CTRDNN"),
        ({"hidden": None}, "CTRDNN cannot be made from the checkpoint's description of its model, which is damaged"),
        ({"initializer": ["Pareto", 1]}, "which is damaged or of another version of the class: KeyError"),
        ({"initializer": []}, "damaged"),
        ({"embedding_size": "4"}, "damaged"),
        ({"hidden": [0]}, "damaged"),
    ],
)
def test_a_description_that_makes_no_sense(change, said):
    with pytest.raises(CheckpointError, match=said):
        build({**describe(CTRDNN()), **change})


# -- classes of the user's own -----------------------------------------------------------------------------------------


class Upside(CTRDNN):
    """Not CTR-DNN: it predicts the opposite."""

    def forward(self, batch):
        return -super().forward(batch)


class Fixed(CTRDNN):
    def __init__(self):
        super().__init__(config=TINY)


class Wide(Rebuildable):
    def __init__(self, slots):
        super().__init__()
        self.slots = list(slots)
        self.wide = SparseEmbedding("wide", 1, slots)

    def forward(self, batch):
        return self.wide(batch).sum(1)

    def describe(self):
        return {"slots": self.slots}

    @classmethod
    def build(cls, description):
        return cls(description["slots"])


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(len(CRITEO.dense), 1)

    def forward(self, batch):
        return self.last(dense_input(batch))


def trained(model, clicks, folder):
    torch.manual_seed(0)
    data = {part: open_reader(clicks / part, CRITEO, batch_size=100) for part in ("train", "test")}
    trainer = Trainer(Adam(0.01))
    trainer.fit(model, data["train"], save=SavePolicy(str(folder)))
    return trainer.evaluate(model, data["test"]), Checkpoint.open(latest(str(folder))).manifest.model, data["test"]


def test_a_subclass_with_its_own_forward_is_not_taken_for_its_base(clicks, tmp_path):
    scores, saved, test = trained(Upside(config=TINY), clicks, tmp_path / "run")
    assert saved["name"] == "custom"
    assert saved["class"].endswith("test_registry.Upside")
    asked = r"holds a model of your own \(.*Upside\), and no code: load it from a script, into a model that you made .*"
    with pytest.raises(CheckpointError, match=asked + r"models\.build\(description, MyModel\)"):
        build(saved)
    with pytest.raises(CheckpointError, match=r"holds a model of your own \(.*Upside\): say where its class is"):
        export_checkpoint(str(tmp_path / "run"), tmp_path / "bundle")
    again = build(saved, Upside)
    assert type(again) is Upside
    scoring = Trainer()
    scoring.load(again, str(tmp_path / "run"), values_only=True)
    assert scoring.evaluate(again, test) == scores


def test_a_model_of_ones_own_that_can_be_rebuilt(clicks, tmp_path):
    scores, saved, test = trained(Wide(CRITEO.slot_names), clicks, tmp_path)
    assert (saved["name"], saved["slots"]) == ("custom", list(CRITEO.slot_names))
    again, scoring = build(saved, Wide), Trainer()
    scoring.load(again, str(tmp_path), values_only=True)
    assert scoring.evaluate(again, test) == scores


def test_the_class_given_must_be_the_class_that_was_saved():
    saved = describe(Wide(["a"]))
    said = r"holds a model of the class .*test_registry\.Wide, not .*test_registry\.Upside: give the class that was"
    with pytest.raises(CheckpointError, match=said):
        build(saved, Upside)
    assert type(build({**saved, "class": "__main__.Wide"}, Wide)) is Wide  # the script that trained


def test_a_class_without_the_contract_says_what_to_do():
    saved = describe(Plain())
    assert saved == {"name": "custom", "class": f"{__name__}.Plain"}
    with pytest.raises(CheckpointError, match=r"derive it from sparsefleet\.models\.Rebuildable, with describe"):
        build(saved, Plain)


def test_a_subclass_with_another_constructor_says_so():
    said = r"Fixed cannot be made from the checkpoint's description.*takes 1 positional argument"
    with pytest.raises(CheckpointError, match=said):
        build(describe(Fixed()), Fixed)


def test_a_class_that_names_its_base_comes_back_as_the_base():
    described = describe(MultiSlotCTR(TINY))
    assert described == describe(CTRDNN(config=TINY))
    assert type(build(described)) is CTRDNN


def test_a_name_of_ours_on_a_class_that_is_none_of_ours_is_custom():
    class Impostor(Wide):
        name: ClassVar[str] = "CTRDNN"

    assert describe(Impostor(["a"]))["name"] == "custom"


def test_a_line_in_the_table_is_all_that_a_new_model_needs(clicks, tmp_path, monkeypatch):
    class New(Wide):
        name: ClassVar[str] = "New"

    monkeypatch.setattr(registry, "MODELS", {**registry.MODELS, "New": New})
    _, saved, _ = trained(New(CRITEO.slot_names), clicks, tmp_path / "run")
    assert saved == {"name": "New", "slots": list(CRITEO.slot_names)}
    assert type(build(saved)) is New
    scored = CliRunner().invoke(app, ["infer", str(tmp_path / "run"), "--data", str(clicks / "test"), "--json"])
    assert scored.exit_code == 0, scored.output
    assert json.loads(scored.stdout.splitlines()[-1])["auc"] > 0.5
    export_checkpoint(str(tmp_path / "run"), tmp_path / "bundle")
    sample = {**dict.fromkeys([*CRITEO.dense_names, *CRITEO.slot_names]), "C1": "a"}
    assert len(Predictor(tmp_path / "bundle").predict([sample])) == 1


def test_settings_that_are_no_plain_data_are_refused():
    class Odd(Wide):
        def describe(self):
            return {"weights": np.zeros(2)}

    with pytest.raises(ConfigError, match=r"Odd\.describe\(\) must return plain JSON data: .*ndarray"):
        describe(Odd(["a"]))


def test_settings_cannot_change_the_name():
    class Liar(Wide):
        def describe(self):
            return {"name": "CTRDNN", "class": "x"}

    assert re.fullmatch(r".*Liar", describe(Liar(["a"]))["class"])


def test_a_class_without_describe_cannot_be_made():
    class Half(Rebuildable):
        pass

    with pytest.raises(TypeError, match="abstract"):
        Half()


def test_a_checkpoint_of_a_base_does_not_fit_a_bundle_of_another_model(clicks, tmp_path):
    trained(CTRDNN(config=TINY), clicks, tmp_path / "run")
    with pytest.raises(BundleError, match="does not fit the model"):
        export_checkpoint(str(tmp_path / "run"), tmp_path / "bundle", model=Plain())
