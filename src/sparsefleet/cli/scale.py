"""`sparsefleet scale`: a running job goes on in another shape.

What each option does stands in a module of its own, which is given the `RunningJob`.
"""

from __future__ import annotations

import json
from typing import Annotated

import typer

from sparsefleet.cli.console import errors_to_exit, results
from sparsefleet.cli.running_job import RunningJob
from sparsefleet.cli.scale_servers import scale_servers
from sparsefleet.cli.scale_workers import scale_workers
from sparsefleet.core.errors import ConfigError


@errors_to_exit
def scale(
    addresses: Annotated[
        str, typer.Argument(help="host:port of the job's servers, separated by commas; server 0's is enough.")
    ],
    servers: Annotated[
        int | None,
        typer.Option(
            help="Go on with so many servers. A cut is taken, the launcher starts or stops servers, and the job goes "
            "on from the cut; trainers stay in their processes. For jobs that were started with --restarts."
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            help="Go on with so many trainers: the launcher starts what is missing; the highest numbers leave where "
            "there are too many. For jobs that were started with --elastic."
        ),
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds to wait until the job trains on so.")] = 300.0,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Go on with more or fewer servers or trainers in a running job, without losing a sample."""
    if not timeout > 0:
        raise ConfigError(f"--timeout {timeout:g} must be above 0 seconds")
    if (servers is None) == (workers is None):
        raise ConfigError("give --servers N (of a job with --restarts) or --workers N (of one with --elastic)")
    with RunningJob(addresses, timeout) as job:
        if servers is not None:
            found = scale_servers(job, servers)
            who = f"attempt {found['attempt']} trains on with {len(found['servers'])} servers"
            named = ",".join(found["servers"])
        else:
            assert workers is not None
            found = scale_workers(job, workers)
            who, named = f"{len(found['workers'])} trainers are there", ",".join(map(str, found["workers"]))
    if json_output:
        print(json.dumps(found), flush=True)
    else:
        results().print(
            f"{who}, {found['seconds']:.1f} s after it was asked for: {named}", markup=False, soft_wrap=True
        )
