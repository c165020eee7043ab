"""A tiny network, any reader over the shared rows, and what a store holds, to compare to the last bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from sparsefleet.checkpoint import Checkpoint, diff
from sparsefleet.core.schema import CRITEO
from sparsefleet.data.open import open_reader
from sparsefleet.models import CTRDNN, CTRDNNConfig
from sparsefleet.optim import Adam
from sparsefleet.train import SavePolicy, Trainer, TrainingState
from sparsefleet.train.binding import DENSE

BATCH = 100
TABLE = "SparseFeatFactors"


def network(seed=0, dim=4, hidden=(16, 16)):
    torch.manual_seed(seed)
    return CTRDNN(config=CTRDNNConfig(embedding_size=dim, hidden=hidden))


def rows_of(clicks: Path, kind="queue", *, part="train", shuffle_seed=None, **settings):
    return open_reader(clicks / part, CRITEO, kind=kind, batch_size=BATCH, shuffle_seed=shuffle_seed, **settings)


def trainer(threads=1, seed=0, rule=None, **settings):
    return Trainer(rule or Adam(0.01), threads=threads, seed=seed, **settings)


def table_rows(store, name=TABLE):
    """Key -> (values, state, seen), as bytes."""
    found = {}
    for rows in store.sparse_tables()[name].scan():
        for index, key in enumerate(rows.keys.tolist()):
            found[key] = (rows.values[index].tobytes(), rows.state[index].tobytes(), int(rows.seen[index]))
    return found


def everything(job: Trainer):
    """All that a store holds, to the last bit."""
    store = job.store
    blocks = {name: (b.values.tobytes(), b.state.tobytes(), b.step) for name, b in store.dense_tables().items()}
    tables = {name: (table.step, table_rows(store, name)) for name, table in store.sparse_tables().items()}
    return blocks, tables


def assert_same_bits(one: Trainer, other: Trainer):
    (blocks, tables), (other_blocks, other_tables) = everything(one), everything(other)
    assert blocks == other_blocks
    assert tables.keys() == other_tables.keys()
    for name, (step, rows) in tables.items():
        assert step == other_tables[name][0]
        assert rows == other_tables[name][1], f"rows of {name} differ"


def assert_same_checkpoints(one, other):
    """Tables, optimizer state, parameters, buffers; and the metrics and the place of the run."""
    found = diff(str(one), str(other))
    assert found["same"], found
    first, second = Checkpoint.open(str(one)).manifest, Checkpoint.open(str(other)).manifest
    assert first.extra == second.extra
    assert first.positions == second.positions


def state_of(path) -> TrainingState:
    manifest = Checkpoint.open(str(path)).manifest
    training = manifest.extra["training"]
    return TrainingState(manifest.step, training["epoch"], manifest.positions.get("0", {}), metrics=training["metrics"])


def every(folder, steps=None, **settings) -> SavePolicy:
    return SavePolicy(str(folder), every_steps=steps, keep=100, **settings)


def dense_values(job: Trainer) -> np.ndarray:
    return job.store.dense_tables()[DENSE].values
