"""`sparsefleet importance`: what a saved model loses where a slot or a dense feature is shuffled."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.markup import escape

from sparsefleet.cli.console import add_figures, errors_to_exit, figures, progress, results, say
from sparsefleet.cli.reading import OWN_MODEL, SAME_INPUTS, WHICH, checkpoint_of
from sparsefleet.core.interrupts import sigterm_interrupts
from sparsefleet.data.files import list_files
from sparsefleet.data.formats import format_help


@errors_to_exit
def importance(
    model: Annotated[
        str, typer.Argument(help="A checkpoint, or a run's folder: then its best one, or the newest where none is.")
    ],
    data: Annotated[str, typer.Option(help="Rows to score, with labels: a folder, a file or a pattern.")],
    own_model: Annotated[str | None, typer.Option("--model", help=OWN_MODEL)] = None,
    which: Annotated[str, typer.Option("--checkpoint", help=WHICH)] = "",
    column: Annotated[
        list[str] | None,
        typer.Option(help="Only this slot or dense feature, or with --columns column; may be given several times."),
    ] = None,
    columns: Annotated[
        bool, typer.Option("--columns", help="Shuffle a column of the data at a time, in all features made of it.")
    ] = False,
    label: Annotated[
        str | None, typer.Option(help="Of several labels, the one whose losses are told. [default: the first]")
    ] = None,
    rows: Annotated[int | None, typer.Option(help="Only the first so many rows; they are kept in memory.")] = None,
    repeats: Annotated[int, typer.Option(help="Shuffle each so many times, and tell the mean.")] = 1,
    seed: Annotated[int, typer.Option(help="Of the shuffles.")] = 0,
    format: Annotated[str, typer.Option(help=format_help())] = "auto",
    pipe_command: Annotated[
        str | None, typer.Option(help="Shell command that turns a file (its stdin) into MultiSlot text.")
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Rows in a batch.")] = 1000,
    threads: Annotated[int, typer.Option(help="Scoring threads.")] = 2,
    on_bad_row: Annotated[str, typer.Option(help="error, or skip (and count).")] = "error",
    same_inputs: Annotated[bool, typer.Option(help=SAME_INPUTS)] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print the losses as one JSON object.")] = False,
) -> None:
    """Shuffle one slot or dense feature at a time, and tell how much AUC and log loss suffer."""
    from sparsefleet.data.reading import ReadingOptions
    from sparsefleet.scoring import measure_importance

    checkpoint = str(checkpoint_of(model, which))
    reading = ReadingOptions(
        "queue", format, pipe_command, batch_size, on_bad_row, threads, same_inputs=same_inputs
    )  # fmt: skip
    with sigterm_interrupts(), progress("shuffling", "columns") as report:
        found = measure_importance(
            checkpoint,
            list_files(data),
            reading,
            model=own_model,
            columns=column or (),
            by_column=columns,
            label=label,
            rows=rows,
            repeats=repeats,
            seed=seed,
            tell=report,
        )
    of_label = f" of label {escape(found.label)}" if found.label else ""
    say(
        f"[bold]{escape(checkpoint)}[/] on {found.rows:,} rows of {escape(data)}: "
        f"AUC {found.metrics['auc']:.5f}, log loss {found.metrics['logloss']:.5f}{of_label}"
    )
    if json_output:
        losses = [asdict(loss) for loss in found.losses]
        label_told = {"label": found.label} if found.label else {}
        facts = {"model": checkpoint, "rows": found.rows, "repeats": repeats, "seed": seed, **label_told}
        scores = {name: found.metrics[name] for name in ("auc", "logloss")}
        print(json.dumps({**facts, **scores, "losses": losses}))
        return
    shared = "shuffled together" if columns else "not shuffled, of the same column"
    told = any(loss.features != (loss.name,) for loss in found.losses if loss.features)
    spread = [">spread"] if repeats > 1 else []
    table = figures("column", "kind", ">AUC lost", ">log loss gained", *spread, *([shared] if told else []))
    for loss in found.losses:
        numbers = [f"{loss.auc:+.5f}", f"{loss.logloss:+.5f}", *([f"{loss.spread:.5f}"] if repeats > 1 else [])]
        add_figures(table, loss.name, loss.kind, *numbers, *([", ".join(loss.features)] if told else []))
    results().print(table)
    if told and not columns:
        say("features of one column know the same: [bold]--columns[/] shuffles all that are made of a column together")
