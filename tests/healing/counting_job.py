"""A script for jobs that heal. Every sample has a key of its own; with SGD of rate 1 and gradients of -1, a row's value
is how often its sample was trained. The dense parameter counts them all.

Arguments: mode, folder of data, checkpoint to write, seconds of a step, time-out; and any of these: `leased`,
`save=FOLDER` (every 3 steps), `resume=PATH`, `epochs=N`, `slow=WORKER` (its steps take ten times as long), `shares` (a
second call of `fit`, in which each trainer has a share of its own), `load=PATH` (before the first call), `again` (a
second call, on the same data, before which the first trainer saves to CHECKPOINT-1 and `score` scores all data),
`wait=WORKER` (which waits before its second call for a file `go` beside the checkpoint; `first=WORKER`: its first;
`last=WORKER`: before it saves at the end; `alone`: the others do not wait for that), `later=PATH` (the second call
resumes from it, and trains until an epoch more than EPOCHS is done), `test` (the same data is scored within the first
call), `scores=WORKER` (is killed once, when it has scored its part of it; `rescores=WORKER`: when it has scored that
for the second time, for another was lost), `meets` (the trainers meet before the first call), `stops` (the first call
stops early, after one epoch), `reload=PATH` (before the second call; `loaded=WORKER` waits after it as `wait` does),
`epoch=FOLDER` (the first call saves its epochs there; who saves is killed once, before it does).
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import torch

import sparsefleet as sf
from sparsefleet import fleet
from sparsefleet.data.files import list_files
from sparsefleet.train.run import Run

SCHEMA = sf.Schema(dense=(), slots=(sf.Slot("key"),))
BATCH = 10
DIE_AT = os.environ.get("DIE_AT")
"""The sample, by its key, that kills whoever reads it."""


class Counter(sf.Rebuildable):
    name: ClassVar[str] = "Counter"

    def __init__(self) -> None:
        super().__init__()
        self.sparse = sf.nn.SparseEmbedding("counts", 1, ["key"], initializer=sf.nn.Constant(0.0))
        self.all = torch.nn.Parameter(torch.zeros(1))

    def forward(self, batch: sf.Batch) -> torch.Tensor:
        if DIE_AT is not None and int(DIE_AT) in batch.keys:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.sparse(batch).sum(1) + self.all

    def loss(self, output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return -output.sum()

    def describe(self) -> dict[str, Any]:
        return {}

    @classmethod
    def build(cls, description: Mapping[str, Any]) -> Self:
        return cls()


class Pace(sf.FetchHandler):
    def __init__(self, seconds: float, hurry: Path) -> None:
        """hurry: once this file is there, steps take no longer than they must."""
        super().__init__(["step"], period_batches=1)
        self.seconds, self.hurry = seconds, hurry

    def handler(self, fetched: list[Any]) -> None:
        print(f"step {int(fetched[0])}", flush=True)
        if not self.hurry.exists():
            time.sleep(self.seconds)


def wait_for(file: Path) -> None:
    for _ in range(1200):
        if file.exists():
            return
        time.sleep(0.1)
    raise TimeoutError(f"{file} does not come")


def die_when_scored(crew: Any, marker: Path, times: int) -> None:
    meet, scored = crew.reduce, []

    def reduce(name: str, *more: Any) -> Any:
        if "evaluation" in name:
            scored.append(name)
        if len(scored) == times:
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return meet(name, *more)

    crew.reduce = reduce


def die_before_saving(marker: Path) -> None:
    save = Run.save_epoch

    def save_epoch(run: Run, **more: Any) -> None:
        if not marker.exists():
            marker.touch()
            with run.saver._cut_open:  # the last cut is written
                os.kill(os.getpid(), signal.SIGKILL)
        save(run, **more)

    Run.save_epoch = save_epoch  # type: ignore[method-assign]


def main(mode: str, data: str, saved: str, pace: float, timeout: float, *more: str) -> None:
    options = dict(part.partition("=")[::2] for part in more)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s.%(msecs)03d %(levelname)s %(message)s")
    fleet.init()
    strategy = fleet.DistributedStrategy(mode=mode, timeout=timeout, connect_timeout=60.0)
    if mode == "geo":
        strategy.k_steps = 3
    optimizer = fleet.distributed_optimizer(sf.optim.SGD(1.0), strategy)
    if fleet.is_server():
        fleet.init_server()
        fleet.run_server()
    leased = "leased" in options
    files = list_files(data) if leased else fleet.split_files(list_files(data))
    reader = sf.open_reader(files, SCHEMA, format_name="multislot", batch_size=BATCH, leased=leased)
    fleet.init_worker()
    trainer = sf.Trainer(optimizer, quiet=True)
    policy = sf.SavePolicy(options["save"], every_steps=3, keep=1000) if "save" in options else None
    if "epoch" in options:
        policy = sf.SavePolicy(options["epoch"])
        die_before_saving(Path(saved).parent / "died")
    if options.get("slow") == str(fleet.worker_index()):
        pace *= 10
    epochs, resume = int(options.get("epochs", 1)), options.get("resume")
    paced = Pace(pace, Path(saved).parent / "hurry")
    model = Counter()
    if "meets" in options:
        fleet.barrier_worker()
    if "load" in options:
        trainer.load(model, options["load"])
    if options.get("first") == str(fleet.worker_index()):
        print("before the first call", flush=True)
        wait_for(Path(saved).parent / "go")
    print("first", flush=True)
    test = sf.open_reader(files, SCHEMA, format_name="multislot", batch_size=BATCH, leased=leased)
    for times, option in enumerate(("scores", "rescores"), 1):
        marker = Path(saved).parent / option
        if options.get(option) == str(fleet.worker_index()) and not marker.exists():
            die_when_scored(optimizer.workplace.crew, marker, times)
    tested = test if "test" in options else None
    stops = {"valid": test, "validation": sf.Validation(patience=1)} if "stops" in options else {}
    result = trainer.fit(model, reader, epochs, fetch=[paced], save=policy, resume=resume, test=tested, **stops)
    if result.test is not None:
        print(f"tested {result.test['rows']:.0f} samples", flush=True)
    print(f"rows {result.rows}", flush=True)
    if "again" in options:
        if fleet.is_first_worker():
            fleet.save_persistables(f"{saved}-1")
        if "score" in options:
            print(f"scored {trainer.evaluate_everywhere(model, reader)['rows']:.0f} samples", flush=True)
        if options.get("wait") == str(fleet.worker_index()):
            print("between two calls", flush=True)
            wait_for(Path(saved).parent / "go")
        if "reload" in options:
            trainer.load(model, options["reload"])
            if options.get("loaded") == str(fleet.worker_index()):
                print("loaded", flush=True)
                wait_for(Path(saved).parent / "go")
        print("again", flush=True)
        later = options.get("later")
        result = trainer.fit(model, reader, epochs + 1 if later else epochs, fetch=[paced], resume=later)
        print(f"rows {result.rows}", flush=True)
    if "shares" in options:
        files = fleet.split_files(list_files(data))
        reader = sf.open_reader(files, SCHEMA, format_name="multislot", batch_size=BATCH)
        print("on shares", flush=True)
        trainer.fit(model, reader, fetch=[paced])
    first = fleet.is_first_worker()
    print("the end", flush=True)
    if options.get("last") == str(fleet.worker_index()):
        wait_for(Path(saved).parent / "go")
    if "last" in options and "alone" not in options:
        print(f"{int(fleet.util.all_reduce(1))} trainers meet", flush=True)
    if first:
        fleet.save_persistables(saved)
    if "alone" not in options:
        fleet.barrier_worker()
    fleet.stop_worker()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4]), float(sys.argv[5]), *sys.argv[6:])
