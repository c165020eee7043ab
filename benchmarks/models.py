"""The models of the shelf: samples a second in training, beside the model's dense part alone in plain torch.

    python benchmarks/models.py                       all of them, some minutes
    python benchmarks/models.py deepfm din --quick    some of them, shorter
    python benchmarks/models.py --fuxictr PYTHON      and beside FuxiCTR's loop; PYTHON: of an environment that has it
    python benchmarks/models.py --processor           one thread each, by processor time: while others use the machine
    python benchmarks/models.py lr fm --batch 100     batches of another size than 1000; several: one table each
    python benchmarks/models.py --set hidden=64,64,64 networks of another size, where a model has that setting
    python benchmarks/models.py --precision bf16      our networks in bfloat16, the others as they are
    python benchmarks/models.py --quality             test AUC, group AUC and log loss of all, one process and 2 x 2
    python benchmarks/models.py --full --quick        both tables of all models, in one go

Ours: two training threads (Hogwild), Adam, samples in memory, 26 slots of one value (of DIN the last one a
history of up to 20) and 13 numbers, keys drawn from a million with Zipf's law; pulling and pushing rows is within. The
partner: the same network from pooled vectors on, plain torch layers, gradients to the vectors too, fused Adam; two
replicas, each in a process of its own, with nothing to look up. Machines are noisy: both run in turn, several times,
and the median of the ratios counts. FuxiCTR (`peers/fuxictr_models.py`) is measured in the same turns: the same
network, dense Adam over tables of a million rows, as many threads. Both sides count the weights of their network and
the values that a key has in tables; where they differ, the table shows both. A step of FuxiCTR costs as much as the
whole tables do, whatever the batch: its speed, and with it the ratio, depends on the size of a batch.

Quality is `parts/model_quality.py`: all models on the same events of users, by `sparsefleet train`.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch.nn import functional

from parts import model_quality
from sparsefleet.core.batch import Batch
from sparsefleet.core.schema import DenseFeature, Schema, Slot
from sparsefleet.data.base import BatchStream, Epoch, Reader
from sparsefleet.models import CTRDNN, SHELF, ModelInputs
from sparsefleet.models.settings import from_texts, has_setting
from sparsefleet.nn.embedding import embeddings
from sparsefleet.nn.precision import PRECISIONS
from sparsefleet.nn.tower import layer_by_layer
from sparsefleet.optim import Adam
from sparsefleet.train import Trainer

SLOTS = tuple(f"C{index}" for index in range(1, 27))
DENSE, KEYS, HISTORY = 13, 1_000_000, 20
BATCH = 1000
"""By default."""
STEPS = 16
"""Batches in memory, at 1000 samples; of smaller ones as many more, so that all sizes see the same keys."""
MANY = ("shared_bottom", "mmoe", "esmm")
WANTED = 0.8
WANTED_OF_FUXICTR = {"lr": 20, "fm": 20, "dnn": 20, "deepfm": 20}
"""How many times as fast; all others 5 times."""
HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Manner:
    """How a speed is measured."""

    batch: int
    seconds: float
    threads: int = 2
    by_processor: bool = False
    """Samples a second of processor time. With one thread: threads of torch that wait for each other use it, too."""
    settings: tuple[tuple[str, str], ...] = ()
    """Of networks, as texts; a model leaves out those that it does not have."""
    precision: str = "float32"
    """Of our dense networks; the others' are float32, as they are by default."""


@dataclass(frozen=True)
class Size:
    """Of a network: on both sides the same, if it is the same network."""

    row: int
    """Values that a key has in all tables together."""
    weights: int
    """All that is trained besides the tables."""


def make(name: str, manner: Manner) -> Any:
    kind = SHELF[name]
    given = {key: text for key, text in manner.settings if has_setting(kind, key)}
    settings: dict[str, Any] = from_texts(kind, given)
    if kind is CTRDNN:
        return CTRDNN.from_schema(InMemory.schema, **settings)
    if name == "din":
        settings |= {"history": (SLOTS[-1],), "target": (SLOTS[0],), "max_history": HISTORY}
    inputs = ModelInputs(SLOTS, DENSE, ("click", "buy") if name in MANY else ("label",))
    made: Any = kind
    return made(inputs, made.Settings(**settings))


def samples(name: str, count: int, seed: int, batch: int = BATCH) -> list[Batch]:
    random = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        lengths = np.ones((batch, len(SLOTS)), np.int64)
        if name == "din":
            lengths[:, -1] = random.integers(0, HISTORY + 1, batch)
        offsets = np.concatenate([[0], np.cumsum(lengths.ravel())])
        keys = (random.zipf(1.2, offsets[-1]) % KEYS).astype(np.uint64)
        labels = (random.random((batch, 2)) < 0.3).astype(np.float32)
        labels[labels[:, 0] == 0, 1] = np.nan
        dense = random.random((batch, DENSE)).astype(np.float32)
        made.append(Batch(labels if name in MANY else labels[:, 0].copy(), dense, keys, offsets, SLOTS))
    return made


