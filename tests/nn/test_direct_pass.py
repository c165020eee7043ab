"""The pass without autograd: the same bits as through it, and only for models that it knows in full."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from sparsefleet.communicator import DirectCommunicator
from sparsefleet.core.batch import Batch
from sparsefleet.core.errors import ConfigError
from sparsefleet.models import CTRDNN, CTRDNNConfig
from sparsefleet.nn import Deep, DenseTower, LinearTerm, PooledTower, ShallowDeep, SparseEmbedding, WeightedPairs
from sparsefleet.nn.direct_pass import DirectPass
from sparsefleet.nn.precision import Half
from sparsefleet.optim import Adam
from sparsefleet.store import LocalStore
from sparsefleet.train.binding import BoundModel
from sparsefleet.train.replica import Replica

SLOTS = ("a", "b", "c")
TABLE = "SparseFeatFactors"
KEYS = 40


def batches(sizes, seed=0, dense=2):
    draw = np.random.default_rng(seed)
    for rows in sizes:
        offsets = np.concatenate([[0], np.cumsum(draw.integers(0, 4, rows * len(SLOTS)))]).astype(np.int64)
        yield Batch(
            labels=(draw.random(rows) < 0.4).astype(np.float32),
            dense=draw.random((rows, dense)).astype(np.float32),
            keys=draw.integers(0, KEYS, offsets[-1]).astype(np.uint64),
            offsets=offsets,
            slots=SLOTS,
        )


class ByAutograd(CTRDNN):
    def forward(self, batch):
        return super().forward(batch)


class OneLogit(PooledTower):
    def __init__(self):
        super().__init__()
        self.embedding = SparseEmbedding(TABLE, 5, ["c", "a"])
        self.tower = DenseTower([12, 7, 1])


class OneLogitByAutograd(OneLogit):
    def forward(self, batch):
        return super().forward(batch)


def network(kind=CTRDNN, pooling="sum"):
    torch.manual_seed(0)
    return kind(SLOTS, 2, CTRDNNConfig(embedding_size=4, hidden=(16, 9), pooling=pooling))


def replica(model, precision="float32"):
    store = LocalStore()
    session = BoundModel(model, store, Adam(1e-2), seed=3)
    communicator = DirectCommunicator(store)
    communicator.start(session.parameters)
    (lane,) = communicator.begin_epoch(0, 1)
    return Replica(model, session.block, lane, precision), store, session


def trained(model, precision):
    """All bits of a model after some steps over batches of several sizes."""
    runner, store, session = replica(model, precision)
    outcomes = [runner.step(batch) for batch in batches([32, 32, 7, 1, 33, 34, 35, 32])]
    rows = store.pull(TABLE, np.arange(KEYS, dtype=np.uint64)).wait()
    return (
        isinstance(runner._pass, DirectPass),
        [outcome.loss for outcome in outcomes],
        [outcome.probabilities.tobytes() for outcome in outcomes],
        session.block.values.tobytes(),
        rows.tobytes(),
    )


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("pooling", ["sum", "mean"])
def test_the_same_bits_as_through_autograd(pooling, precision, monkeypatch):
    monkeypatch.setattr("sparsefleet.nn.precision.this_machine", lambda: Half(tower=True, autocast=False, note=None))
    direct, *mine = trained(network(CTRDNN, pooling), precision)
    other, *theirs = trained(network(ByAutograd, pooling), precision)
    assert (direct, other) == (True, False)
    assert mine == theirs


def test_some_slots_and_one_logit():
    torch.manual_seed(0)
    direct, *mine = trained(OneLogit(), "float32")
    torch.manual_seed(0)
    other, *theirs = trained(OneLogitByAutograd(), "float32")
    assert (direct, other) == (True, False)
    assert mine == theirs


class Machine(ShallowDeep):
    """A factorization machine and a tower over two of the three slots and the numbers."""

    pairs = True

    def __init__(self, *, pooling="sum", dropout=0.0):
        super().__init__()
        torch.manual_seed(0)
        self.rows = SparseEmbedding(TABLE, 5, ["c", "a"], pooling=pooling)
        self.linear = LinearTerm(2)
        self.deep = Deep([10, 7, 1], dropout=dropout)
        torch.nn.init.normal_(self.linear.numbers)


class MachineByAutograd(Machine):
    def forward(self, batch):
        return super().forward(batch)


class WeightedMachine(ShallowDeep):
    """As `Machine`, over all slots, with a weight for each pair."""

    def __init__(self, *, pooling="sum"):
        super().__init__()
        torch.manual_seed(0)
        self.rows = SparseEmbedding(TABLE, 5, ["c", "a", "b"], pooling=pooling)
        self.linear = LinearTerm(2)
        self.deep = Deep([14, 7, 1])
        self.pairs = WeightedPairs(3)
        torch.nn.init.normal_(self.pairs.pairs)


class WeightedMachineByAutograd(WeightedMachine):
    def forward(self, batch):
        return super().forward(batch)


@pytest.mark.parametrize("pooling", ["sum", "mean"])
@pytest.mark.parametrize(
    "kinds", [(Machine, MachineByAutograd), (WeightedMachine, WeightedMachineByAutograd)], ids=["pairs", "weighted"]
)
def test_a_machine_beside_a_tower_trains_as_through_autograd(kinds, pooling):
    """To rounding, and for some steps: torch adds up in another order."""
    direct, by_autograd = kinds
    runner, store, session = replica(direct(pooling=pooling))
    other, other_store, other_session = replica(by_autograd(pooling=pooling))
    assert isinstance(runner._pass, DirectPass)
    assert not isinstance(other._pass, DirectPass)
    for batch in batches([32, 32, 7, 1, 33]):
        mine, theirs = runner.step(batch), other.step(batch)
        assert mine.loss == pytest.approx(theirs.loss, rel=1e-4)
        np.testing.assert_allclose(mine.probabilities, theirs.probabilities, atol=1e-4)
    np.testing.assert_allclose(session.block.values, other_session.block.values, atol=1e-3)
    keys = np.arange(KEYS, dtype=np.uint64)
    np.testing.assert_allclose(store.pull(TABLE, keys).wait(), other_store.pull(TABLE, keys).wait(), atol=1e-3)


def test_samples_with_weights_go_through_autograd():
    runner, *_ = replica(Machine())
    (batch,) = batches([16])
    weighted = Batch(batch.labels, batch.dense, batch.keys, batch.offsets, SLOTS, weights=np.full(16, 2, np.float32))
    twice = runner._pass.forward(weighted)
    assert twice.loss == pytest.approx(2 * runner._pass.forward(batch).loss, rel=1e-5)


class OwnLoss(CTRDNN):
    def loss(self, output, labels):
        return output.sum()


def with_hook():
    model = network()
    model.tower.register_forward_hook(lambda module, given, out: None)
    return model


def with_frozen_layer():
    model = network()
    model.tower.layers[0].requires_grad_(False)
    return model


def with_more_parameters():
    model = network()
    model.more = nn.Linear(2, 2)
    return model


def with_another_layer():
    class Other(nn.Linear):
        pass

    model = network()
    model.tower.layers[1] = Other(16, 9)
    return model


def with_its_own_call():
    model = network()
    model.embedding.forward = lambda batch: None
    return model


def with_tied_layers():
    torch.manual_seed(0)
    model = CTRDNN(SLOTS, 2, CTRDNNConfig(embedding_size=4, hidden=(9, 9, 9)))
    model.tower.layers[2] = model.tower.layers[1]
    return model


def with_another_linear_term():
    class Other(LinearTerm):
        pass

    model = Machine()
    model.linear = Other(2)
    return model


def with_other_weighted_pairs():
    class Other(WeightedPairs):
        pass

    model = WeightedMachine()
    model.pairs = Other(3)
    return model


@pytest.mark.parametrize(
    "make",
    [
        lambda: network(ByAutograd),
        lambda: network(OwnLoss),
        with_hook,
        with_frozen_layer,
        with_more_parameters,
        with_another_layer,
        with_its_own_call,
        with_tied_layers,
        MachineByAutograd,
        lambda: Machine(dropout=0.5),
        with_another_linear_term,
        with_other_weighted_pairs,
    ],
)
def test_any_other_model_goes_through_autograd(make):
    runner, *_ = replica(make())
    assert not isinstance(runner._pass, DirectPass)


@pytest.mark.parametrize("make", [network, Machine, WeightedMachine])
def test_gradients_are_where_autograd_leaves_them(make):
    model = make()
    runner, *_ = replica(model)
    runner.step(next(batches([32])))
    assert all(parameter.grad.abs().sum() > 0 for parameter in model.parameters())


def test_an_input_of_another_width_is_refused():
    runner, *_ = replica(network())
    with pytest.raises(ConfigError, match="made for 2 dense features; the input has 1"):
        runner.step(next(batches([4], dense=1)))
