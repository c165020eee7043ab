"""What healing costs: cuts of a job with ten million rows, and the time from a server's death to the next step.

    python benchmarks/cuts.py                    about ten minutes, and 6 GB of disk
    python benchmarks/cuts.py --rows 1000000     smaller

- **Bytes**: a delta after 1 % of the rows have changed, against a whole cut. Wanted: at most 3 %.
- **Processor seconds** of servers and trainer for the same pushes (5 % of the rows are changed), with a cut and
  without, in turn. Between two whole cuts come as many deltas as `checkpoint/chain.py` lets stand on one; their mean is
  what a cut costs. Wanted: at most 1 % of what a job on this machine's cores has between two cuts a minute apart.
- **Recovery**: SIGKILL of one of two servers of a real job, until the launcher sees a step of the new attempt. Wanted:
  at most 10 s plus the time to load that server's share.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent))

from parts.cuts_job import SPEC
from sparsefleet import launch, optim
from sparsefleet.checkpoint import Chain, ChainPolicy, Checkpoint, prune
from sparsefleet.core.keyed_rows import KeyedRows
from sparsefleet.launch.process import RoleProcess
from sparsefleet.launch.view import View
from sparsefleet.store.base import RunFacts
from sparsefleet.store.partition import Share
from sparsefleet.store.remote import RemoteConfig, RemoteStore
from sparsefleet.store.shards import load_table
from sparsefleet.table import SparseTable
from sparsefleet.train.job_cuts import KEPT

SERVERS = 2
PUSHED = 1 << 16
"""Rows of a push."""
APART = 60.0
"""Seconds between two cuts."""
LIMIT = 900.0


@contextlib.contextmanager
def servers() -> Iterator[tuple[RemoteStore, list[int]]]:
    """Real servers, and a trainer's store; with the servers' process ids."""
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "sparsefleet.server", "--index", str(index), "--watch-parent"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for index in range(SERVERS)
    ]
    try:
        endpoints = tuple(json.loads(process.stdout.readline())["endpoint"] for process in started if process.stdout)
        with contextlib.closing(RemoteStore(RemoteConfig(endpoints, timeout=LIMIT))) as store:
            yield store, [process.pid for process in started]
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait(30)


def processor_seconds(pids: Sequence[int]) -> float:
    """Of these processes and of this one, so far."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    mine = os.times()
    return ticks / os.sysconf("SC_CLK_TCK") + mine.user + mine.system


def push(store: RemoteStore, keys: np.ndarray) -> None:
    for start in range(0, len(keys), PUSHED):
        part = keys[start : start + PUSHED]
        store.push_step({SPEC.name: KeyedRows(part, np.ones((len(part), SPEC.dim), np.float32))}, steps=1).wait()


class Cuts:
    """Cuts as a job that heals takes them."""

    def __init__(self, store: RemoteStore, folder: Path) -> None:
        self._store, self._folder, self.chain, self._step = store, folder, Chain(), 0

    def take(self, *, whole: bool = False) -> tuple[int, float]:
        """One more; its bytes, and seconds by the clock."""
        begun = time.monotonic()
        self._step += 1
        path = str(self._folder / f"step-{self._step:08d}")
        since = None if whole else self.chain.base_for(path)
        with self._store.hold():
            cut = self._store.cut()
        with cut:
            manifest = cut.write(path, RunFacts(step=self._step), since=since)
        assert whole == (manifest.base is None)
        self.chain.written(path, manifest)
        prune(self._folder, KEPT)
        return sum(entry.bytes for entry in manifest.files), time.monotonic() - begun


