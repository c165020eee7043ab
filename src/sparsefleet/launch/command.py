"""fleetrun: the command line of the launcher."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from sparsefleet.core.elastic import Elastic
from sparsefleet.core.errors import ConfigError
from sparsefleet.fleet.roles import parse_endpoints
from sparsefleet.launch.attempts import RestartPolicy
from sparsefleet.launch.jobs import run_hosts, run_local
from sparsefleet.launch.logs import only_ours
from sparsefleet.launch.on_ray.options import ray_options, refuse_ray_options, run_script_on_ray
from sparsefleet.launch.plan import parse_hosts, parse_ports
from sparsefleet.launch.supervisor import Outcome, RunSettings

_USAGE = """\
fleetrun --server_num N --worker_num N [options] [-m] script [arguments]
       fleetrun --servers IP:PORT,... --workers IP,... [options] [-m] script"""

_DESCRIPTION = """\
Start the servers and workers of a job on this host, watch over them, and
leave no process behind.

  fleetrun --server_num=2 --worker_num=2 train.py --epochs 1
  fleetrun --server_num=2 --worker_num=2 -m package.module arguments

The same on each of several hosts:

  fleetrun --servers 10.0.0.1:36011,10.0.0.2:36011 \\
           --workers 10.0.0.1,10.0.0.2 train.py

On a Ray cluster (RAY_ADDRESS, or the one of this machine):

  fleetrun --on ray --server_num=2 --worker_num=2 train.py --data s3://...

The environment variables of each role (TRAINING_ROLE, PADDLE_TRAINER_ID, ...)
tell the script who it is."""

_EPILOG = """\
Options may be written with dashes or underscores. Ctrl-C lets workers end by
themselves for --timeout seconds, and save if their script does; once more ends
all, a third time kills. Exit status: 0, or that of the first role that failed
(128 + the signal for one that was killed), or 128 + the signal that ended
fleetrun."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        return _run(options).exit_code
    except ConfigError as error:
        print(f"fleetrun: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:  # before the job, while Ray is imported and connects, say, or after it
        print("fleetrun: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fleetrun",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        usage=_USAGE,
        epilog=_EPILOG,
    )

    def option(name: str, **details: object) -> None:
        parser.add_argument(name, **details)  # type: ignore[arg-type]
        if (dashed := name.replace("_", "-")) != name:
            hidden = {"dest": name[2:], "help": argparse.SUPPRESS, "default": argparse.SUPPRESS}
            parser.add_argument(dashed, **{**details, **hidden})  # type: ignore[arg-type]

    defaults = RunSettings()
    option("--server_num", type=int, metavar="N", help="servers to start on this host")
    option("--worker_num", type=int, metavar="N", help="workers to start on this host")
    option("--ports", metavar="P,...", help="ports of the servers, 36011,36012 or 36011-36012; without: free ones")
    option("--servers", metavar="IP:PORT,...", help="every server of a job on several hosts")
    option("--workers", metavar="IP,...", help="the host of every worker; a port is left off")
    option("--host_ip", metavar="IP,...", help="this host's addresses as the lists write them; without: found out")
    option("--log_dir", metavar="DIR", default=str(defaults.log_dir), help="for serverlog.N, workerlog.N (%(default)s)")
    option(
        "--timeout",
        type=float,
        metavar="SECONDS",
        default=defaults.timeout,
        help="how long roles may go on once one has failed, servers once all workers have ended, and workers once "
        "fleetrun is interrupted (%(default)g)",
    )
    option(
        "--grace",
        type=float,
        metavar="SECONDS",
        default=defaults.grace,
        help="how long a role that is told to end may take before it is killed (%(default)g)",
    )
    option(
        "--keep_going",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="whether the other workers are left to themselves when one has failed (as the job's servers say: not "
        "after an error, and in sync not after a kill; there they end with --keep_going too, since the servers refuse "
        "what they ask for)",
    )
    option(
        "--progress",
        type=float,
        metavar="SECONDS",
        default=defaults.progress,
        help="without a terminal, how often to tell step, rows/s, AUC and time left; 0: never (%(default)g)",
    )
    ray_options(option)
    option(
        "--restarts",
        type=int,
        metavar="N",
        default=defaults.restart.restarts,
        help="losses within an hour that the job heals: a server or worker that is killed or hangs is started again, "
        "and all go on from the last cut; 0: the first loss ends the job (%(default)s)",
    )
    option(
        "--cut_every",
        type=float,
        metavar="SECONDS",
        default=None,
        help="with --restarts, seconds between the cuts that a loss goes back to (a hundred times as long as the last "
        "ones took, so that they take about 1 %% of the time; 10 s to 30 minutes; worker 0's log tells)",
    )
    option(
        "--cuts",
        metavar="PLACE",
        default=None,
        help="with --restarts, where cuts go: a folder or a URI such as s3://bucket/job, which every process must see "
        "(the folder of logs)",
    )
    option(
        "--elastic",
        metavar="MIN:MAX",
        default=None,
        help="workers may come and go while the job runs, so many of them; it begins with --worker_num (scripts read "
        "their data with open_reader(..., leased=True))",
    )
    option("-m", dest="module", action="store_true", help="the script is the name of a module, as in python -m")
    parser.add_argument("script", nargs="?", help="a Python script, or any executable")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="handed on to the script")
    return parser


