"""Is --exact what FuxiCTR does? The same samples and first weights through its own loop and through ours, step by step.

Usage: python benchmarks/fuxictr.py --fuxictr PYTHON [--steps 100] [--rows 2000] [--every 10]
(PYTHON: of an environment with `pip install torch fuxictr`. FuxiCTR puts gradients of whole tables together and L2 over
whole tables into the loss, and steps dense Adam; we touch only a batch's rows and catch the others up.)

Prints the losses of both, and of our lazy rows, and ends with 1 where the losses of --exact differ by more than 1e-4.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import sparsefleet as sf
from sparsefleet.communicator import CommunicatorConfig, DirectCommunicator
from sparsefleet.core.initializer import Normal
from sparsefleet.table import SparseTable, TableSpec

HERE = Path(__file__).resolve().parent
FIELDS, DIM, HIDDEN, BATCH = 12, 16, (64, 32), 200
RATE, L2, CLIP_NORM, SEED = 1e-3, 1e-5, 10.0, 0
SLOTS = tuple(f"C{i}" for i in range(FIELDS))
FIRST = Normal(0.0, 0.01)
WITHIN = 1e-4


class DNN(torch.nn.Module):
    """[B, 1] logits of a tower over the slots' rows."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = sf.nn.SparseEmbedding("rows", DIM, SLOTS, initializer=FIRST)
        widths = [FIELDS * DIM, *HIDDEN, 1]
        layers: list[torch.nn.Module] = []
        for before, after in itertools.pairwise(widths):
            layers += [torch.nn.Linear(before, after), torch.nn.ReLU()]
        self.tower = torch.nn.Sequential(*layers[:-1])

    def forward(self, batch: sf.Batch) -> torch.Tensor:
        logits: torch.Tensor = self.tower(self.rows(batch))
        return logits


class DeepFM(DNN):
    """And the products of all pairs of slots, and a weight for each key."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = sf.nn.SparseEmbedding("wide", 1, SLOTS, initializer=FIRST)
        self.bias = torch.nn.Parameter(torch.zeros(1))

    def forward(self, batch: sf.Batch) -> torch.Tensor:
        flat = self.rows(batch)
        fields = flat.view(len(batch), FIELDS, DIM)
        pairs = (fields.sum(1) ** 2 - (fields**2).sum(1)).sum(1, keepdim=True) / 2
        logits: torch.Tensor = self.tower(flat) + pairs + self.wide(batch).sum(1, keepdim=True) + self.bias
        return logits


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--fuxictr", required=True, help="the Python of an environment that has fuxictr")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rows", type=int, default=2000, help="values of each of the 12 fields")
    parser.add_argument("--every", type=int, default=10, help="print each so many steps")
    options = parser.parse_args()
    torch.set_num_threads(1)
    worst = 0.0
    for name, kind in (("dnn", DNN), ("deepfm", DeepFM)):
        worst = max(worst, compare(name, kind, options))
    print(f"\nlosses of --exact within {worst:.1e} of FuxiCTR's; wanted: {WITHIN:g}")
    return int(worst > WITHIN)


def compare(name: str, kind: type[DNN], options: argparse.Namespace) -> float:
    ids, labels = samples(options.steps, options.rows)
    torch.manual_seed(1)
    first = kind()
    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder) / "given.npz", **given(first, ids, labels, options.rows))
        command = [options.fuxictr, str(HERE / "peers" / "fuxictr_loop.py"), folder, name]
        done = subprocess.run(command, capture_output=True, text=True, timeout=3600)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    theirs = json.loads(done.stdout.strip().splitlines()[-1])
    torch.manual_seed(1)
    exact, speed = train(kind(), ids, labels, options.rows, exact=True)
    torch.manual_seed(1)
    lazy, _ = train(kind(), ids, labels, options.rows, exact=False)
    print(f"\n{name}: {FIELDS} fields of {options.rows:,} values, dim {DIM}, batch {BATCH}, L2 {L2:g}, clipped at 10")
    print("step     FuxiCTR      --exact   difference    lazy's difference")
    for step in range(len(ids)):
        if step % options.every == 0 or step == len(ids) - 1:
            fuxi, own, other = theirs["losses"][step], exact[step], lazy[step]
            print(f"{step + 1:4d}  {fuxi:.7f}  {own:.7f}   {own - fuxi:+.1e}     {other - fuxi:+.1e}")
    print(f"samples/s: FuxiCTR {theirs['samples_per_s']:,.0f}, --exact {speed:,.0f}; one thread each")
    return float(np.abs(np.array(theirs["losses"]) - exact).max())


def samples(steps: int, rows: int) -> tuple[Any, Any]:
    """Keys of each field, a few of them frequent; labels that depend on two fields together."""
    rng = np.random.default_rng(SEED)
    ids = np.minimum(rng.zipf(1.3, (steps, BATCH, FIELDS)) - 1, rng.integers(0, rows, (steps, BATCH, FIELDS)))
    odds = ((ids[..., 0] + ids[..., 1]) % 3 == 0) * 2.0 - 1.0
    labels = (rng.random((steps, BATCH)) < 1 / (1 + np.exp(-odds))).astype(np.float32)
    return ids.astype(np.int64), labels


def rule(exact: bool) -> sf.optim.UpdateRule:
    """FuxiCTR's loss is the mean over a batch, ours the sum: Adam does not see the difference if these grow along."""
    return sf.optim.Adam(RATE, epsilon=1e-8 * BATCH, weight_decay=L2 * BATCH, exact=exact)


