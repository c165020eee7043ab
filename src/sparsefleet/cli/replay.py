"""`sparsefleet replay`: logged requests to a server once more. Imports no torch."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sparsefleet.cli.console import errors_exit_with, progress, say
from sparsefleet.verify.differences import QUANTILES
from sparsefleet.verify.replay import ReplayConfig, Replayed
from sparsefleet.verify.replay import replay as send_again

UNREADABLE, SHOWN = 2, 60


@errors_exit_with(UNREADABLE)
def replay(
    log: Annotated[str, typer.Argument(help="JSON lines of requests and scores, as serve --log-requests writes them.")],
    url: Annotated[str, typer.Option(help="The running server, http://host:port.")],
    tolerance: Annotated[float, typer.Option(help="How far scores may be apart.")] = 1e-6,
    concurrency: Annotated[int, typer.Option(help="Requests under way at a time.")] = 8,
    timeout: Annotated[float, typer.Option(help="Seconds for one answer.")] = 30.0,
    limit: Annotated[int | None, typer.Option(help="Send so many requests at most.")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print what was found as one JSON object.")] = False,
) -> None:
    """Send logged requests again and compare the scores; exit status 1 where they differ or a request fails."""
    config = ReplayConfig(concurrency=concurrency, timeout=timeout, tolerance=tolerance, limit=limit)
    with progress("replaying", unit="requests") as report:
        found = send_again(log, url, config=config, progress=report)
    for bad in found.bad_examples:
        say(f"{log}, line {bad['line']}: {bad['reason']}", style="yellow", markup=False)
    for failure in found.failures:
        say(f"{log}, line {failure['line']}: {failure['reason']}", style="red", markup=False)
    if json_output:
        print(json.dumps(found.to_dict()))
    else:
        _show(found)
    sys.stdout.flush()
    raise typer.Exit(0 if found.ok else 1)


def _show(found: Replayed) -> None:
    out = Console(highlight=False, emoji=False)
    spread = found.spread
    summary = Table(show_header=False)
    for name, count in (
        ("requests", found.requests),
        ("failed", found.failed),
        ("bad lines", found.bad_lines),
        ("scores compared", spread.count),
        (f"further apart than {found.tolerance:g}", found.beyond),
    ):
        summary.add_row(name, f"{count:,}")
    quantiles = ((f"p{100 * q:g}", value) for q, value in zip(QUANTILES, spread.quantiles, strict=True))
    for name, figure in (("max", spread.max), ("mean", spread.mean), *quantiles):
        summary.add_row(f"difference, {name}", f"{figure:.2g}")
    out.print(summary)
    for (logged, answered), count in found.versions.items():
        if logged != answered:
            out.print(f"{count:,} requests of version {logged} were answered by {answered}", markup=False)
    beyond = [row for row in found.worst if row["difference"] > found.tolerance]
    if beyond:
        worst = Table("line", "row", "logged", "answered", "apart", "input")
        for row in beyond:
            scores = (f"{row['logged']:.8g}", f"{row['answered']:.8g}", f"{row['difference']:.2g}")
            text = json.dumps(row["input"])
            shown = text if len(text) < SHOWN else text[: SHOWN - 1] + "…"
            worst.add_row(str(row["line"]), str(row["row"]), *scores, Text(shown))
        out.print(worst)
    verdict = f"equal to {found.tolerance:g}" if found.ok else "they differ" if found.beyond else "requests failed"
    out.print(verdict, style="bold green" if found.ok else "bold red")
