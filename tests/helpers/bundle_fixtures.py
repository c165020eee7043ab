"""A small trained model, its bundles and its raw rows: made once per test run."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from sparsefleet.core.schema import CRITEO
from sparsefleet.data.open import open_reader
from sparsefleet.datasets.synth import SynthSpec, synth
from sparsefleet.export import export_checkpoint
from sparsefleet.models import CTRDNN, CTRDNNConfig
from sparsefleet.optim import Adam
from sparsefleet.train import SavePolicy, Trainer

SCHEMA = CRITEO.folded(0)
NAMES = (*SCHEMA.dense_names, *SCHEMA.slot_names)
_MADE: list[Trained] = []


@dataclass(frozen=True)
class Trained:
    run: Path
    data: Path
    bundles: tuple[Path, ...]
    """Of three checkpoints of one run: v1, v2, v3."""
    rows: list[dict[str, object]]
    """The test rows, raw: numbers or None, and text."""
    lines: list[str]

    def checkpoint(self, number: int) -> Path:
        return sorted(self.run.glob("step-*"))[number - 1]


def make(folder: Path) -> Trained:
    data = folder / "data"
    synth(data, SynthSpec(3000, 300, parts=1, seed=1))
    torch.manual_seed(0)
    model = CTRDNN(config=CTRDNNConfig(embedding_size=4, hidden=(16, 16)))
    reader = open_reader(str(data / "train"), SCHEMA, batch_size=500)
    Trainer(Adam(0.01), threads=1).fit(model, reader, epochs=3, save=SavePolicy(str(folder / "run"), keep=3))
    trained = Trained(folder / "run", data, tuple(folder / f"v{n}" for n in (1, 2, 3)), *raw_rows(data / "test"))
    for number, path in enumerate(trained.bundles, 1):
        export_checkpoint(trained.checkpoint(number), path, name=f"v{number}")
    return trained


def raw_rows(folder: Path) -> tuple[list[dict[str, object]], list[str]]:
    lines = [line for file in sorted(folder.iterdir()) for line in file.read_text().splitlines()]
    rows = []
    for line in lines:
        fields = line.split("\t")[1:]
        dense = [None if text == "" else int(text) for text in fields[:13]]
        rows.append(dict(zip(NAMES, [*dense, *fields[13:]], strict=True)))
    return rows, lines


@pytest.fixture(scope="session")
def trained(tmp_path_factory) -> Trained:
    if not _MADE:
        _MADE.append(make(tmp_path_factory.mktemp("trained")))
    return _MADE[0]


def probabilities_in(path: Path) -> np.ndarray:
    with path.open() as file:
        return np.array([float(row["probability"]) for row in csv.DictReader(file)])