def given(model: DNN, ids: Any, labels: Any, rows: int) -> dict[str, Any]:
    arrays: dict[str, Any] = {"ids": ids, "labels": labels, "hidden": HIDDEN}
    arrays |= {"rate": RATE, "l2": L2, "clip_norm": CLIP_NORM}
    for table, dim in (("rows", DIM), ("wide", 1)):
        made = SparseTable(TableSpec(table, dim, rule(exact=True), FIRST, SEED))
        for i in range(FIELDS):
            arrays[f"{table}_{i}"] = made.pull(np.arange(i * rows, (i + 1) * rows, dtype=np.uint64))
    for i, layer in enumerate(each for each in model.tower if isinstance(each, torch.nn.Linear)):
        arrays[f"weight_{i}"], arrays[f"bias_{i}"] = layer.weight.detach().numpy(), layer.bias.detach().numpy()
    return arrays


class Losses(sf.FetchHandler):
    def __init__(self) -> None:
        super().__init__(["loss"], period_batches=1)
        self.means: list[float] = []
        self.began = self.ended = 0.0

    def handler(self, fetched: list[Any]) -> None:
        self.means.append(float(fetched[0]))
        self.ended = time.perf_counter()
        self.began = self.began or self.ended

    def rate(self) -> float:
        """Samples a second, without the first step: starting up is not training."""
        return (len(self.means) - 1) * BATCH / max(self.ended - self.began, 1e-9)


def train(model: DNN, ids: Any, labels: Any, rows: int, *, exact: bool) -> tuple[Any, float]:
    """The mean loss of each step, and samples a second."""
    for embedding in (each for each in model.modules() if isinstance(each, sf.nn.SparseEmbedding)):
        embedding.optimizer = rule(exact)
    keys = (ids + np.arange(FIELDS) * rows).astype(np.uint64)
    offsets = np.arange(BATCH * FIELDS + 1, dtype=np.int64)
    none = np.empty((BATCH, 0), np.float32)
    schema = sf.Schema(dense=(), slots=tuple(sf.Slot(name) for name in SLOTS))

    def batches() -> Any:
        for step in range(len(keys)):
            yield sf.Batch(labels[step], none, keys[step].reshape(-1), offsets, SLOTS)

    config = CommunicatorConfig(clip_norm=CLIP_NORM * BATCH)
    trainer = sf.Trainer(
        replace(rule(exact=False), weight_decay=0.0),
        communicator=lambda store: DirectCommunicator(store, config),
        seed=SEED,
        quiet=True,
    )
    losses = Losses()
    trainer.fit(model, sf.Feeder(schema, batches), fetch=[losses])
    return np.array(losses.means), losses.rate()


if __name__ == "__main__":
    sys.exit(main())
