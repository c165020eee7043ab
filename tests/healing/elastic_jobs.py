"""`sparsefleet scale --workers` of a running job, for tests of elastic ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from healing_jobs import TOKEN, Job

SECONDS = 90.0


def scale_workers(job: Job, workers: int) -> list[int]:
    """The numbers of the trainers that are there once there are so many."""
    server = job.view.processes["server 0"].role.server_endpoints[0]
    command = [sys.executable, "-m", "sparsefleet", "scale", server, "--workers", str(workers), "--json"]
    done = subprocess.run(
        [*command, "--timeout", str(SECONDS)],
        env={**os.environ, "SPARSEFLEET_TOKEN": TOKEN},
        capture_output=True,
        text=True,
        timeout=SECONDS + 30,
    )
    assert done.returncode == 0, done.stderr
    present: list[int] = json.loads(done.stdout)["workers"]
    return present
