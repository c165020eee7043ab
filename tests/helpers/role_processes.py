"""A job of real processes for tests of faults: servers and trainers, on free loopback ports, with small data.

Roles are forked from a process that has everything imported, so that a job starts in a moment.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import ClassVar

from role_waits import until
from server_processes import HELPERS, SOURCES
from waiting import wait_until

from sparsefleet.fleet.roles import ROLE_VARIABLES, Role
from sparsefleet.launch.addresses import HeldEndpoints

_CONTEXT = multiprocessing.get_context("forkserver")


@dataclass(frozen=True)
class Options:
    """What the script of a role does."""

    mode: str = "async"
    steps: int = 40
    epochs: int = 1
    pace: float = 0.02
    """Seconds of a step."""
    timeout: float = 3.0
    connect_timeout: float = 20.0
    lost_trainer: str | None = None
    save: str | None = None
    start_from: str | None = None
    """A checkpoint, for fleet.init_server."""
    save_to: str | None = None
    """Where the first worker saves in the end."""
    first_key: int = 0
    hold: str | None = None
    """A file that must exist before training goes on after the second step."""
    data: str | None = None
    """A folder of Criteo files, split over the trainers; None: `steps` batches made up."""
    save_every: int | None = None
    save_at: int | None = None
    """A step after which the first worker calls fleet.save_persistables(save_to)."""
    load: float = 0.0
    """Seconds between `init_worker` and the beginning of training."""
    fail_at: int | None = None
    """A step at which training ends with an error of the script's own."""
    resume: str | None = None
    threads: int = 1
    max_merge: int = 1


