"""The launcher: `fleetrun`, `python -m sparsefleet.launch`, and `run_local` / `run_hosts` for other programs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from sparsefleet.core.errors import SparseFleetError

if TYPE_CHECKING:
    from sparsefleet.launch.attempts import RestartPolicy
    from sparsefleet.launch.jobs import run_hosts, run_local, run_roles
    from sparsefleet.launch.supervisor import Outcome, RunSettings

__all__ = ["Outcome", "RestartPolicy", "RunSettings", "main", "run_hosts", "run_local", "run_roles"]


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        from sparsefleet.launch.command import main as run
    except SparseFleetError as error:  # kernels that this machine does not run
        print(f"fleetrun: {error}", file=sys.stderr)
        return 2
    return run(arguments)


def __getattr__(name: str) -> Any:
    # Late, so that `main` can say what is wrong where these cannot be imported.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    homes = {"run_hosts": "jobs", "run_local": "jobs", "run_roles": "jobs", "RestartPolicy": "attempts"}
    module = homes.get(name, "supervisor")
    return getattr(import_module(f"{__name__}.{module}"), name)
