"""A report of `sparsefleet verify` for people: a table, and where the worst rows part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sparsefleet.cli.console import say
from sparsefleet.verify.report import Check, Report

_VERDICTS = {True: ("same", "green"), False: ("DIFFERS", "bold red"), None: ("told", "dim")}
SHOWN_SLOTS = 3


def show_report(report: Report) -> None:
    console = Console(highlight=False, emoji=False)
    for name, where in report.places.items():
        say(f"{name:>10}  {where}", markup=False, to=console)
    for number, question in enumerate(report.questions, 1):
        title = f"{number}. {question.title}" if number < len(report.questions) else question.title
        table = Table(title=title, title_justify="left", title_style="bold", expand=True)
        table.add_column("what", min_width=28, max_width=36, overflow="fold")
        table.add_column("found", ratio=1, overflow="fold")
        table.add_column("allowed", max_width=20, overflow="fold")
        table.add_column("verdict", min_width=7)
        for check in question.checks:
            table.add_row(Text(check.what), Text(check.figure), Text(check.allowed), _verdict(check))
        console.print(table)
    if not report.scores.ok:
        _show_worst(console, report)
    for note in report.notes:
        say(f"note: {note}", style="yellow", markup=False, to=console)
    failed = [check.what for question in report.questions for check in question.checks if check.ok is False]
    if report.ok:
        among = ", ".join(report.places)
        console.print(f"equal: {among}, on {report.rows:,} rows to {report.tolerance:g}", style="bold green")
    else:
        told = "; ".join(failed[:10]) + ("; …" if len(failed) > 10 else "")
        say(f"differs: {told}", style="bold red", markup=False, to=console)


def _verdict(check: Check) -> Text:
    word, style = _VERDICTS[check.ok]
    return Text(word, style)


def _show_worst(console: Console, report: Report) -> None:
    console.print(f"The {len(report.worst)} worst rows, and where they part (--json has them in full):", style="bold")
    for row in report.worst:
        by_label = row.get("scores_by_label") or {place: {"": score} for place, score in row["scores"].items()}
        scores = ", ".join(
            f"{place} " + ", ".join(f"{label} {score:.8g}".strip() for label, score in found.items())
            for place, found in by_label.items()
        )
        say(f"{row['where']}: {scores}", markup=False, to=console)
        for line in _parting(row):
            say(f"    {line}", markup=False, to=console)


def _parting(row: Mapping[str, Any]) -> list[str]:
    lines = [
        f"{name}: " + ", ".join(f"{value:.8g} in {place}" for place, value in values.items())
        for name, values in row["dense"].items()
        if len(set(values.values())) > 1
    ]
    parting = [slot for slot in row["slots"] if slot["parts_at"]]
    lines += [_slot_line(slot) for slot in parting[:SHOWN_SLOTS]]
    if len(parting) > SHOWN_SLOTS:
        lines.append(f"and {len(parting) - SHOWN_SLOTS} more slots")
    return lines or ["inputs, keys and rows are equal in all places that show them: the network makes the difference"]


def _slot_line(slot: Mapping[str, Any]) -> str:
    keys, rows = slot["keys"], slot["rows"]
    head = f"{slot['slot']} {slot['values']!r}: {', '.join(slot['parts_at'])}: "
    if keys["checkpoint"] != keys["bundle"]:
        return head + ", ".join(f"{', '.join(map(str, found))} in {place}" for place, found in keys.items())
    return (
        head
        + f"key {', '.join(map(str, keys['checkpoint']))}: "
        + ", ".join(f"{_short(found)} in {place}" for place, found in rows.items())
    )


def _short(rows: list[list[float]] | None) -> str:
    if rows is None:
        return "none"
    numbers = " | ".join(" ".join(f"{value:.5g}" for value in row[:4]) + (" …" if len(row) > 4 else "") for row in rows)
    return f"[{numbers}]"
