"""Looking into a run while it goes on: `FetchHandler` by seconds and by batches, and `fetch_list`.

    python examples/fetch_handler.py                   makes Criteo-like data, trains, prints what it fetches
    python examples/fetch_handler.py --data DIR        reads the Criteo rows in DIR

What can be fetched: a number of the run (epoch, step, rows, rows_per_s, loss, auc, batch_auc) or a dense parameter by
its name in the model.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

import sparsefleet as sf

BIAS = "tower.layers.3.bias"
"""Of the last layer; the names are those of `model.named_parameters()`."""


class Watch(sf.FetchHandler):
    """Called every so many seconds or batches, with one value per name of its list; never twice at once."""

    def handler(self, fetched: list[Any]) -> None:
        step, auc, bias = fetched
        print(f"step {int(step)}: auc {float(auc):.4f}, bias of the click {bias[1]:+.4f}")
        assert isinstance(bias, np.ndarray)  # return_np=False would give tensors


def main() -> None:
    options = argparse.ArgumentParser(description="Watch a run with FetchHandler.")
    options.add_argument("--data", help="folder of raw Criteo files; default: made up")
    options.add_argument("--rows", type=int, default=50_000, help="rows to make up (%(default)s)")
    options.add_argument("--every-batches", type=int, default=50)
    options.add_argument("--every-seconds", type=float, default=0.5)
    given = options.parse_args()

    with tempfile.TemporaryDirectory() as made_up:
        if given.data is None:
            sf.synth(Path(made_up), sf.SynthSpec(given.rows, 0, 2, 1))
        rows = sf.open_reader(given.data or f"{made_up}/train", sf.CRITEO, batch_size=250)
        torch.manual_seed(0)
        model, trainer = sf.CTRDNN(), sf.Trainer(sf.optim.Adam(1e-3))
        names = ["step", "auc", BIAS]

        print("by batches")
        trainer.train_from_dataset(model, rows, fetch_handler=Watch(names, period_batches=given.every_batches))
        print("by seconds")
        trainer.train_from_dataset(model, rows, fetch_handler=Watch(names, given.every_seconds))
        print("without a class")
        trainer.train_from_dataset(
            model, rows, fetch_list=["auc", "loss"], fetch_info=["auc so far", "loss"], print_period=100
        )
        trainer.infer_from_dataset(model, rows, fetch_list=["auc"], fetch_info=["auc of the rows trained on"])


if __name__ == "__main__":
    sf.plain_errors()
    main()
