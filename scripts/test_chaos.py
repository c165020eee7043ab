"""Jobs under a killer, many rounds of each mode: is every sample in the model once, and how long does healing take?

    python scripts/test_chaos.py                     50 rounds of each mode
    python scripts/test_chaos.py --rounds 5 --modes sync,geo --seed 7 --jobs 3

Each round is a job of two servers and two trainers (`tests/healing/counting_job.py`), to which one to three things
happen at random moments: a process is killed, or two at a time, or one is stopped, as if it hung. In every second round
data is handed out in pieces. Kind `sync-model` trains CTR-DNN with Adam in sync instead, and compares the model with
an undisturbed job's: rows, their state and dense parameters, to 1e-5.

Prints a line a round and a table at the end; the status is 1 where anything was wrong, or a job did not end by itself.
Most of a round is waiting: with --jobs, rounds run side by side.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import os
import random
import re
import signal
import sys
import tempfile
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

TESTS = Path(__file__).parents[1] / "tests"
sys.path[:0] = [str(TESTS / "healing"), str(TESTS / "helpers")]

from healing_jobs import Job  # noqa: E402
from trained_rows import check_same, trained  # noqa: E402

MODES = ("sync", "half_async", "async", "geo")
SYNC_MODEL = "sync-model"
KINDS = (*MODES, SYNC_MODEL)
ROUND_SECONDS = 300.0
"""A job that has not ended by then hangs."""
TIME_OUT = 10.0
"""Of the job: so long does it take to find that a process is stopped."""
SAMPLES = 1200


@dataclass
class Round:
    kind: str
    number: int
    kills: int = 0
    stops: int = 0
    hangs: int = 0
    """1: the job had to be ended."""
    healed: list[float] = field(default_factory=list)
    """Seconds from each loss to the next step."""
    seconds: float = 0.0
    wrong: str | None = None

    def __str__(self) -> str:
        happened = f"{self.kills} kills, {self.stops} stops, {self.seconds:.0f} s"
        return f"{self.kind} {self.number}: {happened}: {self.wrong or 'every sample once'}"


def calm_model(folder: Path) -> Path:
    """The folder of an undisturbed job, for rounds of `sync-model`."""
    job = Job(folder, "sync", samples=SAMPLES, pace=0.0, restarts=0, script="click_job.py")
    if job.run().exit_code:
        raise RuntimeError(f"the undisturbed job has failed\n{job.logs()}")
    return folder


def one_round(kind: str, number: int, seed: str, calm: Path | None) -> Round:
    chance, outcome = random.Random(seed), Round(kind, number)
    since = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="sparsefleet-chaos-") as folder:
        if kind == SYNC_MODEL:
            job = Job(Path(folder), "sync", script="click_job.py")
        else:
            job = Job(Path(folder), kind, options=["leased"] if number % 2 else [])
        job.samples, job.pace, job.timeout, job.restarts = SAMPLES, 0.05, TIME_OUT, 50

        def harm(job: Job) -> None:
            roles = sorted(job.view.processes)
            what = chance.choices(["one", "two", "stop"], [6, 2, 2])[0]
            for role in chance.sample(roles, 2 if what == "two" else 1):
                if what == "stop":
                    outcome.stops += 1
                    job.send(role, signal.SIGSTOP)
                else:
                    outcome.kills += 1
                    job.send(role, signal.SIGKILL)

        def killer(job: Job) -> None:
            job.wait_for(lambda: len(job.view.processes) == 4)
            for _ in range(chance.randint(1, 3)):
                time.sleep(chance.uniform(0.5, 6.0))
                if job.outcome is None:
                    harm(job)
            while job.outcome is None and not over.wait(0.2):
                if time.monotonic() - since > ROUND_SECONDS:
                    outcome.hangs = 1
                    outcome.wrong = f"it did not end within {ROUND_SECONDS:g} s\n{job.logs()}"
                    os.kill(os.getpid(), signal.SIGINT)  # the launcher, which is this process, ends the job
                    time.sleep(5.0)

        over = threading.Event()
        try:
            ended = job.run(killer)
            if ended.exit_code:
                outcome.wrong = outcome.wrong or f"exit status {ended.exit_code}\n{job.logs()}"
            elif calm is not None:
                check_same(trained(calm), trained(Path(folder)))
            else:
                job.check_model()
        except (AssertionError, Exception) as error:
            outcome.wrong = f"{error!r}\n{job.logs()}"
        finally:
            over.set()
        found = [re.search(r"trains on, ([\d.]+) s", line) for line in job.view.said]
        outcome.healed = [float(each[1]) for each in found if each]
    outcome.seconds = time.monotonic() - since
    return outcome


def end_with_parent(parent: int) -> None:
    """A round must not outlive the script, if that is killed: its launcher ends the job then."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def table_of(rounds: list[Round]) -> str:
    lines = ["kind        rounds  kills  stops  wrong  hangs  healed after (s): p50  p90  most"]
    for kind in dict.fromkeys(one.kind for one in rounds):
        of = [one for one in rounds if one.kind == kind]
        healed = [seconds for one in of for seconds in one.healed]
        quantiles = np.quantile(healed, [0.5, 0.9, 1.0]) if healed else [float("nan")] * 3
        kills, stops, hangs = (sum(getattr(one, name) for one in of) for name in ("kills", "stops", "hangs"))
        wrong = sum(one.wrong is not None for one in of)
        figures = f"{kind:<11} {len(of):>6} {kills:>6} {stops:>6} {wrong:>6} {hangs:>6}"
        lines.append(f"{figures}  {'  '.join(f'{one:.1f}' for one in quantiles)}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=50, help="of each mode (%(default)s)")
    parser.add_argument("--modes", default=",".join(KINDS), help="(%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments and the victims (%(default)s)")
    parser.add_argument("--jobs", type=int, default=1, help="rounds side by side (%(default)s)")
    options = parser.parse_args()
    kinds = options.modes.split(",")
    if unknown := set(kinds) - set(KINDS):
        parser.error(f"--modes {', '.join(sorted(unknown))}: choose of {', '.join(KINDS)}")
    if options.jobs < 1 or options.rounds < 1:
        parser.error("--jobs and --rounds must be 1 or above")
    since, rounds = time.monotonic(), list[Round]()
    # Each launcher is the main thread of a process of its own: it handles signals, and adopts orphans.
    context = multiprocessing.get_context("spawn")
    processes = ProcessPoolExecutor(options.jobs, context, initializer=end_with_parent, initargs=(os.getpid(),))
    with tempfile.TemporaryDirectory(prefix="sparsefleet-calm-") as folder, processes:
        calm = processes.submit(calm_model, Path(folder)).result() if SYNC_MODEL in kinds else None
        under_way = []
        for kind in kinds:
            start = functools.partial(processes.submit, one_round, kind)
            against = calm if kind == SYNC_MODEL else None
            under_way += [start(n, f"{options.seed} {kind} {n}", against) for n in range(options.rounds)]
        for future in under_way:
            rounds.append(future.result())
            print(rounds[-1], flush=True)
    print(f"\n{table_of(rounds)}")
    print(f"{len(rounds)} rounds in {time.monotonic() - since:.0f} s, {options.jobs} at a time")
    return 1 if any(one.wrong for one in rounds) else 0


if __name__ == "__main__":
    sys.exit(main())
