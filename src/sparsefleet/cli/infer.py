"""`sparsefleet infer`: score rows with a saved model. Metrics start from zero; predictions keep the input's order."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from sparsefleet.checkpoint import Checkpoint
from sparsefleet.cli.console import add_figures, console, errors_to_exit, figures, progress, say
from sparsefleet.cli.reading import OWN_MODEL, SAME_INPUTS, WHICH, checkpoint_of, tell_skipped
from sparsefleet.core.errors import ConfigError
from sparsefleet.core.interrupts import sigterm_interrupts
from sparsefleet.data.files import list_files
from sparsefleet.data.formats import can_be_cut, format_help
from sparsefleet.data.split import ordered_shares
from sparsefleet.scoring import Scoring, check_name, score_with_workers
from sparsefleet.train.reporting.console import describe_metrics
from sparsefleet.train.reporting.jsonl import plain_numbers


@errors_to_exit
def infer(
    model: Annotated[
        str, typer.Argument(help="A checkpoint, or a run's folder: then its best one, or the newest where none is.")
    ],
    data: Annotated[str, typer.Option(help="Rows to score: a folder, a file or a pattern.")],
    output: Annotated[
        Path | None, typer.Option(help="Where to write predictions, one per input row: a .csv or .parquet file.")
    ] = None,
    own_model: Annotated[str | None, typer.Option("--model", help=OWN_MODEL)] = None,
    which: Annotated[str, typer.Option("--checkpoint", help=WHICH)] = "",
    format: Annotated[str, typer.Option(help=format_help())] = "auto",
    pipe_command: Annotated[
        str | None, typer.Option(help="Shell command that turns a file (its stdin) into MultiSlot text.")
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Rows in a batch.")] = 1000,
    threads: Annotated[
        int | None, typer.Option(help="Scoring threads of a process (2, with --workers 1); with --output it is one.")
    ] = None,
    workers: Annotated[
        int, typer.Option(help="Processes that score a share each, with the model in each; the same metrics.")
    ] = 1,
    timeout: Annotated[
        float, typer.Option(help="With --workers: seconds without a row scored after which a process counts as hung.")
    ] = 300.0,
    on_bad_row: Annotated[str, typer.Option(help="error, or skip (and count).")] = "error",
    unlabelled: Annotated[bool, typer.Option(help="The rows have no label column: predict only.")] = False,
    same_inputs: Annotated[bool, typer.Option(help=SAME_INPUTS)] = False,
    calibration: Annotated[
        bool,
        typer.Option(help="Also tell predicted over actual clicks, by tenths of the rows from low scores to high."),
    ] = False,
    segment: Annotated[
        list[str] | None,
        typer.Option(
            help="Also measure by value of this slot; SLOT=VALUE,VALUE calls these values, as the data has them, by "
            "name. May be given again."
        ),
    ] = None,
    precision: Annotated[str, typer.Option(help="float32 or bf16, for the dense network.")] = "float32",
    json_output: Annotated[bool, typer.Option("--json", help="Print the metrics as one JSON object.")] = False,
) -> None:
    """Score rows with a saved model, and measure it where rows have labels."""
    checkpoint = Checkpoint.open(checkpoint_of(model, which))
    if workers < 1:
        raise ConfigError(f"--workers {workers} must be 1 or above")
    if not timeout > 0:
        raise ConfigError(f"--timeout {timeout:g} must be above 0 seconds")
    if output is not None:
        check_name(output)
    scoring = Scoring(
        checkpoint=str(checkpoint.location),
        format=format,
        pipe_command=pipe_command,
        batch_size=batch_size,
        threads=(2 if workers == 1 else 1) if threads is None else threads,
        on_bad_row=on_bad_row,
        labelled=not unlabelled,
        precision=precision,
        same_inputs=same_inputs,
        model=own_model,
        calibration=calibration,
        segments=tuple(segment or ()),
    )
    files = list_files(data)
    with progress("scoring") as report:

        def tell(rows: int, share: float | None) -> None:
            report(rows, all_rows(rows, share))

        if workers == 1:
            with sigterm_interrupts():
                metrics, skipped = scoring.score(files, output, tell)
        else:
            scoring.check(data)
            shares = ordered_shares(files, workers, cuttable=can_be_cut(format, pipe_command))
            with sigterm_interrupts():
                metrics, skipped = score_with_workers(scoring, shares, output, timeout=timeout, tell=tell)
    values = metrics.values()
    tell_skipped(skipped, data)
    if not unlabelled:
        where = f"[bold]{escape(str(checkpoint.location))}[/] on {escape(data)}"
        say(f"{where}:  {escape(describe_metrics(values))}")
        if details := metrics.details():
            console.print(_segments_table(details))
        for slot, names in metrics.unmet_segments().items():
            say(f"[yellow]--segment {escape(slot)}[/]: no row has the value {escape(', '.join(names))}")
    if output:
        say(f"[bold]predictions[/] {escape(str(output))}")
    if json_output:
        extra = {"model": str(checkpoint.location), "step": checkpoint.manifest.step}
        more = {"segments": [plain_numbers(line) for line in metrics.details()]} if segment else {}
        print(json.dumps(plain_numbers({**values, **extra, "skipped": skipped, **more})))


def _segments_table(details: Sequence[Mapping[str, Any]]) -> Table:
    table = figures("slot", "value", ">rows", ">clicks", ">auc", ">logloss", ">click ratio")
    for line in details:
        shown = [f"{line[name]:.4f}" if line[name] is not None else "-" for name in ("auc", "logloss", "click_ratio")]
        value = line["value"] if line["value"] is not None else f"key {line['key']}"
        add_figures(table, line["slot"], value, f"{line['rows']:,}", f"{line['clicks']:,}", *shown)
    return table


def all_rows(rows: int, share: float | None) -> int | None:
    """How many there will be, if the rest is like what has been scored."""
    return max(rows, round(rows / share)) if share else None
