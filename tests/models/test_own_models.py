"""Models of the user's own: several tables, shared tables, their own rules, buffers, frozen parts, no table at all."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from sparsefleet.core.batch import Batch
from sparsefleet.core.errors import CheckpointError, ConfigError
from sparsefleet.core.initializer import Constant, Uniform
from sparsefleet.core.schema import CRITEO, DenseFeature, Schema, Slot
from sparsefleet.data import Feeder
from sparsefleet.data.open import open_reader
from sparsefleet.models import CTRDNNConfig, build, describe
from sparsefleet.nn import SparseEmbedding, dense_input
from sparsefleet.optim import FTRL, SGD, Adam
from sparsefleet.store import LocalStore
from sparsefleet.train import SavePolicy, Trainer, attach

SMALL = Schema(dense=(DenseFeature("x"),), slots=(Slot("a"), Slot("b")))


def small_batches(count=4, rows=16, seed=0):
    random = np.random.default_rng(seed)
    for _ in range(count):
        offsets = np.concatenate([[0], np.cumsum(random.integers(0, 4, rows * 2))]).astype(np.int64)
        yield Batch(
            labels=(random.random(rows) < 0.4).astype(np.float32),
            dense=random.random((rows, 1)).astype(np.float32),
            keys=random.integers(0, 30, offsets[-1]).astype(np.uint64),
            offsets=offsets,
            slots=SMALL.slot_names,
        )


def small(**settings):
    return Feeder(SMALL, lambda: small_batches(**settings))


class TwoTables(nn.Module):
    def __init__(self):
        super().__init__()
        self.deep = SparseEmbedding("deep", 4, CRITEO.slot_names[:20], optimizer=Adam(0.01))
        self.bags = SparseEmbedding("deep", 4, ["C21", "C1"], pooling="mean", optimizer=Adam(0.01))
        self.wide = SparseEmbedding("wide", 1, CRITEO.slot_names, initializer=Constant(0), optimizer=FTRL(0.05))
        self.mlp = nn.Sequential(nn.Linear(22 * 4 + 13, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, batch):
        deep = self.mlp(torch.cat([self.deep(batch), self.bags(batch), dense_input(batch)], 1))
        return deep.squeeze(1) + self.wide(batch).sum(1)


@pytest.mark.parametrize("threads", [1, 2])
def test_two_tables_each_with_its_own_rule(clicks, tmp_path, threads):
    torch.manual_seed(0)
    model, trainer = TwoTables(), Trainer(Adam(0.005), threads=threads)
    data = {part: open_reader(clicks / part, CRITEO, batch_size=100) for part in ("train", "test")}
    result = trainer.fit(model, data["train"], test=data["test"], save=SavePolicy(str(tmp_path)))
    assert result.test["auc"] > 0.6
    tables = trainer.store.sparse_tables()
    assert {name: (t.spec.dim, t.spec.rule.name) for name, t in tables.items()} == {
        "deep": (4, "adam"),
        "wide": (1, "ftrl"),
    }
    assert tables["deep"].step == tables["wide"].step == result.steps  # one push a step, however many embeddings
    torch.manual_seed(1)
    again, other = TwoTables(), Trainer(Adam(0.005))
    other.load(again, str(tmp_path))
    assert other.evaluate(again, data["test"]) == pytest.approx(result.test, abs=1e-9)
    with pytest.raises(CheckpointError, match=r"a model of your own \(.*TwoTables\), and no code: load it"):
        build({"name": "custom", "class": "x.TwoTables"})
    assert describe(model)["class"].endswith("TwoTables")


class CountingStore(LocalStore):
    def __init__(self):
        super().__init__()
        self.pushed = []

    def push_step(self, sparse, dense=None, **more):
        self.pushed += [(table, given.keys.copy(), given.rows.copy()) for table, given in sparse.items()]
        return super().push_step(sparse, dense, **more)


class Shared(nn.Module):
    """Two embeddings on one table, with other slots and another pooling, and one slot in both."""

    def __init__(self):
        super().__init__()
        self.one = SparseEmbedding("t", 2, ["a", "b"], initializer=Uniform(-1, 1))
        self.two = SparseEmbedding("t", 2, ["b"], pooling="mean", initializer=Uniform(-1, 1))
        self.last = nn.Linear(6, 2)

    def forward(self, batch):
        return self.last(torch.cat([self.one(batch), self.two(batch)], 1))


def test_embeddings_that_share_a_table_push_one_gradient_a_key():
    torch.manual_seed(0)
    model, store = Shared(), CountingStore()
    Trainer(SGD(0.1), store=store).fit(model, small(count=1), epochs=0)
    batch = next(small_batches(1))
    before = {int(k): store.pull("t", np.array([k], np.uint64)).wait()[0].copy() for k in np.unique(batch.keys)}
    weight, bias = model.last.weight.detach().clone(), model.last.bias.detach().clone()
    Trainer(SGD(0.1), store=store).fit(model, small(count=1))
    assert len(store.pushed) == 1
    _, keys, grads = store.pushed[0]
    assert len(np.unique(keys)) == len(keys)
    assert set(keys.tolist()) == set(batch.keys.tolist())

    # The same in plain torch.
    vocabulary = sorted(before)
    rows = torch.tensor(np.stack([before[k] for k in vocabulary]), requires_grad=True)
    place = torch.tensor([vocabulary.index(int(k)) for k in batch.keys])
    offsets = torch.from_numpy(batch.offsets)

    def bag(slot, mode):
        out = []
        for row in range(len(batch)):
            at = slice(int(offsets[row * 2 + slot]), int(offsets[row * 2 + slot + 1]))
            chosen = rows[place[at]]
            out.append(getattr(chosen, mode)(0) if len(chosen) else torch.zeros(2))
        return torch.stack(out)

    output = torch.cat([bag(0, "sum"), bag(1, "sum"), bag(1, "mean")], 1) @ weight.t() + bias
    nn.functional.cross_entropy(output, torch.from_numpy(batch.labels).long(), reduction="sum").backward()
    wanted = {key: rows.grad[index].numpy() for index, key in enumerate(vocabulary)}
    for key, gradient in zip(keys.tolist(), grads, strict=True):
        np.testing.assert_allclose(gradient, wanted[key], rtol=1e-4, atol=1e-6)


def test_embeddings_that_share_a_table_must_agree():
    class Disagree(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = SparseEmbedding("t", 2, ["a"]), SparseEmbedding("t", 3, ["b"])

    with pytest.raises(ConfigError, match="two embeddings share table 't' but differ in dim: 2 and 3"):
        Trainer().fit(Disagree(), small())


def test_a_table_that_a_batch_does_not_use_is_left_alone():
    class Sometimes(nn.Module):
        def __init__(self):
            super().__init__()
            self.use = True
            self.one, self.two = SparseEmbedding("one", 2, ["a"]), SparseEmbedding("two", 2, ["b"])
            self.last = nn.Linear(2, 2)

        def forward(self, batch):
            return self.last(self.one(batch) + self.two(batch) if self.use else self.one(batch))

    model, trainer = Sometimes(), Trainer(Adam(0.1))
    trainer.fit(model, small())
    everything = np.arange(30, dtype=np.uint64)
    before = trainer.store.pull("two", everything).wait().copy()
    model.use = False
    trainer.fit(model, small())
    # Adam's momentum would have moved rows that get a gradient of zeros.
    np.testing.assert_array_equal(trainer.store.pull("two", everything).wait(), before)


def test_a_model_without_tables(tmp_path):
    def linear():
        torch.manual_seed(0)

        class Linear(nn.Module):
            def __init__(self):
                super().__init__()
                self.last = nn.Linear(1, 1)

            def forward(self, batch):
                return self.last(dense_input(batch))

        return Linear()

    whole, again = Trainer(SGD(0.1)), Trainer(SGD(0.1))
    model = linear()
    whole.fit(model, small(), epochs=2, save=SavePolicy(str(tmp_path), every_steps=3, keep=9))
    other = linear()
    again.fit(other, small(), epochs=2, resume=str(tmp_path / "step-00000003"))
    assert torch.equal(model.last.weight, other.last.weight)


def test_a_model_without_dense_parameters(tmp_path):
    class Wide(nn.Module):
        def __init__(self):
            super().__init__()
            self.wide = SparseEmbedding("wide", 1, ["a", "b"], initializer=Constant(0))

        def forward(self, batch):
            return self.wide(batch).sum(1)

    trainer, model = Trainer(FTRL(0.1)), Wide()
    result = trainer.fit(model, small(count=20), epochs=3, save=SavePolicy(str(tmp_path)))
    assert result.steps == 60
    again, other = Trainer(FTRL(0.1)), Wide()
    again.restore(other, str(tmp_path))
    assert again.evaluate(other, small()) == trainer.evaluate(model, small())


def test_buffers_and_frozen_parameters_are_shared_by_threads_saved_and_restored(tmp_path):
    class Normed(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = SparseEmbedding("t", 3, ["a", "b"])
            self.frozen = nn.Linear(7, 4)
            self.frozen.weight.requires_grad_(False)
            self.norm, self.last = nn.BatchNorm1d(4), nn.Linear(4, 2)

        def forward(self, batch):
            return self.last(self.norm(self.frozen(torch.cat([self.table(batch), dense_input(batch)], 1))))

    torch.manual_seed(0)
    model, trainer = Normed(), Trainer(Adam(0.01), threads=2)
    frozen = model.frozen.weight.clone()
    trainer.fit(model, small(count=12), epochs=2, save=SavePolicy(str(tmp_path)))
    assert int(model.norm.num_batches_tracked) == 24  # of both threads
    assert torch.equal(model.frozen.weight, frozen)
    assert not torch.equal(model.norm.running_mean, torch.zeros(4))
    torch.manual_seed(1)
    other, again = Normed(), Trainer(Adam(0.01))
    again.restore(other, str(tmp_path))
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name
    assert again.evaluate(other, small()) == pytest.approx(trainer.evaluate(model, small()))

    class Bare(Normed):
        def __init__(self):
            super().__init__()
            self.norm = nn.Identity()

    with pytest.raises(CheckpointError, match="norm"):
        Trainer(Adam(0.01)).restore(Bare(), str(tmp_path))


def test_a_model_with_a_loss_and_probabilities_of_its_own():
    class Squared(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.last = SparseEmbedding("t", 2, ["a"]), nn.Linear(2, 3)

        def forward(self, batch):
            return self.last(self.table(batch))

        def loss(self, output, labels):
            return (self.probabilities(output) - labels).square().sum()

        def probabilities(self, output):
            return torch.sigmoid(output.sum(1) + self.last.bias[0])

    trainer = Trainer(Adam(0.05))
    result = trainer.fit(Squared(), small(count=20), epochs=2)
    assert result.train["rows"] == 640

    class Silent(Squared):
        loss = None
        probabilities = None

    with pytest.raises(ConfigError, match=r"must be \[B, 2\], \[B, 1\] or \[B\]; got \(16, 3\)"):
        Trainer().fit(Silent(), small())


def test_a_slot_that_the_rows_have_not():
    class Wrong(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = SparseEmbedding("t", 2, ["a", "zip"])

        def forward(self, batch):
            return self.table(batch)

    with pytest.raises(ConfigError, match="the input has no slot 'zip'; it has a, b"):
        Trainer().fit(Wrong(), small())


def test_a_model_called_by_hand():
    model, trainer = Shared(), Trainer(Adam(0.01))
    batch = next(small_batches(1))
    with pytest.raises(ConfigError, match="has no rows yet: run the model through a Trainer, or attach"):
        model(batch)
    trainer.fit(model, small())
    assert attach(model, trainer.store)(batch).shape == (16, 2)


def test_parameters_of_another_type_are_refused():
    class Double(nn.Module):
        def __init__(self):
            super().__init__()
            self.last = nn.Linear(1, 1, dtype=torch.float64)

    with pytest.raises(ConfigError, match=r"'last.weight' is torch.float64 on cpu; dense parameters must be"):
        Trainer().fit(Double(), small())


# -- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"embedding_size": 0}, "embedding_size=0"),
        ({"hidden": ()}, "at least one layer"),
        ({"hidden": (4, 0)}, "at least one layer"),
    ],
)
def test_a_network_that_makes_no_sense(settings, said):
    with pytest.raises(ConfigError, match=said):
        CTRDNNConfig(**settings)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"pooling": "max"}, "pooling='max' is not a pooling; choose sum or mean"),
        ({"dim": 0}, "dim=0"),
        ({"slots": []}, "at least one slot"),
    ],
)
def test_an_embedding_that_makes_no_sense(settings, said):
    with pytest.raises(ConfigError, match=said):
        SparseEmbedding(**{"table": "t", "dim": 2, "slots": ["a"], **settings})


class NormedBag(nn.Module):
    """`inner`: what stands between the embeddings and the last layer."""

    def __init__(self, inner):
        super().__init__()
        self.table, self.inner, self.last = SparseEmbedding("t", 3, ["a", "b"]), inner, nn.Linear(6, 1)

    def forward(self, batch):
        return self.last(self.inner(self.table(batch)))


@pytest.mark.parametrize("threads", [1, 2])
def test_a_batch_of_one_sample_is_normalised_by_the_running_statistics(threads):
    """It is what is left at the end of a thread's data; its own variance is none."""
    torch.manual_seed(0)
    model = NormedBag(nn.BatchNorm1d(6))
    before = [batch for seed in range(2) for batch in small_batches(2, seed=seed)]
    trainer = Trainer(SGD(0.01), threads=threads)
    trainer.fit(model, Feeder(SMALL, lambda: iter(before)))
    mean, count = model.inner.running_mean.clone(), int(model.inner.num_batches_tracked)
    assert count == 4
    assert mean.abs().sum() > 0
    weight = model.inner.weight.detach().clone()
    assert trainer.fit(model, small(count=2, rows=1)).rows == 2
    assert torch.equal(model.inner.running_mean, mean)
    assert int(model.inner.num_batches_tracked) == count
    assert not torch.equal(model.inner.weight, weight)  # it has been trained
    assert model.inner.training
    # And what was trained on is what scoring computes.
    batch = next(small_batches(1, rows=1))
    scored = next(iter(trainer.predict(model, Feeder(SMALL, lambda: iter([batch])))))[1]
    losses = trainer.fit(model, Feeder(SMALL, lambda: iter([batch]))).train["logloss"]
    p = float(np.asarray(scored).reshape(-1)[0])
    assert losses == pytest.approx(-np.log(p if batch.labels[0] else 1 - p), rel=1e-5)


