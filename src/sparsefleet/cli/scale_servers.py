"""`sparsefleet scale --servers N`: ask for it, and wait until the job trains on with so many.

A loss while the change is under way begins an attempt of its own, which knows nothing of it: then it is asked for
again.
"""

from __future__ import annotations

import time
from typing import Any

from sparsefleet.cli.console import say
from sparsefleet.cli.running_job import RunningJob
from sparsefleet.core.errors import ConfigError, StoreError

LOOK_EVERY = 0.2
TELL_AFTER = 10.0


def scale_servers(job: RunningJob, servers: int) -> dict[str, Any]:
    """The attempt that trains on with so many servers: its number, their addresses, seconds since it was asked for."""
    if servers < 1:
        raise ConfigError(f"--servers {servers} must be 1 or above")
    asked, told, state = job.ask("scale", servers=servers), False, "is being asked"
    while job.waited < job.seconds:
        found = job.look()
        if found is None:
            state = "server 0 does not answer"
        elif isinstance(found.get("broken"), str):
            raise StoreError(found["broken"])
        elif found["attempt"] > asked["attempt"]:
            if len(found["servers"] or ()) != servers:  # another attempt came between
                asked = job.ask("scale", servers=servers)
            elif found["trained"]:
                return {"attempt": found["attempt"], "servers": found["servers"], "seconds": round(job.waited, 1)}
            state = "the servers are there, and nobody has trained a step yet"
        elif (scale := found.get("scale")) and scale.get("error"):
            raise StoreError(f"nothing has changed: {scale['error']}")
        else:
            state = (
                "the cut is taken, and the launcher has not begun with it"
                if scale and scale.get("cut")
                else "no trainer has taken a cut yet (they do between two steps of fit)"
            )
        if not told and job.waited > TELL_AFTER:
            told = True
            say(f"waiting: {state}", markup=False)
        time.sleep(LOOK_EVERY)
    raise StoreError(f"the job does not train on with {servers} servers after {job.seconds:g} s: {state}")