def _run(options: argparse.Namespace) -> Outcome:
    if options.script is None:
        raise ConfigError(
            "there is no script to run; give it after the options: fleetrun --server_num=1 --worker_num=2 train.py"
        )
    settings = RunSettings(
        Path(options.log_dir),
        options.timeout,
        options.grace,
        options.keep_going,
        options.progress,
        RestartPolicy(options.restarts, cut_every=options.cut_every, cuts=options.cuts),
        None if options.elastic is None else Elastic.parse("--elastic", options.elastic),
    )
    command = [*script_command(options.script, options.module), *options.arguments]
    if options.on == "ray":
        return run_script_on_ray(options, settings, command)
    refuse_ray_options(options)
    counted = options.server_num is not None or options.worker_num is not None
    listed = options.servers is not None or options.workers is not None
    if counted == listed:
        raise ConfigError(
            "give either --server_num and --worker_num (one host) or --servers and --workers (several), and not both"
        )
    if counted:
        if options.server_num is None or options.worker_num is None:
            raise ConfigError("--server_num and --worker_num belong together; give both")
        if options.host_ip is not None:
            raise ConfigError("--host_ip belongs to --servers and --workers")
        ports = None if options.ports is None else parse_ports("--ports", options.ports, options.server_num)
        with only_ours(settings.log_dir):
            return run_local(lambda role: command, options.server_num, options.worker_num, settings, ports=ports)
    if options.servers is None or options.workers is None:
        raise ConfigError("--servers and --workers belong together; give both")
    if options.ports is not None:
        raise ConfigError("--ports belongs to --server_num; with --servers each address has its port")
    return run_hosts(
        lambda role: command,
        parse_endpoints("--servers", options.servers),
        parse_hosts("--workers", options.workers),
        settings,
        host_ips=None if options.host_ip is None else parse_hosts("--host_ip", options.host_ip),
    )


def script_command(script: str, module: bool = False) -> list[str]:
    """How to start a script: by this Python, unless it is an executable of another kind."""
    if module:
        return [sys.executable, "-u", "-m", script]
    path = script if os.path.isfile(script) else shutil.which(script)
    if path is None:
        raise ConfigError(f"{script!r} is neither a file here nor a command; for a module write -m {script}")
    if not script.endswith(".py") and os.access(path, os.X_OK) and not _is_python(path):
        return [os.path.abspath(path)]
    return [sys.executable, "-u", path]


def _is_python(path: str) -> bool:
    with open(path, "rb") as file:
        first = file.readline(256)
    return first.startswith(b"#!") and b"python" in first
