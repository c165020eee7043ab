"""Training from Python objects: no files, no format. `PyReader` reads a generator ahead, `Feeder` takes a list.

    python examples/plain_python.py

A sample is a dict: the label, raw dense values by name (normalised as the schema says), and per slot one value or a
list of values. Text is hashed as the schema says; whole numbers as their decimal text.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from typing import Any

import torch

import sparsefleet as sf

SCHEMA = sf.Schema(
    dense=(sf.DenseFeature("age", minimum=18.0, diff=60.0),),
    slots=(sf.Slot("city"), sf.Slot("tags")),
    label="clicked",
    sparse_feature_dim=0,
)
CITIES = ["Lima", "Oslo", "Pune", "Rome"]
TAGS = ["books", "cars", "food", "music", "sport"]


def views(rows: int, seed: int) -> Iterator[dict[str, Any]]:
    """The same rows every time it is called with the same arguments: a resumed run depends on that."""
    draw = random.Random(seed)
    for _ in range(rows):
        city, tags = draw.choice(CITIES), draw.sample(TAGS, draw.randrange(0, 4))
        age = draw.randrange(18, 80)
        chance = 0.1 + 0.3 * ("music" in tags) + 0.2 * (city == "Oslo") + 0.2 * (age < 30)
        yield {"clicked": int(draw.random() < chance), "age": age, "city": city, "tags": tags}


def main() -> None:
    options = argparse.ArgumentParser(description="Train from Python dicts.")
    options.add_argument("--rows", type=int, default=30_000, help="rows of an epoch (%(default)s)")
    given = options.parse_args()

    # A function that returns a fresh generator: every epoch calls it once, in a thread of its own.
    train = sf.PyReader(SCHEMA, lambda: views(given.rows, seed=1), batch_size=200)
    # Nothing in the background: batches are made when they are asked for.
    test = sf.Feeder(SCHEMA, list(views(max(given.rows // 10, 1000), seed=2)), batch_size=200)

    torch.manual_seed(0)
    model = sf.CTRDNN(SCHEMA.slot_names, len(SCHEMA.dense), sf.CTRDNNConfig(embedding_size=4, hidden=(32, 16)))
    trainer = sf.Trainer(sf.optim.Adagrad(0.05))
    result = trainer.fit(model, train, epochs=2, test=test)
    assert result.test is not None
    print(f"test AUC {result.test['auc']:.4f}")

    one = sf.Feeder(SCHEMA, [{"age": 24, "city": "Oslo", "tags": ["music"]}])
    for _, probabilities in trainer.predict(model, one):
        print(f"click probability {probabilities[0]:.3f}")


if __name__ == "__main__":
    sf.plain_errors()
    main()
