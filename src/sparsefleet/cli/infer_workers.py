"""`sparsefleet infer --workers N`: N processes score a share each; the metrics are exactly those of one.

Shares are in the order of the input, so that the parts of the predictions, one behind the other, are in that order
too. In a folder that is gone afterwards:
```
job.json               Scoring, the share of every worker, the suffix of predictions
log-I                  what worker I said; the last of it is its error
predictions-I.csv      (or .parquet)
result-I.json          metrics and skipped rows
```
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from sparsefleet.cli.predictions import join_predictions
from sparsefleet.cli.scoring import Scoring
from sparsefleet.core.errors import ConfigError, SparseFleetError
from sparsefleet.metrics import ClickMetrics

LOOK_SECONDS = 0.05
END_SECONDS = 5.0
"""How long a worker that is told to end may take before it is killed."""
SHOWN_CHARACTERS = 2000


def score_with_workers(
    scoring: Scoring, shares: Sequence[Sequence[str]], output: Path | None
) -> tuple[ClickMetrics, dict[str, int]]:
    """As `Scoring.score`, with one process for each share."""
    # Beside the output: there is room for it there.
    where = None if output is None else output.parent
    if where is not None and not where.is_dir():
        raise ConfigError(f"--output {output}: there is no folder {where}; make it first")
    with tempfile.TemporaryDirectory(prefix=".sparsefleet-infer-", dir=where) as name:
        folder = Path(name)
        job = {"scoring": asdict(scoring), "shares": shares, "suffix": output.suffix if output else ""}
        (folder / "job.json").write_text(json.dumps(job))
        with _workers(folder, len(shares)) as processes:
            _wait_for_all(processes, folder)
        metrics, skipped = ClickMetrics(), Counter[str]()
        for index in range(len(shares)):
            result = json.loads((folder / f"result-{index}.json").read_text())
            metrics.merge(ClickMetrics.from_dict(result["metrics"]))
            skipped.update(result["skipped"])
        if output is not None:
            parts = [folder / f"predictions-{index}{output.suffix}" for index in range(len(shares))]
            join_predictions(parts, output)
    return metrics, dict(skipped)


@contextmanager
def _workers(folder: Path, count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The running processes; none is left when this is left, however that may be."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for index in range(count):
            with (folder / f"log-{index}").open("wb") as log:
                command = [sys.executable, "-m", "sparsefleet.cli.infer_share", str(folder), str(index)]
                processes.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log))
        yield processes
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdin:
                process.stdin.close()


def _wait_for_all(processes: Sequence[subprocess.Popen[bytes]], folder: Path) -> None:
    while True:
        states = [process.poll() for process in processes]
        for index, state in enumerate(states):
            if state:
                log = (folder / f"log-{index}").read_text("utf-8", "replace")[-SHOWN_CHARACTERS:].strip()
                how = f"was killed by signal {-state}" if state < 0 else "failed"
                raise SparseFleetError(f"worker {index} of {len(processes)} {how}: {log or 'it said nothing'}")
        if None not in states:
            return
        time.sleep(LOOK_SECONDS)
