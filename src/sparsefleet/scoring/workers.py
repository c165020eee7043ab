"""`sparsefleet infer --workers N`: N processes score a share each; the metrics are exactly those of one.

Shares are in the order of the input, so that the parts of the predictions, one behind the other, are in that order
too. In a folder that is gone afterwards (removed by us; by the workers where we are killed; by the next `infer` of that
place where all are):
```
lock                   locked as long as we live
job.json               Scoring, the share of every worker, the suffix of predictions
log-I                  what worker I said; the last of it is its error
progress-I             rows it has scored, and which share of its input they are
predictions-I.csv      (or .parquet)
result-I.json          metrics and skipped rows
```
"""

from __future__ import annotations

import fcntl
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

from sparsefleet.core.errors import ConfigError, SparseFleetError
from sparsefleet.metrics import MetricSet
from sparsefleet.scoring.predictions import join_predictions
from sparsefleet.scoring.scoring import Scoring
from sparsefleet.scoring.told_reader import Tell

FOLDER_PREFIX = ".sparsefleet-infer-"
LOOK_SECONDS = 0.05
AGAIN_SECONDS = 2.0
END_SECONDS = 5.0
"""How long a worker that is told to end may take before it is killed."""
STOPPED_SECONDS = 5.0
"""A look that takes so long: it is us who stood still (Ctrl-Z, a machine that slept), and most likely all of us."""
SHOWN_CHARACTERS = 2000


def score_with_workers(
    scoring: Scoring, shares: Sequence[Sequence[str]], output: Path | None, *, timeout: float, tell: Tell
) -> tuple[MetricSet, dict[str, int]]:
    """As `Scoring.score`, with one process for each share; one that scores no row for `timeout` seconds is an error."""
    # Beside the output: there is room for it there.
    where = None if output is None else output.parent
    if where is not None and not where.is_dir():
        raise ConfigError(f"--output {output}: there is no folder {where}; make it first")
    with _folder(where or Path(tempfile.gettempdir())) as folder:
        job = {"scoring": asdict(scoring), "shares": shares, "suffix": output.suffix if output else ""}
        (folder / "job.json").write_text(json.dumps(job))
        with _workers(folder, len(shares)) as processes:
            _wait_for_all(processes, folder, timeout, tell)
        parts, skipped = [], Counter[str]()
        for index in range(len(shares)):
            result = json.loads((folder / f"result-{index}.json").read_text())
            parts.append(result["metrics"])
            skipped.update(result["skipped"])
        metrics = scoring.together(parts)
        if output is not None:
            parts = [folder / f"predictions-{index}{output.suffix}" for index in range(len(shares))]
            join_predictions(parts, output)
    return metrics, dict(skipped)


@contextmanager
def _folder(where: Path) -> Iterator[Path]:
    """A folder of our own; those of processes that were killed are removed."""
    for left in where.glob(f"{FOLDER_PREFIX}*/lock"):
        try:
            with left.open() as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left.parent, ignore_errors=True)
        except OSError:
            continue  # in use, or somebody else's
    with tempfile.TemporaryDirectory(prefix=FOLDER_PREFIX, dir=where) as name:
        folder = Path(name)
        with (folder / "unlocked").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            (folder / "unlocked").rename(folder / "lock")  # only now: nobody ever finds it free
            yield folder


@contextmanager
def _workers(folder: Path, count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The running processes; none is left when this is left, however that may be."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for index in range(count):
            with (folder / f"log-{index}").open("wb") as log:
                command = [sys.executable, "-m", "sparsefleet.scoring.share", str(folder), str(index)]
                processes.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log))
        yield processes
    finally:
        for process in processes:
            process.terminate()
            process.send_signal(signal.SIGCONT)  # one that stands stopped ends its commands too
        _end(processes)


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Wait for the end of processes that were asked to end: all of them have the same time."""
    # Asked twice: an exception of a signal handler is lost where it comes up in a callback or a finalizer.
    for seconds in (AGAIN_SECONDS, END_SECONDS):
        for process in (left := _left(processes, seconds)):
            process.terminate()
        if not left:
            break
    # The end of its input ends a process whatever it does, and the commands that it has started first (share.py).
    for process in processes:
        _close_input(process)
    for process in _left(processes, 2 * END_SECONDS):
        process.kill()
        process.wait()


def _left(processes: Sequence[subprocess.Popen[bytes]], seconds: float) -> list[subprocess.Popen[bytes]]:
    """Those that still run after so many seconds, or none as soon as all have ended."""
    deadline = time.monotonic() + seconds
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
    return [process for process in processes if process.returncode is None]


def _close_input(process: subprocess.Popen[bytes]) -> None:
    if process.stdin:
        process.stdin.close()


def _wait_for_all(processes: Sequence[subprocess.Popen[bytes]], folder: Path, timeout: float, tell: Tell) -> None:
    workers = [_Worker(process, folder, index, len(processes)) for index, process in enumerate(processes)]
    looked, running = time.monotonic(), [True]
    while any(running):
        time.sleep(LOOK_SECONDS)
        now = time.monotonic()
        waited, looked = (0.0 if now - looked > STOPPED_SECONDS else now - looked), now
        running = [worker.look(waited, timeout) for worker in workers]
        if any(worker.rows for worker in workers):
            tell(*_together(workers))


class _Worker:
    """A process that scores a share, and how long it has not got on."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path, index: int, count: int) -> None:
        self._process, self._name = process, f"worker {index} of {count}"
        self._log, self._progress = folder / f"log-{index}", folder / f"progress-{index}"
        self._idle = 0.0
        self.rows = 0
        self.share: float | None = 0.0

    def look(self, waited: float, timeout: float) -> bool:
        """Whether it still runs, that many seconds after the last look."""
        state = self._process.poll()
        if state:
            how = f"was killed by signal {-state}" if state < 0 else "failed"
            raise SparseFleetError(f"{self._name} {how}: {self._said() or 'it said nothing'}")
        before = self.rows
        if self._progress.exists():
            self.rows, self.share = json.loads(self._progress.read_text())
        self._idle = self._idle + waited if self.rows == before else 0.0
        if state is None and self._idle >= timeout:
            said = self._said()
            raise SparseFleetError(
                f"{self._name} (process {self._process.pid}) has scored no row for {timeout:g} s: it is stopped, or it "
                "waits for its input or for a large model; if it is only slow, raise --timeout"
                + (f". It said: {said}" if said else "")
            )
        return state is None

    def _said(self) -> str:
        return self._log.read_text("utf-8", "replace")[-SHOWN_CHARACTERS:].strip()


def _together(workers: Sequence[_Worker]) -> tuple[int, float | None]:
    """Shares are about equally long."""
    shares = [worker.share for worker in workers if worker.share is not None]
    known = len(shares) == len(workers)
    return sum(worker.rows for worker in workers), sum(shares) / len(shares) if known else None
