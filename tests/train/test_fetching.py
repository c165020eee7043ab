"""What can be fetched while a model is trained or scored: metrics, parameters, predictions, outputs of modules."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_jobs import Given, batches, cluster, small_model

import sparsefleet as sf
from sparsefleet.core.errors import ConfigError
from sparsefleet.fleet import DistributedStrategy
from sparsefleet.train.replica import Scorer


class Kept(sf.FetchHandler):
    def __init__(self, names, **period):
        super().__init__(names, **(period or {"period_batches": 1}))
        self.seen: list[list[np.ndarray]] = []

    def handler(self, fetched):
        self.seen.append(fetched)


NAMES = ["accuracy", "logloss", "click_ratio", "auc", "step", "predictions", "embedding", "tower.layers.0", "tower"]


def test_every_kind_of_name_while_training():
    given, model, trainer = batches(3), small_model(), sf.Trainer(sf.optim.Adam(1e-2), quiet=True)
    kept = Kept([*NAMES, "tower.layers.0.weight", model.loss])
    result = trainer.fit(model, Given(given), fetch=[kept])
    plain = sf.Trainer(sf.optim.Adam(1e-2), quiet=True)
    again = small_model()
    assert plain.fit(again, Given(given)).train == result.train, "looking changes nothing"
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    assert [int(seen[4]) for seen in kept.seen] == [1, 2, 3]
    accuracy, logloss, ratio, auc, _, predictions, embedding, layer, tower, weight, loss = kept.seen[-1]
    assert (float(accuracy), float(logloss), float(auc)) == tuple(
        result.train[n] for n in ("accuracy", "logloss", "auc")
    )
    assert float(ratio) == result.train["click_ratio"]
    assert 0 < float(loss) < 2
    assert predictions.shape == (20,)
    assert ((predictions > 0) & (predictions < 1)).all()
    # After the last step nothing has changed any more: what modules make of the last batch can be computed again.
    assert embedding.shape == (20, 26 * 4)
    x = torch.from_numpy(np.concatenate([embedding, given[-1].dense], axis=1))
    torch.testing.assert_close(torch.from_numpy(layer), model.tower.layers[0](x).detach(), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(weight, model.tower.layers[0].weight.detach().numpy())
    after = Scorer(model, trainer._models.pull_existing)(given[-1])
    torch.testing.assert_close(
        torch.softmax(torch.from_numpy(tower), 1)[:, 1], torch.from_numpy(after), atol=1e-5, rtol=1e-5
    )


def test_while_scoring_and_by_seconds(capsys):
    given, model, trainer = batches(4), small_model(), sf.Trainer(sf.optim.Adam(1e-2), quiet=True, threads=2)
    by_time = Kept(["predictions", "tower", "auc"], period_secs=0.0001)
    trainer.fit(model, Given(given * 20), epochs=2, fetch=[by_time])
    assert by_time.seen
    kept = Kept(["predictions", "tower.layers.1", "accuracy"])
    values = trainer.infer_from_dataset(model, Given(given), fetch_handler=kept)
    assert len(kept.seen) == 4
    assert kept.seen[0][0].shape == (20,)
    assert kept.seen[0][1].shape == (20, 8)
    trainer.infer_from_dataset(model, Given(given), fetch_list=["accuracy", "predictions"], print_period=100)
    assert capsys.readouterr().out == f"accuracy {values['accuracy']}\n", "of all samples; the last batch is not"


def test_names_in_a_dict_as_in_later_fluid():
    class Keyed(sf.FetchHandler):
        def handler(self, fetched):
            seen.append(fetched)

    seen: list[dict[str, np.ndarray]] = []
    trainer, model = sf.Trainer(sf.optim.Adam(1e-2), quiet=True), small_model()
    for handler in (
        Keyed(var_dict={"of all": "auc", "cost": model.loss}, period_batches=1),
        Keyed({"of all": "auc", "cost": model.loss}, period_batches=1),
    ):
        seen.clear()
        trainer.fit(model, Given(batches(2)), fetch=[handler])
        assert [list(each) for each in seen] == [["of all", "cost"]] * 2
        assert 0 < float(seen[1]["cost"]) < 2
    assert Keyed(var_dict={"auc": "auc"}).period_secs == 60
    assert Keyed(var_dict={"auc": "auc"}, period_secs=5).period_secs == Keyed({"auc": "auc"}, 5).period_secs == 5
    for arguments, settings, message in (
        ((["auc"], 5), {"var_dict": {"auc": "auc"}}, "needs the names to fetch"),
        ((), {"period_secs": 5}, "needs the names to fetch"),
        ((), {"var_dict": ["auc"], "period_secs": 5}, "it must be a dict"),
    ):
        with pytest.raises(ConfigError, match=message):
            Keyed(*arguments, **settings)
    with pytest.raises(ConfigError, match=r"fetch_info='auc' must be a list of texts, one a name: \['auc'\]"):
        trainer.train_from_dataset(model, Given(batches(1)), fetch_list=["auc"], fetch_info="auc")


def test_the_auc_of_the_last_batches_in_scoring(capsys):
    trainer, model, given = sf.Trainer(sf.optim.Adam(1e-2), quiet=True, slide_steps=2), small_model(), batches(5)
    trainer.fit(model, Given(given))
    kept = Kept(["auc", "batch_auc"])
    values = trainer.infer_from_dataset(
        model, Given(given), fetch_handler=kept, fetch_list=["auc", "batch_auc"], print_period=5
    )
    assert "batch_auc" not in values, "of all samples"
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[::2] for line in lines] == [["auc", "batch_auc"], ["auc"]]
    assert kept.seen[1][0] == kept.seen[1][1], "two batches are all so far"
    assert kept.seen[4][1] == pytest.approx(trainer.evaluate(model, Given(given[3:]))["auc"])


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_with_servers(mode):
    """Rows come over the wire; with a rate of 0 nothing moves, and all is as in one process."""
    given, names = batches(3), ["predictions", "embedding", "tower", "tower.layers.0.weight", "step"]

    def looked(rule):
        trainer, model, kept, scored = sf.Trainer(rule, quiet=True), small_model(), Kept(names), Kept(names[:3])
        trainer.fit(model, Given(given), fetch=[kept])
        trainer.infer_from_dataset(model, Given(given), fetch_handler=scored)
        return kept.seen, scored.seen

    with cluster(2) as made:
        kept, scored = looked(made.job(sf.optim.SGD(0.0), DistributedStrategy(mode=mode), 0, 1))
    alone, scored_alone = looked(sf.optim.SGD(0.0))
    assert [int(seen[-1]) for seen in kept] == [1, 2, 3]
    predictions, embedding, tower = kept[-1][:3]
    assert embedding.shape == (20, 26 * 4)
    assert np.abs(embedding).max() > 0
    expected = torch.softmax(torch.from_numpy(np.asarray(tower)), 1)[:, 1]
    np.testing.assert_allclose(predictions, expected, rtol=1e-5, atol=1e-6)
    for there, here in ((kept, alone), (scored, scored_alone)):
        assert len(there) == len(here) == 3
        for one, other in zip(there, here, strict=True):
            for value, wanted in zip(one, other, strict=True):
                np.testing.assert_array_equal(np.asarray(value), np.asarray(wanted))


class TwoHeads(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = sf.nn.SparseEmbedding("t", 4, ["C1", "C2"])
        self.click, self.buy, self.idle = torch.nn.Linear(8, 1), torch.nn.Linear(8, 1), torch.nn.Linear(8, 1)

    def forward(self, batch):
        x = self.embedding(batch)
        return {"click": self.click(x), "buy": self.buy(x), "idle": 0 * sum(p.sum() for p in self.idle.parameters())}

    def loss(self, output, labels):
        loss = torch.nn.functional.binary_cross_entropy_with_logits(output["click"][:, 0], labels, reduction="sum")
        return loss + 0 * output["buy"].sum() + output["idle"]

    def probabilities(self, output):
        return torch.sigmoid(output["click"])


def test_outputs_by_name_and_names_that_are_none():
    trainer = sf.Trainer(sf.optim.Adam(1e-2), quiet=True)
    kept = Kept(["buy", "predictions"])
    trainer.fit(TwoHeads(), Given(batches(2)), fetch=[kept])
    assert kept.seen[0][0].shape == (20, 1)
    for names, message in (
        (["nothing"], "cannot fetch 'nothing': the model's outputs are probability, click, buy"),
        (["idle"], "cannot fetch idle: the model's forward does not call it"),
    ):
        with pytest.raises(ConfigError, match=message):
            sf.Trainer(quiet=True).fit(TwoHeads(), Given(batches(1)), fetch=[Kept(names)])
    with pytest.raises(ConfigError, match=r"cannot fetch 'acc'; choose from .*accuracy.*or a module: embedding, tower"):
        sf.Trainer(quiet=True).fit(small_model(), Given(batches(1)), fetch=[Kept(["acc"])])
    with pytest.raises(ConfigError, match=r"fetch_list='auc' must be a list of names"):
        Kept("auc")
    with pytest.raises(ConfigError, match=r"fetch_list: 5 is no name and has none"):
        Kept([5])
