"""`sparsefleet scale --workers N`: ask a running elastic job for more trainers, or fewer.

Server 0 asks the highest numbers to leave where there are too many; the launcher starts what is missing. A job that was
started by hand has none: then start trainers by hand, with the same variables and without PADDLE_TRAINER_ID.
"""

from __future__ import annotations

import time
from typing import Any

from sparsefleet.cli.running_job import RunningJob
from sparsefleet.core.errors import ConfigError, StoreError

LOOK_EVERY = 0.2


def scale_workers(job: RunningJob, workers: int) -> dict[str, Any]:
    """Ask, and wait until so many are there: their numbers, and seconds since it was asked for."""
    if workers < 1:
        raise ConfigError(f"--workers {workers} must be 1 or above")
    present = job.ask("scale_workers", workers=workers)["present"]
    while len(present) != workers:
        if job.waited > job.seconds:
            raise StoreError(
                f"{len(present)} trainers are there after {job.seconds:g} s, not {workers}: {present}. Where no "
                "launcher starts them, do that by hand: the same variables, without PADDLE_TRAINER_ID"
            )
        time.sleep(LOOK_EVERY)
        found = job.look()
        if found is None:
            continue
        if isinstance(found.get("broken"), str):
            raise StoreError(found["broken"])
        if found["scaled_to"] is None:  # a process was lost, and a new attempt knows nothing of it
            job.ask("scale_workers", workers=workers)
            continue
        present = found["scaled_to"]["present"]
    return {"workers": present, "seconds": round(job.waited, 1)}
