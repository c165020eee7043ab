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
    timeout: Annotated[float, typer.Option(help="Seconds to wait until the job trains on.")] = 300.0,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Go on with more or fewer servers in a running job, without losing a sample."""
    if not timeout > 0:
        raise ConfigError(f"--timeout {timeout:g} must be above 0 seconds")
    if servers is None:
        raise ConfigError("nothing to change: give --servers N")
    with RunningJob(addresses, timeout) as job:
        found = scale_servers(job, servers)
    if json_output:
        print(json.dumps(found), flush=True)
    else:
        results().print(
            f"attempt {found['attempt']} trains on with {len(found['servers'])} servers, {found['seconds']:.1f} s "
            f"after it was asked for: {','.join(found['servers'])}",
            markup=False,
            soft_wrap=True,
        )