class _Stream(BatchStream):
    def __init__(self, batches: list[Batch], seconds: float) -> None:
        self._batches, self._end, self._turn = batches, time.perf_counter() + seconds, 0

    def __next__(self) -> Batch:
        if time.perf_counter() >= self._end:
            raise StopIteration
        self._turn += 1
        return self._batches[self._turn % len(self._batches)]


class InMemory(Reader):
    """The same batches again and again, for so many seconds."""

    schema = Schema(tuple(DenseFeature(f"I{index}") for index in range(DENSE)), tuple(map(Slot, SLOTS)))

    def __init__(self, batches: list[Batch], seconds: float) -> None:
        self._batches, self.seconds, self.batch_size = batches, seconds, len(batches[0])

    def epoch(self, threads: int = 1) -> Epoch:
        return Epoch([_Stream(self._batches[index::threads], self.seconds) for index in range(threads)])

    def consumed(self, batch: Batch) -> None:
        """Not kept."""

    def position(self) -> dict[str, Any]:
        return {}

    def seek(self, position: Mapping[str, Any]) -> None:
        assert not position


def size_of(name: str, manner: Manner) -> Size:
    model = make(name, manner)
    tables = {module.table: module.dim for module in embeddings(model)}
    return Size(sum(tables.values()), sum(each.numel() for each in model.parameters()))