def test_a_batch_norm_that_cannot_take_a_single_row_is_told_in_words():
    model = NormedBag(nn.BatchNorm1d(6, track_running_stats=False))
    with pytest.raises(ConfigError, match=r"a batch norm of NormedBag got a single row.*track_running_stats"):
        Trainer(SGD(0.01)).fit(model, small(count=1, rows=1))


def test_a_wrong_number_of_outputs_is_told_in_words():
    class Short(NormedBag):
        def forward(self, batch):
            return super().forward(batch)[1:]

    with pytest.raises(ConfigError, match=r"output must be .*; got \(15, 1\) where B is 16"):
        Trainer(SGD(0.01)).fit(Short(nn.Identity()), small())
    with pytest.raises(ConfigError, match=r"output must be .*; got \(\d+, 1\)"):
        list(Trainer(SGD(0.01)).predict(Short(nn.Identity()), small()))

    class ShortOfTwo(Short):
        label_names = ("click", "buy")

        def __init__(self):
            super().__init__(nn.Identity())
            self.last = nn.Linear(6, 2)

    def two_labels():
        for batch in small_batches():
            yield replace(batch, labels=np.stack([batch.labels, batch.labels], 1))

    with pytest.raises(ConfigError, match=r"a logit for each, \[B, 2\]; got \(15, 2\) where B is 16"):
        Trainer(SGD(0.01)).fit(ShortOfTwo(), Feeder(SMALL, two_labels))
