"""The launcher: `fleetrun`, `python -m sparsefleet.launch`, and `run_local` / `run_hosts` for other programs."""

from sparsefleet.launch.command import main
from sparsefleet.launch.jobs import run_hosts, run_local
from sparsefleet.launch.supervisor import Outcome, RunSettings, run_roles

__all__ = ["Outcome", "RunSettings", "main", "run_hosts", "run_local", "run_roles"]