def ours(name: str, manner: Manner) -> float:
    torch.manual_seed(0)
    model = make(name, manner)
    trainer = Trainer(Adam(1e-3), threads=manner.threads, precision=manner.precision, reporters=())
    reader = InMemory(samples(name, max(STEPS, STEPS * 1000 // manner.batch), 0, manner.batch), 0.5)
    trainer.fit(model, reader)  # rows are made, buffers too
    reader.seconds = manner.seconds
    began = time.process_time()
    done = trainer.fit(model, reader)
    return done.rows / (time.process_time() - began) if manner.by_processor else done.samples_per_s


class _Fed:
    """What a model gets for its batch where its vectors are given."""

    def __init__(self, dense: torch.Tensor) -> None:
        self.dense, self.slots = dense, SLOTS

    def __len__(self) -> int:
        return len(self.dense)


def dense_replica(name: str, manner: Manner, ready: Barrier, out: Queue[float]) -> None:
    batch = manner.batch
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    model = make(name, manner)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)  # type: ignore[attr-defined]
    modules = embeddings(model)
    leaves = [0.1 * torch.randn(batch, module.width) for module in modules]
    for module, leaf in zip(modules, leaves, strict=True):
        if module.pooling == "sequence":  # as many values as ours have
            lengths = torch.randint(0, HISTORY + 1, (batch, 1))
            cut = module.width // (module.dim + 1)
            leaf[:, -cut:] = (torch.arange(cut) < lengths).float()
    dense, labels = torch.rand(batch, DENSE), (torch.rand(batch, 2) < 0.3).float()

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        for module, leaf in zip(modules, leaves, strict=True):
            given = module.from_input(leaf.detach().requires_grad_())
            module.forward = lambda _, given=given: given  # type: ignore[method-assign, misc]
        with layer_by_layer():
            output = model(_Fed(dense))
        if name == "ctr_dnn":
            loss = functional.cross_entropy(output, labels[:, 0].long(), reduction="sum")
        else:
            wanted = labels if name in MANY else labels[:, 0].view(output.shape)
            loss = functional.binary_cross_entropy_with_logits(output, wanted, reduction="sum")
        loss.backward()
        optimizer.step()

    step()
    ready.wait(timeout=240)
    begin, begin_busy, rows = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - begin < manner.seconds:
        step()
        rows += batch
    by_clock, by_processor = time.perf_counter() - begin, time.process_time() - begin_busy
    out.put(rows / (by_processor if manner.by_processor else by_clock))


def plain(name: str, manner: Manner) -> float:
    context = multiprocessing.get_context("spawn")
    out, ready = context.Queue(), context.Barrier(manner.threads)
    children = [context.Process(target=dense_replica, args=(name, manner, ready, out)) for _ in range(manner.threads)]
    for child in children:
        child.start()
    rates = [out.get(timeout=300) for _ in children]
    for child in children:
        child.join()
    return float(sum(rates))


def fuxictr(python: str, name: str, manner: Manner) -> tuple[float, Size]:
    described = make(name, manner).describe()
    settings = json.dumps(described.get("settings", described))
    command = [python, str(HERE / "peers" / "fuxictr_models.py"), name, settings]
    command += map(str, (manner.seconds, manner.threads, manner.batch, DENSE))
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    found = json.loads(done.stdout.strip().splitlines()[-1])
    speed = found["by_processor" if manner.by_processor else "by_clock"]
    return float(speed), Size(found["row"], found["weights"])


def speeds(names: list[str], manner: Manner, turns: int, python: str | None) -> Table:
    how = "one thread, by processor time" if manner.by_processor else f"{manner.threads} threads"
    table = Table(
        *("model", "samples/s", "dense part alone, torch", "ratio", f"{WANTED} wanted"),
        title=", ".join([f"batch {manner.batch}", how, f"ours in {manner.precision}", *map("=".join, manner.settings)]),
    )
    for column in ("FuxiCTR", "times as fast", "wanted", "weights", "values a key") if python else ():
        table.add_column(column)
    tell = Console(stderr=True).print
    for name in names:
        tell(f"measuring: {name}, batch {manner.batch}")
        own_size = their_size = size_of(name, manner)
        taken = []
        for _ in range(turns):
            mine, other, theirs = ours(name, manner), plain(name, manner), 1.0
            if python:
                theirs, their_size = fuxictr(python, name, manner)
            taken.append((mine, other, theirs))
            beside = f"; FuxiCTR {theirs:,.0f}" if python else ""
            tell(f"  a turn: {mine:,.0f} samples/s; the dense part alone in torch {other:,.0f}{beside}")
        mine, other, theirs = (statistics.median(column) for column in zip(*taken, strict=True))
        ratio = statistics.median(own / dense for own, dense, _ in taken)
        times, wanted = statistics.median(own / fuxi for own, _, fuxi in taken), WANTED_OF_FUXICTR.get(name, 5)
        cells = [name, f"{mine:,.0f}", f"{other:,.0f}", f"{ratio:.2f}", _met(ratio >= WANTED)]
        if python:
            cells += [f"{theirs:,.0f}", f"{times:.1f}", f"{wanted}: {_met(times >= wanted)}"]
            cells += [_both(own_size.weights, their_size.weights), _both(own_size.row, their_size.row)]
        table.add_row(*cells)
    return table


def _both(own: int, theirs: int) -> str:
    return f"{own:,}" if own == theirs else f"[red]{own:,}, FuxiCTR {theirs:,}[/]"


def _met(yes: bool) -> str:
    return "[green]yes[/]" if yes else "[red]no[/]"


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    arguments.add_argument("models", nargs="*", metavar="MODEL", help=f"any of {', '.join(SHELF)}; default: all")
    arguments.add_argument("--quick", action="store_true", help="one short turn each, noisier figures")
    arguments.add_argument("--seconds", type=float, help="of each measurement; default: 6, with --quick 3")
    arguments.add_argument(
        "--batch",
        type=int,
        nargs="+",
        default=[BATCH],
        metavar="SAMPLES",
        help="sizes of a batch; default: %(default)s",
    )
    arguments.add_argument(
        "--processor", action="store_true", help="one thread each, samples a second of processor time"
    )
    arguments.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of networks, as `sparsefleet train --set` takes it; models that lack it go without",
    )
    arguments.add_argument(
        "--precision",
        choices=PRECISIONS,
        default="float32",
        help="of our networks, as `sparsefleet train` takes it; the others compute in float32; default: %(default)s",
    )
    arguments.add_argument("--fuxictr", metavar="PYTHON", help="the Python of an environment that has fuxictr")
    arguments.add_argument("--quality", action="store_true", help="how well models learn, in place of speeds alone")
    arguments.add_argument("--full", action="store_true", help="both: speeds, and how well models learn")
    arguments.add_argument("--rows", type=int, default=60_000, help="events of --quality; default: %(default)s")
    arguments.add_argument("--epochs", type=int, default=2, help="of --quality")
    arguments.add_argument(
        "--data", type=Path, help="where --quality keeps its events (a folder that goes, if not said)"
    )
    given = arguments.parse_args()
    if unknown := [name for name in given.models if name not in SHELF]:
        arguments.error(f"no model {', '.join(unknown)}; choose from {', '.join(SHELF)}")
    settings = tuple((key, value) for key, _, value in (each.partition("=") for each in given.set))
    for key, value in settings:
        if not value or not any(has_setting(kind, key) for kind in SHELF.values()):
            arguments.error(f"--set {key}={value}: give NAME=VALUE with a setting of a model (sparsefleet models)")
    if settings and (given.quality or given.full):
        arguments.error("--set is for speeds alone: leave out --quality and --full")
    if min(given.batch) < 1:
        arguments.error(f"--batch {min(given.batch)}: a batch has at least one sample")
    names, began, tables = given.models or list(SHELF), time.perf_counter(), []
    if given.quality or given.full:
        size = model_quality.Size(given.rows, given.epochs)
        with tempfile.TemporaryDirectory() as folder:
            tables += [model_quality.table(names, given.data or Path(folder), size, Console(stderr=True).print)]
    if given.full or not given.quality:
        turns, seconds = (1, 3.0) if given.quick else (3, 6.0)
        seconds = given.seconds or seconds
        manners = [
            Manner(batch, seconds, 1 if given.processor else 2, given.processor, settings, given.precision)
            for batch in given.batch
        ]
        tables += [speeds(names, manner, turns, given.fuxictr) for manner in manners]
    for table in tables:
        Console(width=130).print(table)
    minutes, (one, five, _) = (time.perf_counter() - began) / 60, os.getloadavg()
    print(f"{minutes:.1f} minutes; load of the machine at the end {one:.1f}, over five minutes {five:.1f}")


if __name__ == "__main__":
    main()