def processor_seconds_of_cuts(rows: int, folder: Path, rounds: int) -> dict[str, float]:
    everything = np.arange(rows, dtype=np.uint64)
    chance = np.random.default_rng(1)
    with servers() as (store, pids):
        store.create_table(SPEC)
        push(store, everything)
        cuts = Cuts(store, folder)

        def spent(changed: np.ndarray, cut: bool, whole: bool = False) -> tuple[float, int, float]:
            """Processor seconds for pushing to these rows, with a cut under way or without; the cut's bytes, and its
            seconds by the clock."""
            took: list[tuple[int, float]] = []
            before = processor_seconds(pids)
            thread = threading.Thread(target=lambda: took.append(cuts.take(whole=whole)))
            if cut:
                thread.start()
            push(store, changed)
            if cut:
                thread.join()
            return processor_seconds(pids) - before, *(took[0] if took else (0, 0.0))

        def some(share: float) -> np.ndarray:
            return np.sort(chance.choice(everything, int(rows * share), replace=False))

        whole_bytes, _ = cuts.take(whole=True)
        push(store, some(0.01))
        delta_bytes, _ = cuts.take()
        whole, deltas, sizes, calm, clock = [], [], [], [], []
        for number in range(rounds):
            calm.append(spent(some(0.05), cut=False)[0])
            if number < max(2, rounds // 3):
                whole.append(spent(some(0.05), cut=True, whole=True)[0])
            cuts.take()  # what was pushed so far: the next delta is of 5 % alone
            push(store, some(0.05))
            seconds, size, took = spent(some(0.05), cut=True)
            deltas.append(seconds)
            sizes.append(size)
            clock.append(took)
    base = statistics.median(calm)
    of_whole, of_delta = statistics.median(whole) - base, statistics.median(deltas) - base
    policy = ChainPolicy()
    between = min(policy.deltas, int(policy.share * whole_bytes / statistics.median(sizes)) + 1)
    return {
        "whole_bytes": whole_bytes,
        "delta_bytes": delta_bytes,
        "pushes_s": base,
        "whole_s": of_whole,
        "between": between,
        "delta_s": of_delta,
        "mean_s": (of_whole + between * of_delta) / (1 + between),
        "delta_clock_s": statistics.median(clock),
    }


class Killer(View):
    """Kills a server once the job has trained for a while, and hears when it trains on."""

    wants_progress = False

    def __init__(self) -> None:
        self.said: list[str] = []
        self._servers: list[RoleProcess] = []
        self.killed = False

    def say(self, text: str) -> None:
        self.said.append(text)
        Console(stderr=True).print(text, markup=False, highlight=False)

    def quote(self, lines: Sequence[str]) -> None:
        self.said += lines

    def update(self, processes: Sequence[RoleProcess]) -> None:
        self._servers = [process for process in processes if process.role.is_server]

    def kill(self, log: Path) -> None:
        deadline = time.monotonic() + LIMIT
        while time.monotonic() < deadline:
            if log.exists() and "step 50\n" in log.read_text():
                os.kill(self._servers[1].pid, signal.SIGKILL)
                self.killed = True
                return
            time.sleep(0.1)


def recovery(rows: int, folder: Path) -> tuple[float, float]:
    """Seconds from SIGKILL of a server to the next step, and to load its share alone."""
    start = folder / "start"
    with servers() as (store, _):
        store.create_table(SPEC)
        push(store, np.arange(rows, dtype=np.uint64))
        block = np.zeros(1, np.float32)
        store.create_dense("dense", block, optim.SGD(1.0), (("all", (1,)),))
        store.save(str(start), RunFacts(step=0))
    data = folder / "data"
    data.mkdir()
    for part in range(2):
        lines = (f"1 {key} 1 1\n" for key in range(part, 40_000, 2))
        (data / f"part-{part}").write_text("".join(lines))
    view, log = Killer(), folder / "log"
    killer = threading.Thread(target=view.kill, args=(log / "workerlog.0",), daemon=True)
    killer.start()
    command = [sys.executable, str(Path(__file__).parent / "parts" / "cuts_job.py"), str(data), str(start)]
    settings = launch.RunSettings(log_dir=log, restart=launch.RestartPolicy(5, cut_every=APART))
    outcome = launch.run_local(lambda role: command, SERVERS, 2, settings, view=view)
    told = re.search(r"trains on, ([\d.]+) s after the loss", "\n".join(view.said))
    if outcome.exit_code or told is None:
        raise RuntimeError("\n".join(view.said))
    begun = time.monotonic()
    load_table(Checkpoint.open(start), SparseTable(SPEC), share=Share(1, SERVERS))
    return float(told[1]), time.monotonic() - begun


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    arguments.add_argument("--rows", type=int, default=10_000_000)
    arguments.add_argument("--rounds", type=int, default=5, help="pairs of pushes with and without a cut (%(default)s)")
    arguments.add_argument("--recovery", action="store_true", help="only the time after a kill")
    given = arguments.parse_args()
    cores = os.cpu_count() or 1
    table = Table("what", "found", "wanted", "", title=f"A job that heals, {given.rows:,} rows")

    def row(what: str, found: str, wanted: str, met: bool) -> None:
        table.add_row(what, found, wanted, "[green]yes[/]" if met else "[red]no[/]")

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if not given.recovery:
            (folder / "cuts").mkdir()
            cost = processor_seconds_of_cuts(given.rows, folder / "cuts", given.rounds)
            share = cost["delta_bytes"] / cost["whole_bytes"]
            row("bytes of a delta, 1 % changed", f"{100 * share:.2f} % of the whole", "<= 3 %", share <= 0.03)
            table.add_row("processor seconds of a whole cut", f"{cost['whole_s']:.2f}", "", "")
            table.add_row("… of a delta, 5 % changed", f"{cost['delta_s']:.2f}", "", "")
            table.add_row("… of them between two whole ones", f"{cost['between']:.0f}", "", "")
            table.add_row("a delta by the clock", f"{cost['delta_clock_s']:.2f}", "", "")
            share = cost["mean_s"] / (APART * cores)
            what = f"mean cut every {APART:g} s, of {cores} cores"
            row(what, f"{cost['mean_s']:.2f} s, {100 * share:.2f} %", "<= 1 %", share <= 0.01)
        seconds, load = recovery(given.rows, folder)
        row("SIGKILL of a server to the next step", f"{seconds:.1f} s", f"<= 10 s + {load:.1f} s", seconds <= 10 + load)
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
