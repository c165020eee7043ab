"""CTRDNN under our tables and rules is the same network written in plain torch."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from sparsefleet import optim
from sparsefleet.communicator import DirectCommunicator
from sparsefleet.core.batch import Batch
from sparsefleet.core.schema import CRITEO
from sparsefleet.models import CTRDNN, CTRDNNConfig
from sparsefleet.store import LocalStore
from sparsefleet.train.binding import BoundModel
from sparsefleet.train.replica import Replica

VOCABULARY, DIM = 50, 4


def batches(count, rows=32, seed=0):
    random = np.random.default_rng(seed)
    for _ in range(count):
        lengths = random.integers(0, 4, rows * 26)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        yield Batch(
            labels=(random.random(rows) < 0.3).astype(np.float32),
            dense=random.standard_normal((rows, 13)).astype(np.float32),
            keys=random.integers(0, VOCABULARY, offsets[-1]).astype(np.uint64),
            offsets=offsets,
            slots=CRITEO.slot_names,
        )


class PlainTorch(nn.Module):
    """The same network with nn.EmbeddingBag."""

    def __init__(self, rows, tower, mode):
        super().__init__()
        self.bag = nn.EmbeddingBag.from_pretrained(rows.clone(), freeze=False, mode=mode, sparse=True)
        layers = []
        for layer in tower.layers:
            layers += [copy.deepcopy(layer), nn.ReLU()]
        self.mlp = nn.Sequential(*layers[:-1])

    def forward(self, batch):
        keys = torch.from_numpy(batch.keys.astype(np.int64))
        pooled = self.bag(keys, torch.from_numpy(batch.offsets[:-1])).view(len(batch), -1)
        return self.mlp(torch.cat([pooled, torch.from_numpy(batch.dense)], 1))


@pytest.fixture(params=["sum", "mean"])
def pair(request):
    torch.manual_seed(0)
    model = CTRDNN(config=CTRDNNConfig(embedding_size=DIM, hidden=(16, 16, 16), pooling=request.param))
    store = LocalStore()
    session = BoundModel(model, store, optim.Adam(1e-3), seed=3)
    rows = torch.from_numpy(store.pull("SparseFeatFactors", np.arange(VOCABULARY, dtype=np.uint64)).wait())
    twin = PlainTorch(rows, model.tower, request.param)
    communicator = DirectCommunicator(store)
    communicator.start(session.parameters)
    (lane,) = communicator.begin_epoch(0, 1)
    return model, Replica(model, session.block, lane, "float32"), store, twin


def test_gradients_and_ten_adam_steps(pair):
    model, replica, store, twin = pair
    adam = torch.optim.Adam(twin.mlp.parameters(), lr=1e-3)
    sparse_adam = torch.optim.SparseAdam(twin.bag.parameters(), lr=1e-3)
    everything = np.arange(VOCABULARY, dtype=np.uint64)
    for batch in batches(10):
        twin.zero_grad()
        loss = functional.cross_entropy(twin(batch), torch.from_numpy(batch.labels).long(), reduction="sum")
        loss.backward()
        outcome = replica.step(batch)
        assert outcome.loss == pytest.approx(loss.item(), rel=1e-5)
        for mine, other in zip(model.tower.parameters(), twin.mlp.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, other.grad, rtol=1e-4, atol=1e-5)
        adam.step()
        sparse_adam.step()
        mine = torch.from_numpy(store.pull("SparseFeatFactors", everything).wait())
        torch.testing.assert_close(mine, twin.bag.weight.detach(), rtol=1e-5, atol=1e-5)
        for mine, other in zip(model.tower.parameters(), twin.mlp.parameters(), strict=True):
            torch.testing.assert_close(mine.detach(), other.detach(), rtol=1e-5, atol=1e-5)


def test_row_gradients_are_those_of_the_bag(pair):
    model, replica, _, twin = pair
    batch = next(batches(1, seed=5))
    replica._rows.begin(batch)
    functional.cross_entropy(model(batch), torch.from_numpy(batch.labels).long(), reduction="sum").backward()
    functional.cross_entropy(twin(batch), torch.from_numpy(batch.labels).long(), reduction="sum").backward()
    rows = replica._rows.gradients()["SparseFeatFactors"]
    wanted = twin.bag.weight.grad.to_dense().numpy()
    np.testing.assert_allclose(rows.rows, wanted[rows.keys.astype(np.int64)], rtol=1e-4, atol=1e-5)
    untouched = np.setdiff1d(np.arange(VOCABULARY), rows.keys)
    assert not wanted[untouched].any()
