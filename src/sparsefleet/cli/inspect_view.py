"""What `sparsefleet data inspect` prints."""

from __future__ import annotations

from rich.text import Text

from sparsefleet.cli.console import add_figures, figures, results
from sparsefleet.core.schema.csv_dialect import DELIMITERS
from sparsefleet.datasets.inspect import Column, Inspection

SHOWN = 500
"""Columns."""
_STYLES = {"label": "bold green", "number": "cyan", "list": "magenta", "time": "yellow", "left out": "dim"}


def show_inspection(found: Inspection) -> None:
    out, table = results(), found.table
    kind = table.format
    if table.dialect is not None:
        header = "with a header" if table.dialect.header else "without a header"
        kind = f"csv, {DELIMITERS[table.dialect.delimiter]} separated, {header}"
    elif table.slots:
        kind = f"multislot, {len(table.slots)} slots without names: slot1 is the first of a line"
    looked = "all" if table.whole else "the first"
    files = f"{len(found.files)} files" if len(found.files) > 1 else found.files[0]
    out.print(f"{files}: {kind}; {len(table.columns)} columns, {looked} {table.rows:,} rows", markup=False)
    labels = ", ".join(found.schema.labels)
    out.print(f"label {labels}: {100 * found.label_rate:.2f} % are 1", markup=False)
    view = figures("column", "kind", ">missing", ">distinct", "most frequent", ">5 %", ">half", ">95 %", ">relation")
    for column in found.columns[:SHOWN]:
        add_figures(
            view,
            column.name,
            Text(_kind(column), style=_STYLES.get(column.kind, "")),
            f"{100 * column.missing / column.rows:.1f} %" if column.missing else "-",
            f"{column.distinct:,}",
            f"{_short(column.top)} ({100 * column.top_share:.0f} %)" if column.top else "-",
            *([f"{value:.4g}" for value in column.quantiles[1:4]] if column.quantiles else ["", "", ""]),
            "" if column.relation is None else f"{100 * column.relation:.2f} %",
        )
    out.print(view)
    if len(found.columns) > SHOWN:
        out.print(f"and {len(found.columns) - SHOWN:,} columns more, which the schema of --out has too")
    if table.ragged:
        what = "slots" if table.slots else "fields"
        out.print(
            f"{table.ragged:,} lines have another number of {what}, and were passed over; "
            "readers refuse such rows (--on-bad-row skip counts them)",
            style="yellow",
        )
    out.print("relation: how much of the label's entropy the column takes away by itself, beyond chance", style="dim")


def _kind(column: Column) -> str:
    if column.left_out:
        return f"left out: {column.note}"
    if column.kind == "list" and column.separator:
        return f"list, split at {column.separator!r}"
    if column.kind == "time":
        return f"time ({column.time_format})"
    if column.kind == "label" and column.note:
        return f"label, where {column.note} is 1"
    return column.kind


def _short(text: str) -> str:
    return text if len(text) <= 20 else text[:19] + "…"
