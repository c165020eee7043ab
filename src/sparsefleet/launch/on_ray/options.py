"""`fleetrun --on ray`: its options, and what becomes of a script."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

from sparsefleet.core.errors import ConfigError
from sparsefleet.launch.on_ray.needs import USUAL_MEMORY, RayNeeds, parse_memory
from sparsefleet.launch.supervisor import Outcome, RunSettings

PLACES = ("local", "ray")
NOTHING = "none"
_RAY_ONLY = ("server_cpus", "worker_cpus", "server_memory", "worker_memory", "ship")
_LOCAL_ONLY = ("ports", "servers", "workers", "host_ip")


def ray_options(option: Callable[..., None]) -> None:
    option("--on", choices=PLACES, default="local", help="where roles run: on this host, or on a Ray cluster (local)")
    option("--server_cpus", type=float, metavar="N", help="Ray: processors that each server asks for (1)")
    option("--worker_cpus", type=float, metavar="N", help="Ray: processors that each worker asks for (1)")
    option("--server_memory", metavar="SIZE", help=f"Ray: memory that each server asks for ({USUAL_MEMORY})")
    option("--worker_memory", metavar="SIZE", help=f"Ray: memory that each worker asks for ({USUAL_MEMORY})")
    option(
        "--ship",
        metavar="FOLDER",
        help="Ray: folder that every node gets a copy of, in which roles run (that of the script); none: roles run in "
        "the current folder, which every node must have. After ray job submit --working-dir: what that has shipped",
    )


def refuse_ray_options(options: argparse.Namespace) -> None:
    for name in _RAY_ONLY:
        if getattr(options, name) is not None:
            raise ConfigError(f"--{name} belongs to --on ray")


def check_ray(who: str = "--on ray") -> None:
    """Refuse a machine without Ray, in one line."""
    if find_spec("ray") is None:
        raise ConfigError(f"{who} needs Ray, which is not installed: pip install 'sparsefleet[ray]'")


def needs_of(
    server_cpus: float | None,
    worker_cpus: float | None,
    server_memory: str | None,
    worker_memory: str | None,
    *,
    ship: str | None = None,
    folder: str | None = None,
) -> RayNeeds:
    return RayNeeds(
        1.0 if server_cpus is None else server_cpus,
        1.0 if worker_cpus is None else worker_cpus,
        parse_memory("--server_memory", server_memory or USUAL_MEMORY),
        parse_memory("--worker_memory", worker_memory or USUAL_MEMORY),
        ship,
        folder,
    )


def run_script_on_ray(options: argparse.Namespace, settings: RunSettings, command: Sequence[str]) -> Outcome:
    for name in _LOCAL_ONLY:
        if getattr(options, name) is not None:
            raise ConfigError(f"--{name} is for hosts that you name; --on ray takes --server_num and --worker_num")
    if options.server_num is None or options.worker_num is None:
        raise ConfigError("--on ray needs --server_num and --worker_num")
    check_ray()
    from sparsefleet.launch.on_ray.cluster import shipped_already
    from sparsefleet.launch.on_ray.jobs import run_on_ray
    from sparsefleet.launch.on_ray.view import ray_view

    words, ship, folder = list(command), None, None
    script = None if options.module else len(words) - len(options.arguments) - 1
    if options.ship == NOTHING:
        folder = os.getcwd()
        if script is not None:
            words[script] = os.path.abspath(words[script])
    else:
        shipped = options.ship or (os.path.dirname(os.path.abspath(words[script])) if script is not None else ".")
        root = Path.cwd() if shipped_already() else Path(shipped).resolve()
        if not root.is_dir():
            raise ConfigError(f"--ship {shipped!r} is not a folder here; give one, or none")
        if script is not None:
            path = Path(words[script]).resolve()
            if not path.is_relative_to(root):
                raise ConfigError(f"{path} is not in {root}, the folder that nodes get a copy of (--ship FOLDER)")
            words[script] = os.path.join(".", path.relative_to(root))
        ship = str(root)
    view = ray_view()
    if ship is not None:
        view.say(
            f"roles run in a copy of {ship}; data and checkpoints are named in full, on storage that all nodes see"
        )
    needs = needs_of(
        options.server_cpus,
        options.worker_cpus,
        options.server_memory,
        options.worker_memory,
        ship=ship,
        folder=folder,
    )
    return run_on_ray(lambda role: words, options.server_num, options.worker_num, settings, needs=needs, view=view)
