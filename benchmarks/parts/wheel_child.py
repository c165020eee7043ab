"""One install of the package, measured by benchmarks/wheel.py: for each part named on its input, its processor seconds.

Its arguments are the folder of the install and that of the data.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

import sparsefleet
from sparsefleet import optim
from sparsefleet.core.schema import CRITEO
from sparsefleet.data.files import list_files
from sparsefleet.data.formats.base import BadSamples
from sparsefleet.data.formats.criteo import CriteoFormat
from sparsefleet.data.open import open_reader
from sparsefleet.kernels import levels
from sparsefleet.kernels.tower import TowerSpace
from sparsefleet.models import CTRDNN
from sparsefleet.table import SparseTable, TableSpec
from sparsefleet.train import Trainer

WIDTHS = [273, 400, 400, 400, 2]
"""CTR-DNN on Criteo rows: 26 slots of 10 values and 13 numbers, to two classes."""
KEYS = 10_000
"""Of a batch of a thousand rows."""


def tower(batch: int, calls: int, half: bool = False) -> dict[str, Callable[[], None]]:
    draw = np.random.default_rng(0)

    def values(*shape: int) -> np.ndarray:
        return draw.normal(size=shape).astype(np.float32)

    x, out, grad_out, grad_x = values(batch, WIDTHS[0]), values(batch, 2), values(batch, 2), values(batch, WIDTHS[0])
    weights = [values(to, of) / np.float32(of**0.5) for of, to in pairwise(WIDTHS)]
    biases = [values(to) for to in WIDTHS[1:]]
    grads = [np.empty_like(weight) for weight in weights], [np.empty_like(bias) for bias in biases]
    space = TowerSpace(batch, WIDTHS)

    def forward() -> None:
        for _ in range(calls):
            space.forward(x, weights, biases, out, half)

    def backward() -> None:
        for _ in range(calls):
            space.backward(x, weights, grad_out, *grads, grad_x, half)

    forward()
    kind = "bf16, " if half else ""
    return {
        f"tower forward, {kind}batch {batch}": forward,
        f"tower backward, {kind}batch {batch}": backward,
    }


def table() -> dict[str, Callable[[], None]]:
    draw = np.random.default_rng(0)
    rows = SparseTable(TableSpec("t", 10, optim.Adam(1e-3)))
    batches = [np.unique(draw.integers(0, 400_000, KEYS).astype(np.uint64)) for _ in range(40)]
    grads = [draw.normal(size=(len(keys), 10)).astype(np.float32) for keys in batches]

    def pull() -> None:
        for keys in batches:
            rows.pull(keys)

    def push() -> None:
        for keys, grad in zip(batches, grads, strict=True):
            rows.push(keys, grad)

    pull()
    return {"table pull": pull, "table push": push}


def reading(data: Path) -> dict[str, Callable[[], None]]:
    files = list_files(data / "train")

    def read() -> None:
        format = CriteoFormat()
        for unit in format.plan(files * 10, 1):
            for _ in format.read(unit, BadSamples()):
                pass

    return {"read Criteo text": read}


def training(data: Path, batch: int, precision: str = "float32") -> dict[str, Callable[[], None]]:
    def train() -> None:
        torch.manual_seed(0)
        Trainer(optim.Adam(1e-3), reporters=(), threads=1, precision=precision).fit(
            CTRDNN(), open_reader(str(data / "train"), CRITEO, batch_size=batch)
        )

    return {f"train, {'' if precision == 'float32' else f'{precision}, '}batch {batch}": train}


def main(install: Path, data: Path) -> None:
    assert Path(sparsefleet.__file__).is_relative_to(install), f"{sparsefleet.__file__} is not of {install}"
    torch.set_num_threads(1)
    parts = {**training(data, 1000), **training(data, 100), **training(data, 1000, "bf16")}
    parts |= {**tower(1000, 4), **tower(100, 40), **tower(1000, 4, True), **table(), **reading(data)}
    print(levels.chosen.level, *parts, sep="\t", flush=True)
    for line in sys.stdin:
        begin = time.process_time()
        parts[line.strip()]()
        print(time.process_time() - begin, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
