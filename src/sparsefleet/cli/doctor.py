"""`sparsefleet doctor`: what to know of a machine, and to attach to a report of a problem. Needs no torch."""

from __future__ import annotations

import json
import sys
from textwrap import wrap
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from sparsefleet.cli.console import console, errors_to_exit, results, say
from sparsefleet.doctor import Finding, Report, Verdict, examine

_STYLES = {Verdict.TOLD: "dim", Verdict.OK: "green", Verdict.LOW: "yellow", Verdict.BROKEN: "bold red"}


@errors_to_exit
def doctor(
    quick: Annotated[bool, typer.Option("--quick", help="Leave out the measures, which take some seconds.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print the report as one JSON object.")] = False,
) -> None:
    """Tell versions, processor, limits and speed of this machine; exit status 1 where something is broken."""
    with console.status("looking") as status:
        report = examine(quick, progress=lambda name: status.update(f"looking at {name}"))
    if json_output:
        print(json.dumps(report.to_dict()))
    else:
        _show(report, results())
    sys.stdout.flush()
    raise typer.Exit(0 if report.ok else 1)


def _show(report: Report, to: Console) -> None:
    indent = max(len(finding.name) for finding in report.findings) + 2
    for section in report.sections:
        to.print(Text(section.title, "bold"))
        for finding in section.findings:
            _show_finding(finding, indent, to)
        to.print()
    for verdict in (Verdict.BROKEN, Verdict.LOW):
        if names := [finding.name for finding in report.findings if finding.verdict is verdict]:
            say(f"{verdict}: {', '.join(names)}", to=to, style=_STYLES[verdict], markup=False)
    if all(finding.verdict in (Verdict.OK, Verdict.TOLD) for finding in report.findings):
        to.print(Text("all is well", _STYLES[Verdict.OK]))


def _show_finding(finding: Finding, indent: int, to: Console) -> None:
    """Name, verdict, text; no table of rich's, which fills every line with blanks that are pasted with it."""
    word = "" if finding.verdict is Verdict.TOLD else str(finding.verdict)
    column = indent + len(Verdict.BROKEN) + 2
    room = max(to.width - column, 20)
    lines = [(line, "") for line in wrap(finding.text, room)]
    lines += [(line, _STYLES[finding.verdict]) for line in wrap(f"→ {finding.advice}" if finding.advice else "", room)]
    for number, (line, style) in enumerate(lines or [("", "")]):
        head = Text(" " * column)
        if number == 0:
            head = Text(f"{finding.name:<{indent}}") + Text(f"{word:<{column - indent}}", _STYLES[finding.verdict])
        to.print(head + Text(line, style), soft_wrap=True)
