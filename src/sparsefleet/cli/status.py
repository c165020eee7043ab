"""`sparsefleet status`: what the servers of a running job, and its trainers, do right now."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Annotated, Any

import pyarrow.flight as flight
import typer
from rich.console import Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from sparsefleet.cli.console import add_figures, console, errors_to_exit, figures, results, say, size_text
from sparsefleet.core.errors import ConfigError, StoreError
from sparsefleet.fleet.roles import parse_endpoints
from sparsefleet.fleet.security import Security
from sparsefleet.launch import job_token
from sparsefleet.store.remote.config import RemoteConfig
from sparsefleet.store.remote.link import ServerLink

_LATE_SECONDS = 3.0
"""Trainers give a sign of life every second."""


@errors_to_exit
def status(
    servers: Annotated[str, typer.Argument(help="host:port of the job's servers, separated by commas.")],
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    watch: Annotated[
        float | None, typer.Option(help="Look again every so many seconds, until Ctrl-C or the job's end.")
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for a server's answer.")] = 5.0,
) -> None:
    """Show tables, speed, latencies and trainers of a running job; with its SPARSEFLEET_TOKEN, if you set one."""
    if watch is not None and not watch > 0:
        raise ConfigError(f"--watch {watch:g} must be above 0 seconds")
    security, endpoints = Security.from_environment(), parse_endpoints("servers", servers)
    config = RemoteConfig(endpoints, timeout=timeout, tls_root_certs=security.roots)
    links = [
        ServerLink(replace(config, token=security.token or job_token.find(endpoint)), index)
        for index, endpoint in enumerate(endpoints)
    ]
    if watch is None:
        report = look(links)
        _print(report, json_output)
        raise typer.Exit(0 if report.complete else 1)
    _watch(links, watch, json_output)


@dataclass(frozen=True)
class Report:
    """One look at all servers."""

    answers: Mapping[str, Mapping[str, Any]]
    """By endpoint, of those that answered."""
    silent: Mapping[str, str]
    """By endpoint, why there is no answer."""
    nobody_listens: bool = False
    """There is no server any more, or not yet: not even one that is slow, or cut off."""

    @property
    def complete(self) -> bool:
        return not self.silent

    def trainers(self) -> dict[str, Mapping[str, Any]]:
        """Every trainer as the server that heard of it last knows it."""
        newest: dict[str, Mapping[str, Any]] = {}
        for answer in self.answers.values():
            for worker, trainer in answer["workers"].items():
                if worker not in newest or trainer["last_seen_s"] < newest[worker]["last_seen_s"]:
                    newest[worker] = trainer
        return {worker: newest[worker] for worker in sorted(newest, key=int)}

    def to_dict(self) -> dict[str, Any]:
        servers = [{"endpoint": endpoint, **answer} for endpoint, answer in self.answers.items()]
        servers += [{"endpoint": endpoint, "error": error} for endpoint, error in self.silent.items()]
        return {"servers": servers, "trainers": self.trainers()}


def look(links: Sequence[ServerLink]) -> Report:
    """Ask all servers at once: one that is gone costs one time-out, however many there are."""

    def ask(link: ServerLink) -> dict[str, Any] | StoreError:
        try:
            return link.action("stats", {})
        except StoreError as error:
            return error

    with ThreadPoolExecutor(len(links)) as pool:
        answers = list(zip(links, pool.map(ask, links), strict=True))
    known = {link.endpoint: answer for link, answer in answers if not isinstance(answer, StoreError)}
    errors = {link: answer for link, answer in answers if isinstance(answer, StoreError)}
    refused = [isinstance(error.__cause__, flight.FlightUnavailableError) for error in errors.values()]
    return Report(
        {endpoint: known[endpoint] for endpoint in sorted(known, key=lambda endpoint: known[endpoint]["index"])},
        {link.endpoint: _why(link, error, link.config.timeout) for link, error in errors.items()},
        nobody_listens=len(refused) == len(links) and all(refused),
    )


def _why(link: ServerLink, error: StoreError, seconds: float) -> str:
    if isinstance(error.__cause__, flight.FlightUnavailableError):
        return f"{link} cannot be reached: is the job running, is the address right?"
    if isinstance(error.__cause__, flight.FlightTimedOutError):
        return f"{link} did not answer within {seconds:g} s: it is stopped, cut off or overloaded"
    return str(error)


def _print(report: Report, as_json: bool, told: Collection[str] = ()) -> None:
    """told: errors that people know of already."""
    if as_json:
        print(json.dumps(report.to_dict()), flush=True)
    elif report.answers:
        results().print(view(report))
    for error in report.silent.values():
        if error not in told:
            say(f"[bold red]error:[/] [red]{escape(error)}[/]")


def _watch(links: Sequence[ServerLink], seconds: float, as_json: bool) -> None:
    out = results()
    if as_json or not out.is_terminal:
        told: Collection[str] = ()
        for report in _looks(links, seconds):
            _print(report, as_json, told)
            told = tuple(report.silent.values())
    else:
        # What does not fit is cut off at the bottom, or every look would scroll; the last one is shown whole.
        with Live(console=out, auto_refresh=False, vertical_overflow="ellipsis") as live:
            for report in _looks(links, seconds):
                live.update(_live_view(report), refresh=True)
    console.print("no server is left: the job has ended")


def _looks(links: Sequence[ServerLink], seconds: float) -> Iterator[Report]:
    """Look again and again, until the servers that once answered are gone."""
    answered = False
    while True:
        report = look(links)
        if answered and report.nobody_listens:
            return
        answered = answered or bool(report.answers)
        yield report
        time.sleep(seconds)


def view(report: Report) -> Group:
    space = Text()
    parts = (_servers(report), _last_checkpoint(report), space, _tables(report), space, _calls(report), space)
    return Group(*parts, _trainers(report))


def _live_view(report: Report) -> Group:
    """What people watch for comes first: a screen may have no room for the rest."""
    errors = [Text(f"error: {error}", style="red") for error in report.silent.values()]
    if not report.answers:
        return Group(*errors)
    space = Text()
    parts = (_servers(report), _last_checkpoint(report), space, _trainers(report), space, _tables(report), space)
    return Group(*errors, *parts, _calls(report))


def _servers(report: Report) -> Group:
    table = figures("server", "address", ">up", ">at work", ">waiting")
    attempts = [Text(text) for text in _attempts(report)]
    for endpoint, server in report.answers.items():
        queues = server["queues"]
        waiting = queues["held_by_cut"] + queues["waiting_in_round"]
        numbers = (_clock(server["uptime_s"]), _count(queues["under_way"]), _count(waiting))
        add_figures(table, str(server["index"]), endpoint, *numbers)
    return Group(table, *attempts)


def _attempts(report: Report) -> list[str]:
    """Of a job that heals: which attempt it is, and what it began from."""
    known = {(one.get("attempt"), one.get("cut"), one.get("begun_because")) for one in report.answers.values()}
    lines = []
    for attempt, cut, why in sorted((one for one in known if one[0] is not None), key=str):
        parts = [
            f"attempt {attempt}",
            f"from {cut}" if cut else "",
            "not on all servers" if len(known) > 1 else "",
            why,
        ]
        lines.append(", ".join(part for part in parts if part))
    again = sum(int(trainer.get("trained_again", 0)) for trainer in report.trainers().values())
    return [*lines, f"{_count(again)} samples trained again by trainers that lived on"] if again else lines


def _tables(report: Report) -> Group:
    table = figures("server", "table", ">rows", ">memory", ">updates", ">misses")
    for server in report.answers.values():
        lines = [
            (name, _count(t["rows"]), size_text(t["memory_bytes"]), _count(t["step"]), _count(t["misses"]))
            for name, t in server["tables"].items()
        ]
        lines += [
            (
                f"{name} (dense block)",
                _count(block["values"]),
                size_text(block["memory_bytes"]),
                _count(block["step"]),
                "",
            )
            for name, block in server["dense"].items()
        ]
        for number, line in enumerate(lines or [("none yet", "", "", "", "")]):
            add_figures(table, str(server["index"]) if number == 0 else "", *line)
    return Group(table, Text("misses: keys that were scored and have no row; they count as zeros", style="dim"))


def _last_checkpoint(report: Report) -> Text:
    """One for all servers, but for the moment in which they are told of a new one."""
    known = [server["last_checkpoint"] for server in report.answers.values() if server.get("last_checkpoint")]
    return Text(f"last checkpoint  {known[0] if known else 'none yet'}", overflow="fold")


def _calls(report: Report) -> Table:
    table = figures("server", "call", ">per s", ">rows/s", ">p50 ms", ">p90 ms", ">p99 ms", ">total")
    for server in report.answers.values():
        for number, (name, meter) in enumerate(server["calls"].items()):
            quantiles = meter.get("ms", {})
            add_figures(
                table,
                str(server["index"]) if number == 0 else "",
                name,
                _count(meter["per_s"]),
                _count(meter["rows_per_s"]) if meter["rows_per_s"] else "-",
                *(f"{quantiles[q]:.2f}" if q in quantiles else "-" for q in ("p50", "p90", "p99")),
                _count(meter["total"]),
            )
    if not table.row_count:
        add_figures(table, *["-"] * len(table.columns))
    return table


def _trainers(report: Report) -> Table:
    table = figures("trainer", "state", ">epoch", ">step", ">rows/s", ">staleness", ">last seen", "process")
    for worker, trainer in report.trainers().items():
        seen = float(trainer["last_seen_s"])
        present = trainer["state"] in ("present", "resting")
        state = str(trainer.get("doing", trainer["state"]) if present else trainer["state"])
        late = present and seen > _LATE_SECONDS
        add_figures(
            table,
            worker,
            Text(state, style="red" if trainer["state"] in ("lost", "dropped") else ""),
            str(trainer["epoch"] + 1) if "epoch" in trainer else "-",
            _count(trainer["step"]) if "step" in trainer else "-",
            "-" if trainer.get("rows_per_s") is None else _count(trainer["rows_per_s"]),
            _count(trainer["staleness"]) if "staleness" in trainer else "-",
            Text(f"{seen:.1f} s ago", style="yellow" if late else ""),
            str(trainer["about"]).removeprefix("process "),
        )
    expected = max(int(answer.get("expected_workers", 0)) for answer in report.answers.values())
    for missing in sorted(set(map(str, range(expected))) - report.trainers().keys(), key=int):
        add_figures(table, missing, Text("not there yet", style="yellow"), *"------")
    if not table.row_count:
        add_figures(table, "none has come yet", *[""] * 7)
    return table


def _count(number: float) -> str:
    return f"{number:,.0f}" if number >= 10 or number == int(number) else f"{number:.1f}"


def _clock(seconds: float) -> str:
    hours, rest = divmod(int(seconds), 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}"