class RoleJob:
    def __init__(self, folder: Path, endpoints: tuple[str, ...], workers: int, options: Options) -> None:
        self.folder, self.endpoints, self.workers, self.options = folder, endpoints, workers, options
        self.processes: dict[str, BaseProcess] = {}

    def start_all(self) -> RoleJob:
        for index in range(len(self.endpoints)):
            self.start_server(index)
        for index in range(self.workers):
            self.start_worker(index)
        return self

    def start_server(self, index: int) -> None:
        self.start(f"server{index}", Role.server(index, self.workers, self.endpoints).environment())

    def start_worker(self, index: int, **changed: object) -> None:
        role = Role.worker(index, self.workers, self.endpoints)
        self.start(f"worker{index}", role.environment(), **changed)

    def start(self, name: str, environment: dict[str, str], **changed: object) -> None:
        options = replace(self.options, **changed)  # type: ignore[arg-type]
        process = _CONTEXT.Process(target=_play, args=(environment, str(self.folder / f"{name}.log"), options))
        process.start()
        self.processes[name] = process

    def signal(self, name: str, number: signal.Signals) -> float:
        """Send it; returns when that was."""
        pid = self.processes[name].pid
        assert pid is not None
        os.kill(pid, number)
        return time.monotonic()

    def log(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text() if path.exists() else ""

    def logs(self) -> str:
        return "\n".join(f"--- {name}\n{self.log(name)}" for name in self.processes)

    def wait_until(self, condition: Callable[[], object], seconds: float = 60.0) -> None:
        wait_until(condition, seconds, lambda: f"something in these logs\n{self.logs()}")

    def wait_for_step(self, step: int, *names: str) -> None:
        self.wait_until(lambda: all(f"step {step}\n" in self.log(name) for name in names))

    def exit_of(self, name: str, within: float) -> int:
        """The status that a role ends with by itself."""
        process = self.processes[name]
        process.join(within)
        assert process.exitcode is not None, f"{name} has not ended within {within} s\n{self.logs()}"
        return process.exitcode

    def result_of(self, name: str) -> dict[str, float]:
        return json.loads(self.log(name).splitlines()[-1])

    def end(self) -> None:
        for process in self.processes.values():
            process.kill()  # ends a stopped one too
            process.join(10)
            process.close()


@contextlib.contextmanager
def role_job(folder: Path, servers: int = 2, workers: int = 2, **options: object) -> Iterator[RoleJob]:
    _start_fork_server()
    with HeldEndpoints.free(servers) as held:
        job = RoleJob(folder, held.endpoints, workers, Options(**options))  # type: ignore[arg-type]
        try:
            yield job
        finally:
            job.end()


def _start_fork_server() -> None:
    _CONTEXT.set_forkserver_preload(["role_processes", "small_jobs"])
    before = os.environ.get("PYTHONPATH")
    # It looks for what to preload by the environment alone.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HELPERS), str(SOURCES), *filter(None, [before])])
    try:
        forkserver.ensure_running()
    finally:
        os.environ["PYTHONPATH"] = before or ""
        if before is None:
            del os.environ["PYTHONPATH"]


def _play(environment: dict[str, str], log: str, options: Options) -> None:
    """A role's whole life."""
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(out, 1)
    os.dup2(out, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w", 1, closefd=False), os.fdopen(2, "w", 1, closefd=False)
    for name in ROLE_VARIABLES:
        os.environ.pop(name, None)
    os.environ.update(environment)
    try:
        _script(options)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def _script(options: Options) -> None:
    from small_jobs import Given, batches, small_model

    from sparsefleet import fleet, optim
    from sparsefleet.core.schema import CRITEO
    from sparsefleet.data.base import Reader
    from sparsefleet.data.files import list_files
    from sparsefleet.data.open import open_reader
    from sparsefleet.train import FetchHandler, SavePolicy, Trainer

    class Steps(FetchHandler):
        known: ClassVar[list[str | None]] = [None]
        """Checkpoints that this trainer has heard of."""

        def handler(self, fetched: list[object]) -> None:
            print(f"step {int(fetched[0])}")  # type: ignore[call-overload]
            connection = getattr(trainer.store, "connection", None)
            if connection is not None and connection.links[0].saved.path not in self.known:
                self.known.append(connection.links[0].saved.path)
                print(f"knows of {self.known[-1]}")
            time.sleep(options.pace)  # steps that take time: faults come while they do
            if fetched[0] == options.fail_at:
                raise ValueError("a loss that is no number")
            if options.hold and fetched[0] == 2:
                until(options.hold)
            if fetched[0] == options.save_at and fleet.is_first_worker():
                assert options.save_to
                fleet.save_persistables(options.save_to)
                print(f"saved {options.save_to}")

    fleet.init()
    strategy = fleet.DistributedStrategy(
        mode=options.mode,
        k_steps=5 if options.mode == "geo" else 2,
        max_merge=options.max_merge,
        timeout=options.timeout,
        connect_timeout=options.connect_timeout,
        lost_trainer=options.lost_trainer,
    )
    optimizer = fleet.distributed_optimizer(optim.SGD(1e-2), strategy)
    if fleet.is_server():
        fleet.init_server(options.start_from)
        fleet.run_server()
    fleet.init_worker()
    if options.load:
        print("loading")
        time.sleep(options.load)  # data that takes its time to load
    trainer = Trainer(optimizer, threads=options.threads)
    reader: Reader = Given(batches(options.steps, seed=fleet.worker_index(), first_key=options.first_key))
    if options.data:
        reader = open_reader(fleet.split_files(list_files(options.data)), CRITEO, batch_size=50)
    result = trainer.fit(
        small_model(),
        reader,
        options.epochs,
        save=SavePolicy(options.save, every_steps=options.save_every, keep=100) if options.save else None,
        resume=options.resume,
        fetch=[Steps(["step"], period_batches=1)],
    )
    if options.save_to and options.save_at is None and fleet.is_first_worker():
        fleet.save_persistables(options.save_to)
    fleet.stop_worker()
    print(json.dumps({"rows": result.rows, "auc": result.train["auc"], "lost": len(result.lost)}))
