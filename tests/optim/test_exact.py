"""Rules with exact=True: what they are to tables, blocks, files and modes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from sparsefleet import optim
from sparsefleet.core.errors import ConfigError, StoreError
from sparsefleet.core.initializer import Uniform
from sparsefleet.fleet import DistributedStrategy, Role
from sparsefleet.fleet.optimizer import FleetWorkplace
from sparsefleet.optim.schedule import ExponentialDecay, LinearWarmup
from sparsefleet.store import LocalStore
from sparsefleet.store.base import RunFacts
from sparsefleet.table import DenseTable, SparseTable, TableSpec

L2 = optim.Adam(1e-3, weight_decay=1e-5, exact=True, schedule=LinearWarmup(10, ExponentialDecay(50, 0.5)))
STEPS = 200


def table_of(rule=L2, dim=10, spread=0.05):
    return SparseTable(TableSpec("ads", dim, rule, Uniform(-spread, spread)))


def u64(values):
    return np.array(values, np.uint64)


def gradients(step, rows, dim=10):
    return (np.random.default_rng(step).standard_normal((rows, dim)) * 1e-3).astype(np.float32)


def touched_at(step):
    return u64([0, 1 + step % 5] if step % 7 else [0, 1 + step % 5, 40 + step])


def push(table, first, last):
    for step in range(first, last + 1):
        keys = touched_at(step)
        table.pull(keys)
        table.push(keys, gradients(step, len(keys)))


def rows_of(table):
    rows = {}
    for part in table.scan():
        for i, key in enumerate(part.keys.tolist()):
            rows[key] = (part.values[i].tobytes(), part.state[i].tobytes(), int(part.touched[i]))
    return rows


def test_a_table_moves_as_torch_moves_a_dense_one_through_a_schedule():
    table, everything = table_of(), np.arange(300, dtype=np.uint64)
    theirs = torch.nn.Parameter(torch.from_numpy(table_of().pull(everything)))
    optimizer = torch.optim.Adam([theirs], weight_decay=1e-5)
    for step in range(1, STEPS + 1):
        keys = touched_at(step)
        np.testing.assert_allclose(table.pull(keys), theirs.detach().numpy()[keys.astype(int)], rtol=0, atol=1e-5)
        grads = gradients(step, len(keys))
        dense = torch.zeros_like(theirs)
        dense[keys.astype(int)] = torch.from_numpy(grads)
        theirs.grad, optimizer.param_groups[0]["lr"] = dense, L2.rate(step)
        optimizer.step()
        table.push(keys, grads)
    # Rows that are met for the first time now, too: in a dense table they have always been there.
    np.testing.assert_allclose(table.pull(everything), theirs.detach().numpy(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("cut", [1, 77, 130])
def test_a_checkpoint_goes_on_to_the_same_bits(tmp_path, cut):
    whole = table_of()
    push(whole, 1, STEPS)
    store = LocalStore()
    store.create_table(whole.spec)
    push(store.sparse_tables()["ads"], 1, cut)
    before = rows_of(store.sparse_tables()["ads"])
    store.save(str(tmp_path / "c"), RunFacts(step=cut))
    other = LocalStore()
    other.create_table(whole.spec)
    other.load(str(tmp_path / "c"))
    resumed = other.sparse_tables()["ads"]
    assert rows_of(resumed) == before  # what is saved is caught up
    push(resumed, cut + 1, STEPS)
    assert rows_of(resumed) == rows_of(whole)


def test_rows_trained_lazily_go_on_exactly_from_where_they_are(tmp_path):
    store = LocalStore()
    store.create_table(replace(table_of().spec, rule=replace(L2, exact=False)))
    lazy = store.sparse_tables()["ads"]
    push(lazy, 1, 60)
    store.save(str(tmp_path / "c"), RunFacts(step=60))
    other = LocalStore()
    other.create_table(table_of().spec)
    other.load(str(tmp_path / "c"))
    table, keys = other.sparse_tables()["ads"], u64([3])
    np.testing.assert_array_equal(table.pull(keys), lazy.pull(keys))
    table.push(keys[:0], gradients(1, 0))
    assert not np.array_equal(table.pull(keys), lazy.pull(keys))


def test_a_rule_that_moves_no_idle_row_is_exact_as_it_is():
    lazy, exact = table_of(optim.Adagrad(0.1)), table_of(optim.Adagrad(0.1, exact=True))
    for table in (lazy, exact):
        push(table, 1, 30)
    assert not exact.exact
    assert rows_of(lazy) == rows_of(exact)


def test_exact_is_the_tables_alone_and_is_told_where_it_is_so():
    assert DenseTable("net", np.zeros(3, np.float32), L2).rule == replace(L2, exact=False)
    assert optim.from_dict(L2.to_dict()) == L2
    assert "exact" not in optim.Adam().to_dict()
    assert optim.from_dict(optim.RowwiseAdagrad(exact=True).to_dict()) == optim.RowwiseAdagrad(exact=True)


def test_what_has_no_meaning_is_refused():
    with pytest.raises(ConfigError, match="ftrl cannot be exact"):
        optim.FTRL(0.1, exact=True)
    with pytest.raises(ConfigError, match="exact='yes' must be True or False"):
        optim.Adam(exact="yes")
    trainer = Role.worker(0, 2, ("127.0.0.1:1",))
    geo = FleetWorkplace(L2, DistributedStrategy(mode="geo").resolved(), trainer)
    with pytest.raises(ConfigError, match="exact=True does not work in mode geo"):
        geo.kept_by_store(L2)
    with pytest.raises(ConfigError, match="clip_norm=0 must be a number above 0"):
        DistributedStrategy(clip_norm=0)
    with pytest.raises(StoreError, match="is exact; values cannot just be added to"):
        table_of(optim.SGD(0.1, weight_decay=0.1, exact=True)).add(u64([1]), np.zeros((1, 10), np.float32))
