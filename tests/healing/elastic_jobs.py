"""Jobs whose trainers come and go, `sparsefleet scale` of them while they run, and a trainer started by hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from healing_jobs import HERE, TOKEN, Job

from sparsefleet.launch.reaper import JOB_VARIABLE

SECONDS = 90.0


def elastic(folder: Path, mode: str, **changed: object) -> Job:
    settings: dict[str, object] = {
        "samples": 3000,
        "pace": 0.05,
        "restarts": 0,
        "elastic": "1:4",
        "options": ["leased"],
    }
    return Job(folder, mode, **{**settings, **changed})  # type: ignore[arg-type]


def check_counts(job: Job) -> None:
    counts, everything = job.counts()
    wrong = counts != 1.0
    assert not wrong.any(), f"{wrong.sum()} not once: {counts[wrong][:10]}\n{job.logs()}"
    # In geo, deltas of thirds are rounded; one sample too many or too few would be 1.
    assert abs(everything - job.samples) < 0.01


def scale_workers(job: Job, workers: int) -> list[int]:
    """The numbers of the trainers that are there once there are so many."""
    present: list[int] = _scale(job, "--workers", workers)["workers"]
    return present


def scale_servers(job: Job, servers: int) -> None:
    assert len(_scale(job, "--servers", servers)["servers"]) == servers


def _scale(job: Job, what: str, count: int) -> dict[str, Any]:
    server = job.view.processes["server 0"].role.server_endpoints[0]
    command = [sys.executable, "-m", "sparsefleet", "scale", server, what, str(count), "--json"]
    done = subprocess.run(
        [*command, "--timeout", str(SECONDS)],
        env={**os.environ, "SPARSEFLEET_TOKEN": TOKEN},
        capture_output=True,
        text=True,
        timeout=SECONDS + 30,
    )
    assert done.returncode == 0, f"{done.stderr}\n{job.logs()}"
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def by_hand(job: Job, output: Path) -> subprocess.Popen[bytes]:
    """One more trainer, with the variables of worker 0 but for its number."""
    environment = _variables_of(job.view.processes["worker 0"].pid)
    del environment["PADDLE_TRAINER_ID"]
    del environment[JOB_VARIABLE]  # it is none of the launcher's own, which ends them
    arguments = [job.mode, str(job.folder / "data"), str(job.folder / "saved"), str(job.pace), str(job.timeout)]
    command = [sys.executable, str(HERE / job.script), *arguments, *job.options]
    with open(output, "wb") as log:
        return subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)


def _variables_of(process: int) -> dict[str, str]:
    pairs = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    return {name: value for name, _, value in (os.fsdecode(pair).partition("=") for pair in pairs if pair)}
