"""All models on the same events: test AUC, group AUC, log loss and speed, in one process and on 2 x 2 processes.

Training is the command `sparsefleet train`; its data comes from `sparsefleet data synth --kind events`, and
`datasets/events.py` says what is planted in it. Models of one label get its schema without the second one.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.table import Table

from sparsefleet.core.schema import Schema
from sparsefleet.core.schema.text import schema_text
from sparsefleet.datasets.events import synth_events
from sparsefleet.datasets.synth import SynthSpec

MANY = ("shared_bottom", "mmoe", "esmm")
SETTINGS = {"din": ("--set", "history=history", "--set", "target=item", "--set", "max_history=15")}
ONE, JOB = "one process", "2 x 2 async"
WAYS = {ONE: ("--threads", "2"), JOB: ("--servers", "2", "--workers", "2", "--mode", "async")}


@dataclass(frozen=True)
class Size:
    """How much is trained."""

    rows: int
    epochs: int
    batch: int = 250


@dataclass(frozen=True)
class Quality:
    model: str
    way: str
    auc: float
    group_auc: float
    log_loss: float
    samples_per_s: float


def events(folder: Path, rows: int) -> tuple[Path, dict[str, Any]]:
    """Data with two schemas, schema.toml and one_label.toml, and what its best possible figures are; made once."""
    data = folder / f"events-{rows}"
    if not data.exists():
        synth_events(data, SynthSpec(rows, rows // 5, 4, 1))
        schema = Schema.load(data / "schema.toml")
        (data / "one_label.toml").write_text(schema_text(replace(schema, more_labels=()), toml=True))
    found: dict[str, Any] = json.loads((data / "synth.json").read_text())
    return data, found


def trained(model: str, way: str, data: Path, size: Size) -> Quality:
    schema = data / ("schema.toml" if model in MANY else "one_label.toml")
    command = [
        *(sys.executable, "-m", "sparsefleet", "train", "--data", data / "train", "--test-data", data / "test"),
        *("--schema", schema, "--model", model, *SETTINGS.get(model, ()), *WAYS[way], "--batch-size", size.batch),
        *("--epochs", size.epochs, "--learning-rate", 2e-3, "--seed", 1, "--json"),
    ]
    with_logs = [*command, "--log-dir", data / "log"] if way == JOB else command
    done = subprocess.run(list(map(str, with_logs)), capture_output=True, text=True, timeout=1200)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))} failed:\n{done.stderr[-2000:]}")
    found = json.loads(done.stdout.strip().splitlines()[-1])
    return Quality(model, way, found["test_auc"], found["test_gauc"], found["test_logloss"], found["samples_per_s"])


def table(models: Sequence[str], folder: Path, size: Size, tell: Callable[[str], None]) -> Table:
    data, best = events(folder, size.rows)
    made = Table(
        *("model", "AUC", "group AUC", "log loss", "samples/s", "AUC 2 x 2", "group AUC", "log loss", "samples/s"),
        title=(
            f"{size.rows:,} events of {best['users']:,} users, {size.epochs} epochs, batch {size.batch}; at best "
            f"AUC {best['best_auc']:.4f}, log loss {best['best_logloss']:.4f}"
        ),
    )
    for model in models:
        cells = [model]
        for way in WAYS:
            began = time.perf_counter()
            found = trained(model, way, data, size)
            cells += [f"{found.auc:.4f}", f"{found.group_auc:.4f}", f"{found.log_loss:.4f}"]
            cells += [f"{found.samples_per_s:,.0f}"]
            # A run that is ended early has told this much.
            seconds = time.perf_counter() - began
            tell(f"{model}, {way}: {', '.join(cells[-4:])} samples/s ({seconds:.0f} s with starting and scoring)")
        made.add_row(*cells)
    return made
