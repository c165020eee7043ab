"""Trainer.load(partial=True): same-named parameters into another network, in one process and on servers."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
from small_jobs import TABLE, Given, batches, cluster, in_threads, small_model

import sparsefleet as sf
from sparsefleet.fleet import DistributedStrategy


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    trainer, model = sf.Trainer(sf.optim.Adam(1e-2), quiet=True), small_model()
    trainer.fit(model, Given(batches(5)))
    trainer.save(str(folder / "a"))
    return str(folder / "a"), model, trainer


def another(hidden=(16, 6), size=4) -> sf.CTRDNN:
    with torch.random.fork_rng():
        torch.manual_seed(9)
        return sf.CTRDNN(config=sf.CTRDNNConfig(embedding_size=size, hidden=hidden))


def rows(trainer) -> dict[int, np.ndarray]:
    (table,) = trainer.store.sparse_tables().values()
    return {int(key): values for part in table.scan() for key, values in zip(part.keys, part.values, strict=True)}


def test_another_network_with_another_optimizer(saved, caplog):
    path, model, before = saved
    caplog.set_level(logging.WARNING)
    trainer, new = sf.Trainer(sf.optim.Adagrad(1e-2), quiet=True), another()
    fresh = {name: parameter.detach().clone() for name, parameter in new.named_parameters()}
    loaded = trainer.load(new, path, partial=True)
    old = dict(model.named_parameters())
    taken = {"tower.layers.0.weight", "tower.layers.0.bias", "tower.layers.2.bias"}
    for name, parameter in new.named_parameters():
        wanted = old[name] if name in taken else fresh[name]
        assert torch.equal(parameter, wanted), name
    assert {text.removeprefix("parameter ") for text in loaded.taken if text.startswith("parameter")} == taken
    assert any(text.startswith(f"table '{TABLE}' (") and text.endswith("values only)") for text in loaded.taken)
    assert "parameter tower.layers.1.weight ([8, 16]; the model's is [6, 16])" in loaded.left
    assert f"the optimizer of table '{TABLE}' (adam there, adagrad here)" in loaded.afresh
    assert "parameter tower.layers.1.bias" in loaded.afresh
    assert "the optimizer of the dense parameters (adam there, adagrad here)" in loaded.afresh
    for word in ("taken: ", "left: ", "starts afresh: "):
        assert f"{path}: {word}" in caplog.text
    mine, theirs = rows(trainer), rows(before)
    assert mine.keys() == theirs.keys()
    assert all((mine[key] == theirs[key]).all() for key in mine)
    assert trainer.fit(new, Given(batches(3))).rows == 60


def test_the_same_network_is_taken_whole_with_its_state(saved):
    path, _, before = saved
    trainer, new = sf.Trainer(sf.optim.Adam(1e-2), quiet=True), small_model(seed=3)
    loaded = trainer.load(new, path, partial=True)
    assert (loaded.left, loaded.afresh) == ((), ())
    mine, theirs = trainer.store.dense_tables()["dense"], before.store.dense_tables()["dense"]
    assert mine.step == theirs.step == 5
    np.testing.assert_array_equal(mine.state, theirs.state)


def test_a_table_of_another_width_and_one_that_is_not_there(saved):
    path = saved[0]
    loaded = sf.Trainer(quiet=True).load(another(size=6), path, partial=True)
    assert f"table '{TABLE}' (rows of 4 values; the model's have 6)" in loaded.left
    assert f"table '{TABLE}'" in loaded.afresh
    own = sf.Trainer(quiet=True)

    class Own(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.users = sf.nn.SparseEmbedding("users", 2, ["C1"])
            self.tower = sf.nn.DenseTower([2, 1])

        def forward(self, batch):
            return self.tower(self.users(batch))

    loaded = own.load(Own(), path, partial=True)
    assert loaded.taken == ()
    assert "table 'users' (the checkpoint has none)" in loaded.afresh
    assert f"table '{TABLE}' (the model has none)" in loaded.left


def test_values_alone(saved):
    path, _, _ = saved
    trainer, new = sf.Trainer(sf.optim.Adam(1e-2), quiet=True), small_model(3)
    loaded = trainer.load(new, path, partial=True, values_only=True)
    assert f"the optimizer of table '{TABLE}' (as asked for)" in loaded.afresh
    assert "the optimizer of the dense parameters (as asked for)" in loaded.afresh
    (table,) = trainer.store.sparse_tables().values()
    assert table.step == trainer.store.dense_tables()["dense"].step == 0
    assert not any(part.state.any() for part in table.scan())
    assert not trainer.store.dense_tables()["dense"].state.any()


def test_on_servers(saved):
    path, _model, before = saved
    with cluster(2) as job:
        results = {}

        def work(worker: int) -> None:
            trainer = sf.Trainer(job.job(sf.optim.Adagrad(1e-2), DistributedStrategy(), worker, 2), quiet=True)
            new = another()
            results[worker] = (trainer.load(new, path, partial=True), new)

        in_threads([lambda worker=worker: work(worker) for worker in range(2)])
        alone = sf.Trainer(sf.optim.Adagrad(1e-2), quiet=True)
        new = another()
        expected = alone.load(new, path, partial=True)
        for loaded, mine in results.values():
            assert loaded == expected
            assert all(torch.equal(a, b) for a, b in zip(mine.parameters(), new.parameters(), strict=True))
        assert len(job.parameters().keys) == len(rows(before))
