"""A network between servers and trainers: rows a second and AUC of 2 x 2, in Linux namespaces that stand for hosts.

    python benchmarks/hosts.py                                   every line, about half an hour; as root
    python benchmarks/hosts.py --quick                           fewer rows, noisier figures
    python benchmarks/hosts.py --lines slow --modes async,sync --batches 100 \\
        --variant "--dense-refresh 4" --variant "--max-merge 4"

    python benchmarks/hosts.py --lines slow --before REV         beside an earlier commit

Both servers are on one host, both trainers on another (benchmarks/parts/namespaces.py). A variant is options of
`sparsefleet train` that all roles get besides the usual ones; the plain job is measured in the same turns, so that
"before" and "after" are of one run. Single runs differ by some 25 % on a busy machine: `--rounds 3` gives medians.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent))

from parts.common import criteo_files
from parts.namespaces import Network, missing
from parts.trees import checkout, python_of
from sparsefleet.fleet.roles import ROLE_VARIABLES, Role, join_endpoint
from sparsefleet.store.wire.auth import TOKEN_VARIABLE

JOB_SECONDS = 900.0
SERVERS, WORKERS = 2, 2
BEFORE = "before"
"""The variant that is another commit."""
_progress = Console(stderr=True)


@dataclass(frozen=True)
class Line:
    """Where the roles are."""

    name: str
    hosts: tuple[str, str]
    """Of the servers, and of the trainers."""
    one_network: bool = False
    slow: bool = False


LINES = {
    "shared": Line("one host, shared memory", ("all", "all"), one_network=True),
    "unshared": Line("one host, without", ("servers", "trainers"), one_network=True),
    "hosts": Line("two hosts", ("servers", "trainers")),
    "slow": Line("two hosts, {rate}", ("servers", "trainers"), slow=True),
}


@dataclass(frozen=True)
class Case:
    mode: str
    batch: int

    @property
    def name(self) -> str:
        return f"{self.mode} {self.batch}"


@dataclass(frozen=True)
class Figures:
    rows_per_s: float
    auc: float


def job(network: Network, hosts: tuple[str, str], python: Path, options: Sequence[str], folder: Path) -> Figures:
    """One job, a process per role as a scheduler would start them; what its first trainer says in the end."""
    servers, trainers = (network[name] for name in hosts)
    endpoints = [join_endpoint(servers.address, 36011 + index) for index in range(SERVERS)]
    roles = [Role.server(index, WORKERS, endpoints) for index in range(SERVERS)]
    roles += [Role.worker(index, WORKERS, endpoints) for index in range(WORKERS)]
    plain = {name: value for name, value in os.environ.items() if name not in ROLE_VARIABLES}
    command = [str(python), "-m", "sparsefleet", "train", *options, "--json"]
    started: list[tuple[Role, Path, subprocess.Popen[bytes]]] = []
    try:
        for role in roles:
            log = folder / f"{role.kind}log.{role.index}"
            environment = {**plain, **role.environment(), TOKEN_VARIABLE: "benchmark"}
            with open(log, "wb") as output:
                host = servers if role.is_server else trainers
                started.append((role, log, host.start(command, environment, output, folder)))
        deadline = time.monotonic() + JOB_SECONDS
        for role, log, process in reversed(started):  # trainers first
            if process.wait(max(1.0, deadline - time.monotonic())):
                raise RuntimeError(
                    f"{role} failed ({process.returncode}): {' '.join(command)}\n{log.read_text()[-3000:]}"
                )
    finally:
        for _, _, process in started:
            process.kill()  # nsenter passes nothing on; what is left ends with its host
            process.wait()
    result = json.loads((folder / "workerlog.0").read_text().splitlines()[-1])
    return Figures(float(result["samples_per_s"]), float(result["test_auc"]))


def measured(
    line: Line, rate: str, cases: Sequence[Case], variants: Sequence[str], rounds: int, options: Options
) -> dict[tuple[str, str], Figures]:
    """Case and variant to medians of runs taken in turn."""
    taken: dict[tuple[str, str], list[Figures]] = {}
    names = list(dict.fromkeys(line.hosts))
    for _ in range(rounds):
        for case in cases:
            for variant in variants:
                # A network of its own for each job: whatever a job leaves behind is gone.
                with Network(names, rate=rate if line.slow else None, one_network=line.one_network) as network:
                    python = options.before if variant == BEFORE else Path(sys.executable)
                    words = [] if variant == BEFORE else shlex.split(variant)
                    found = job(network, line.hosts, python, [*options.of(case), *words], options.folder)
                taken.setdefault((case.name, variant), []).append(found)
                what = f"{line.name.format(rate=rate)}: {case.name} {variant}".rstrip()
                _progress.print(f"{what}: {found.rows_per_s:,.0f} rows/s, auc {found.auc:.4f}", highlight=False)
    return {
        key: Figures(statistics.median(one.rows_per_s for one in all_), statistics.median(one.auc for one in all_))
        for key, all_ in taken.items()
    }


@dataclass(frozen=True)
class Options:
    """What every job of a run has in common."""

    folder: Path
    data: Path
    optimizer: str
    k_steps: int
    before: Path
    """The Python that runs the commit before."""

    def of(self, case: Case) -> list[str]:
        options = ["--data", str(self.data / "train"), "--test-data", str(self.data / "test"), "--mode", case.mode]
        options += ["--batch-size", str(case.batch), "--optimizer", self.optimizer, "--threads", "1"]
        return [*options, "--k-steps", str(self.k_steps)] if case.mode == "geo" else options


def main() -> None:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add = arguments.add_argument
    add("--quick", action="store_true", help="fewer rows, noisier figures")
    add("--rows", type=int, help="rows to train on (200,000; quick: 40,000)")
    add("--rounds", type=int, default=1, help="runs of each job, taken in turn; medians are shown (%(default)s)")
    add("--lines", default=",".join(LINES), help="which of: %(default)s")
    add("--modes", default="async,sync,geo", help="%(default)s; half_async too")
    add("--batches", default="1000,100", help="%(default)s")
    add("--rate", default="1gbit", help="of the line 'slow', as tc writes it (%(default)s)")
    add("--optimizer", default="adam", help="%(default)s")
    add("--k-steps", type=int, default=100, help="of geo (%(default)s)")
    add(
        "--variant",
        action="append",
        default=[],
        metavar="OPTIONS",
        help="options of sparsefleet train that every role gets, as one word; measured beside the plain job",
    )
    add("--before", metavar="REV", help="the plain job of this commit too, which is built first")
    add("--only-variants", action="store_true", help="leave the plain job out")
    add("--json", action="store_true", help="one JSON object a figure on stdout instead of the table")
    given = arguments.parse_args()
    lines = [_one_of(LINES, name) for name in given.lines.split(",")]
    if reason := missing():
        sys.exit(f"error: {reason}")
    cases = [Case(mode, int(batch)) for batch in given.batches.split(",") for mode in given.modes.split(",")]
    variants = [*([BEFORE] if given.before else []), *([] if given.only_variants else [""]), *given.variant]
    if not variants:
        sys.exit("error: --only-variants needs a --variant")
    table = Table(
        "rows/s (test AUC)", *(case.name for case in cases), title="2 servers and 2 trainers, a network between"
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = criteo_files(folder, given.rows or (40_000 if given.quick else 200_000))
        before = Path(sys.executable)
        if given.before:
            before = python_of(checkout(given.before), folder / "before")
            (data / "schema.json").unlink()  # an older tree may not read it; without it every tree takes Criteo's own
        options = Options(folder, data, given.optimizer, given.k_steps, before)
        for line in lines:
            figures = measured(line, given.rate, cases, variants, given.rounds, options)
            for variant in variants:
                of_line = [figures[case.name, variant] for case in cases]
                shown = line.name.format(rate=given.rate)
                table.add_row(
                    f"{shown} {variant}".rstrip(), *(f"{one.rows_per_s:,.0f} ({one.auc:.4f})" for one in of_line)
                )
                if given.json:
                    for case, one in zip(cases, of_line, strict=True):
                        figure = {"line": shown, "variant": variant, "mode": case.mode, "batch": case.batch}
                        print(
                            json.dumps({**figure, "rows_per_s": round(one.rows_per_s), "test_auc": one.auc}), flush=True
                        )
    if not given.json:
        Console(width=150).print(table)


def _one_of(lines: dict[str, Line], name: str) -> Line:
    if name not in lines:
        sys.exit(f"error: --lines {name!r} is not a line; choose of {', '.join(lines)}")
    return lines[name]


if __name__ == "__main__":
    main()
