"""`sparsefleet infer`: score rows with a saved model. Metrics start from zero; predictions keep the input's order."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from sparsefleet.checkpoint import Checkpoint, latest
from sparsefleet.cli.console import console, errors_to_exit, sigterm_interrupts
from sparsefleet.cli.predictions import open_predictions
from sparsefleet.cli.reading import ReadingOptions, tell_skipped
from sparsefleet.core.errors import CheckpointError
from sparsefleet.core.schema import Schema
from sparsefleet.metrics import ClickMetrics
from sparsefleet.models import registry
from sparsefleet.optim import SGD
from sparsefleet.train import Trainer
from sparsefleet.train.reporting.console import describe_metrics
from sparsefleet.train.reporting.jsonl import plain_numbers


@errors_to_exit
def infer(
    model: Annotated[str, typer.Argument(help="A checkpoint, or a run's folder: then its newest checkpoint.")],
    data: Annotated[str, typer.Option(help="Rows to score: a folder, a file or a pattern.")],
    output: Annotated[
        Path | None, typer.Option(help="Where to write predictions, one per input row: a .csv or .parquet file.")
    ] = None,
    format: Annotated[str, typer.Option(help="auto, criteo, multislot or parquet.")] = "auto",
    pipe_command: Annotated[
        str | None, typer.Option(help="Shell command that turns a file (its stdin) into MultiSlot text.")
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Rows in a batch.")] = 1000,
    threads: Annotated[int, typer.Option(help="Scoring threads; with --output it is one.")] = 2,
    on_bad_row: Annotated[str, typer.Option(help="error, or skip (and count).")] = "error",
    unlabelled: Annotated[bool, typer.Option(help="The rows have no label column: predict only.")] = False,
    precision: Annotated[str, typer.Option(help="float32 or bf16, for the dense network.")] = "float32",
    json_output: Annotated[bool, typer.Option("--json", help="Print the metrics as one JSON object.")] = False,
) -> None:
    """Score rows with a saved model, and measure it where rows have labels."""
    checkpoint = Checkpoint.open(latest(model))
    if checkpoint.manifest.schema is None:
        raise CheckpointError(f"{checkpoint.location} does not say what its input looks like (no schema)")
    schema = Schema.from_dict(checkpoint.manifest.schema, where=f"{checkpoint.location}: schema")
    network = registry.build(checkpoint.manifest.model)
    # Nothing is trained: with SGD no row carries optimizer state.
    trainer = Trainer(SGD(), threads=threads, precision=precision)
    trainer.load(network, str(checkpoint.location), values_only=True)
    reading = ReadingOptions("queue", format, pipe_command, batch_size, on_bad_row, threads, not unlabelled)
    with sigterm_interrupts():
        rows = reading.open(data, schema)
        if output is None:
            metrics = trainer.measure(network, rows)
        else:
            metrics = ClickMetrics()
            with open_predictions(output) as write, closing(trainer.predict(network, rows)) as predicted:
                for batch, probabilities in predicted:
                    write(batch, probabilities)
                    metrics.update(probabilities, batch.labels)
    values = metrics.values()
    tell_skipped(rows.skipped(), data)
    if not unlabelled:
        where = f"[bold]{escape(str(checkpoint.location))}[/] on {escape(data)}"
        console.print(f"{where}:  {describe_metrics(values)}", soft_wrap=True)
    if output:
        console.print(f"[bold]predictions[/] {escape(str(output))}", soft_wrap=True)
    if json_output:
        extra = {"model": str(checkpoint.location), "step": checkpoint.manifest.step}
        print(json.dumps(plain_numbers({**values, **extra, "skipped": rows.skipped()})))
