"""`sparsefleet export`: make a bundle, which serving needs and nothing else, from a checkpoint."""

from __future__ import annotations

import json
import math
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from pyarrow import parquet
from rich.markup import escape
from rich.table import Table

from sparsefleet.cli.console import console, errors_to_exit, progress, say, size_text
from sparsefleet.cli.reading import OWN_MODEL, WHICH, checkpoint_of
from sparsefleet.core.errors import ConfigError, SparseFleetError
from sparsefleet.core.inputs import pipe_advice
from sparsefleet.data.base import Reader
from sparsefleet.data.formats import format_help
from sparsefleet.export.gate import Requirement
from sparsefleet.export.gate import require as require_metrics
from sparsefleet.export.manifest import SCORE_BOUNDS, Lineage


@errors_to_exit
def export(
    checkpoint: Annotated[
        str, typer.Argument(help="A checkpoint, or a run's folder: then its best one, or the newest where none is.")
    ],
    out: Annotated[
        str,
        typer.Option(
            help="The bundle's folder; a bundle of that name is replaced. Or a URI such as s3://bucket/models/v1, "
            "where there must be none yet."
        ),
    ],
    which: Annotated[str, typer.Option("--checkpoint", help=WHICH)] = "",
    rows: Annotated[str, typer.Option(help="How rows are kept: float32, float16 or int8.")] = "float32",
    min_seen: Annotated[int, typer.Option(help="Leave out rows that training met fewer times than this.")] = 0,
    name: Annotated[
        str | None, typer.Option(help="The version that servers tell; by default step and bundle id.")
    ] = None,
    outputs: Annotated[
        str | None,
        typer.Option(
            help="Of a model for several labels, those that the bundle is to predict, with commas between; the first "
            "is its score. What only the others need is left out. By default all."
        ),
    ] = None,
    own_model: Annotated[str | None, typer.Option("--model", help=OWN_MODEL)] = None,
    same_inputs: Annotated[
        bool,
        typer.Option(
            help="The model was trained on ready keys and numbers (a pipe command's), so requests must hold such: with "
            "this you vouch that the schema makes the same of raw values, and requests may hold those."
        ),
    ] = False,
    test_data: Annotated[
        str | None,
        typer.Option(
            help="Score these rows with the checkpoint first: their metrics, and how scores are spread, go into the "
            "manifest, for --require and for servers' metrics of drift."
        ),
    ] = None,
    require: Annotated[
        list[str] | None,
        typer.Option(
            help='Write a bundle only if its metrics are good enough: "auc>=.75". May repeat; with --test-data.'
        ),
    ] = None,
    train_data: Annotated[
        str | None,
        typer.Option(
            help="Rows that the model was trained on: how their values and numbers are spread goes into the bundle, "
            "and servers tell how far requests are from it. By default --test-data, where that is given."
        ),
    ] = None,
    format: Annotated[str, typer.Option(help=f"Of --test-data and --train-data. {format_help()}")] = "auto",
    pipe_command: Annotated[
        str | None,
        typer.Option(help="Of --test-data and --train-data: shell command that turns a file into MultiSlot text."),
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print what was written as one JSON object.")] = False,
) -> None:
    """Make a bundle of a checkpoint: ONNX network, mapped rows, schema. Needs neither script nor torch to serve."""
    try:
        from sparsefleet.export import export_checkpoint
        from sparsefleet.scoring.saved_model import saved_model
    except ImportError as error:
        raise SparseFleetError(f"exporting needs more packages ({error}): pip install 'sparsefleet[serve]'") from error
    if require and test_data is None:
        raise ConfigError("--require compares metrics of --test-data: give that, too")
    for text in require or ():
        Requirement.parse(text)  # before the test data are scored, which may take long
    checkpoint = str(checkpoint_of(checkpoint, which))
    kept = None if outputs is None else [name.strip() for name in outputs.split(",")]
    lineage = _lineage(checkpoint, own_model, test_data, format, pipe_command, same_inputs, kept)
    require_metrics(lineage.metrics, require or (), checkpoint)
    seen_as = train_data or test_data or ""
    done = export_checkpoint(
        checkpoint,
        out,
        rows=rows,
        min_seen=min_seen,
        name=name,
        model=None if own_model is None else saved_model(checkpoint, own_model)[0],
        same_inputs=same_inputs,
        lineage=lineage,
        seen=_seen(checkpoint, own_model, seen_as, format, pipe_command, same_inputs) if seen_as else None,
        seen_as=seen_as,
        outputs=kept,
        progress=lambda what: console.print(f"writing {what}", markup=False),
    )
    manifest = done.manifest
    summary = Table("part", "rows", "left out", "kept as", "size")
    for table in manifest.tables:
        size = size_text(manifest.file(table.path).bytes)
        summary.add_row(escape(f"table {table.name}"), f"{table.rows:,}", f"{table.dropped:,}", table.dtype, size)
    summary.add_row("network", "", "", "ONNX", size_text(manifest.file("model.onnx").bytes))
    console.print(summary)
    say(
        f"[bold]bundle[/] {escape(str(done.path))}  version {escape(manifest.name)}, "
        f"of {escape(manifest.checkpoint.name)}; "
        f"ONNX Runtime differs from torch by {done.difference:.1e} at most",
    )
    if manifest.inputs is not None and (takes := pipe_advice(manifest.inputs)):
        say(f"requests must hold {takes} (--same-inputs where the schema makes the same of raw values)", markup=False)
    if json_output:
        tables = {table.name: {"rows": table.rows, "dropped": table.dropped} for table in manifest.tables}
        total = sum(entry.bytes for entry in manifest.files)
        facts = {"bundle": str(done.path), "version": manifest.name, "id": manifest.id, "bytes": total}
        print(json.dumps({**facts, "tables": tables, "difference": done.difference}))


def _seen(
    checkpoint: str, model: str | None, data: str, format: str, pipe_command: str | None, same_inputs: bool
) -> Reader:
    """The rows whose spread servers compare requests with, read as in training."""
    from sparsefleet.data.open import open_reader
    from sparsefleet.scoring.saved_model import check_inputs, saved_model

    schema = saved_model(checkpoint, model)[1]
    reader = open_reader(data, schema, format_name=format, pipe_command=pipe_command, same_inputs=same_inputs)
    check_inputs(checkpoint, reader)
    return reader


def _lineage(
    checkpoint: str,
    model: str | None,
    data: str | None,
    format: str,
    pipe_command: str | None,
    same_inputs: bool,
    outputs: list[str] | None,
) -> Lineage:
    """`outputs`: of a model for several labels, those that the bundle predicts; scores are of the first."""
    if data is None:
        return Lineage(commit=_commit())
    from sparsefleet.data.files import list_files
    from sparsefleet.scoring import Scoring

    scoring = Scoring(
        checkpoint=checkpoint,
        model=model,
        format=format,
        pipe_command=pipe_command,
        batch_size=1000,
        threads=1,
        on_bad_row="error",
        labelled=True,
        precision="float32",
        same_inputs=same_inputs,
    )
    with tempfile.TemporaryDirectory() as folder, progress("scoring the test data") as report:
        out = Path(folder) / "scores.parquet"
        metrics, _ = scoring.score(list_files(data), out, lambda rows, share: report(rows, None))
        columns = [name for name in parquet.read_schema(out).names if name.startswith("probability")]
        wanted = f"probability_{outputs[0]}" if outputs else columns[0]
        # A name that no label has is refused by the export itself, which tells the labels.
        score = wanted if wanted in columns else columns[0]
        scores = parquet.read_table(out, columns=[score])[score].to_numpy()
    counts = np.bincount(np.searchsorted(np.array(SCORE_BOUNDS[:-1]), scores), minlength=len(SCORE_BOUNDS))
    kept = {
        name: value
        for name, value in metrics.values().items()
        if isinstance(value, int | float) and math.isfinite(value)
    }
    return Lineage(data=data, metrics=kept, commit=_commit(), scores=tuple(counts.tolist()))


def _commit() -> str | None:
    """Of the source tree that this runs in; None where there is none."""
    try:
        found = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    text = found.stdout.strip()
    return text if found.returncode == 0 and re.fullmatch(r"[0-9a-f]{40,64}", text) else None
