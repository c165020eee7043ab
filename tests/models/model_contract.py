"""What every model of the table promises. A model's test derives from `ModelContract` and says how to make one."""

from __future__ import annotations

import json

import torch
from torch import nn

from sparsefleet.checkpoint import Checkpoint, latest
from sparsefleet.core.schema import CRITEO
from sparsefleet.data.open import open_reader
from sparsefleet.models import MODELS, Rebuildable, build, describe
from sparsefleet.optim import Adam
from sparsefleet.train import SavePolicy, Trainer


class ModelContract:
    def make(self) -> Rebuildable:
        """A small model over Criteo's slots and dense features, with settings that are not the defaults."""
        raise NotImplementedError

    def test_the_table_knows_this_very_class(self):
        assert MODELS[self.make().name] is type(self.make())

    def test_it_comes_back_from_plain_data(self):
        model = self.make()
        described = json.loads(json.dumps(describe(model)))
        again = build(described)
        assert type(again) is type(model)
        assert describe(again) == described
        shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
        assert {name: tensor.shape for name, tensor in again.state_dict().items()} == shapes

    def test_it_learns_and_a_checkpoint_scores_the_same(self, clicks, tmp_path):
        torch.manual_seed(0)
        data = {part: open_reader(clicks / part, CRITEO, batch_size=100) for part in ("train", "test")}
        trainer, model = Trainer(Adam(0.01)), self.make()
        result = trainer.fit(model, data["train"], epochs=2, test=data["test"], save=SavePolicy(str(tmp_path)))
        assert result.test["auc"] > 0.55
        saved: nn.Module = build(Checkpoint.open(latest(str(tmp_path))).manifest.model)
        scoring = Trainer()
        scoring.load(saved, str(tmp_path), values_only=True)
        assert scoring.evaluate(saved, data["test"]) == result.test
