"""A model of your own: two tables that differ in width, pooling and optimizer, and a list-valued slot.

    python examples/two_tables.py                      makes data, trains, prints the test AUC
    python examples/two_tables.py --data DIR           reads DIR/train, DIR/test and DIR/schema.json

A row is one view of an ad: who (`user`), what (`ad`), what the user clicked before (`history`, 0 to 8 ads), and a
`price`. Users and ads share no rows with the history: the same ad may mean one thing when it is shown and another when
it was clicked last week.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import nn

import sparsefleet as sf

SCHEMA = sf.Schema(
    dense=(sf.DenseFeature("price", minimum=0.0, diff=50.0),),
    slots=(sf.Slot("user"), sf.Slot("ad"), sf.Slot("history")),
    sparse_feature_dim=0,  # keep all 64 bits of a key: no collisions, the tables grow
)
USERS, ADS, HISTORY = 4000, 500, 8


class TwoTables(nn.Module):
    """[B] logits. No `loss` of its own: a single logit is trained with binary cross-entropy."""

    def __init__(self) -> None:
        super().__init__()
        # This table has no rule of its own, so it takes the trainer's.
        self.ids = sf.nn.SparseEmbedding("ids", 8, ["user", "ad"], pooling="sum")
        self.history = sf.nn.SparseEmbedding(
            "history",
            4,
            ["history"],
            pooling="mean",
            initializer=sf.nn.Normal(0.0, 0.05),
            optimizer=sf.optim.RowwiseAdagrad(0.05),
        )
        self.tower = sf.nn.DenseTower([2 * 8 + 4 + 1, 64, 32, 1])

    def forward(self, batch: sf.Batch) -> torch.Tensor:
        x = torch.cat([self.ids(batch), self.history(batch), sf.nn.dense_input(batch)], dim=1)
        return self.tower(x).squeeze(1)


def write_data(folder: Path, rows: int, test_rows: int, seed: int = 1) -> None:
    """Clicks drawn from a known model of users, ads and histories, as Parquet files beside their schema."""
    random = np.random.default_rng(seed)
    user_effect, ad_effect = random.normal(0, 0.7, USERS), random.normal(0, 0.7, ADS)
    taste = random.normal(0, 1.5, ADS)
    for name, count in (("train", rows), ("test", test_rows)):
        users = random.integers(0, USERS, count)
        ads = np.minimum(random.zipf(1.3, count) - 1, ADS - 1)
        lengths = random.integers(0, HISTORY + 1, count)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        clicked = random.integers(0, ADS, offsets[-1])
        sums = np.add.reduceat(np.append(taste[clicked], 0.0), np.minimum(offsets[:-1], len(clicked)))
        liked = np.where(lengths > 0, sums / np.maximum(lengths, 1), 0.0)
        price = random.gamma(2.0, 10.0, count)
        logit = user_effect[users] + ad_effect[ads] + liked - price / 40 - 0.5
        label = random.random(count) < 1 / (1 + np.exp(-logit))
        (folder / name).mkdir(parents=True, exist_ok=True)
        texts = pa.array([f"ad-{number}" for number in clicked])
        table = pa.table(
            {
                "label": pa.array(label),
                "price": pa.array(price.round(2)),
                "user": pa.array([f"user-{number}" for number in users]),
                "ad": pa.array([f"ad-{number}" for number in ads]),
                "history": pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), texts),
            }
        )
        pq.write_table(table, folder / name / "part-0.parquet", row_group_size=20_000)
    SCHEMA.save(folder / "schema.json")


def main() -> None:
    options = argparse.ArgumentParser(description="Train a model with two tables.")
    options.add_argument("--data", type=Path, help="folder with train/, test/ and schema.json; default: made up")
    options.add_argument("--rows", type=int, default=100_000, help="training rows to make up (%(default)s)")
    options.add_argument("--epochs", type=int, default=2)
    options.add_argument("--batch-size", type=int, default=500)
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--save", help="folder for checkpoints")
    given = options.parse_args()

    with tempfile.TemporaryDirectory() as made_up:
        folder = given.data or Path(made_up)
        if given.data is None:
            write_data(folder, given.rows, max(given.rows // 10, 1000))
        schema = sf.Schema.load(folder / "schema.json")
        train = sf.open_reader(folder / "train", schema, batch_size=given.batch_size, threads=given.threads)
        test = sf.open_reader(folder / "test", schema, batch_size=given.batch_size, threads=given.threads)

        torch.manual_seed(0)
        model = TwoTables()
        trainer = sf.Trainer(sf.optim.Adam(1e-3), threads=given.threads)
        save = sf.SavePolicy(given.save) if given.save else None
        result = trainer.fit(model, train, given.epochs, test=test, save=save)

    assert result.test is not None
    for name, table in trainer.store.stats()["tables"].items():
        print(f"table {name}: {table['rows']:,} rows, {table['memory_bytes'] / 1e6:.1f} MB")
    print(f"{result.rows:,} rows at {result.samples_per_s:,.0f} rows/s")
    print(f"test AUC {result.test['auc']:.4f}")


if __name__ == "__main__":
    sf.plain_errors()
    main()
