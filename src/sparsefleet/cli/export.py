"""`sparsefleet export`: make a bundle, which serving needs and nothing else, from a checkpoint."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.table import Table

from sparsefleet.cli.console import console, errors_to_exit, say, size_text
from sparsefleet.cli.reading import WHICH, checkpoint_of
from sparsefleet.core.errors import SparseFleetError
from sparsefleet.core.inputs import pipe_advice


@errors_to_exit
def export(
    checkpoint: Annotated[
        str, typer.Argument(help="A checkpoint, or a run's folder: then its best one, or the newest where none is.")
    ],
    out: Annotated[str, typer.Option(help="The bundle's folder; a bundle of that name is replaced.")],
    which: Annotated[str, typer.Option("--checkpoint", help=WHICH)] = "",
    rows: Annotated[str, typer.Option(help="How rows are kept: float32, float16 or int8.")] = "float32",
    min_seen: Annotated[int, typer.Option(help="Leave out rows that training met fewer times than this.")] = 0,
    name: Annotated[
        str | None, typer.Option(help="The version that servers tell; by default step and bundle id.")
    ] = None,
    same_inputs: Annotated[
        bool,
        typer.Option(
            help="The model was trained on ready keys and numbers (a pipe command's), so requests must hold such: with "
            "this you vouch that the schema makes the same of raw values, and requests may hold those."
        ),
    ] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print what was written as one JSON object.")] = False,
) -> None:
    """Make a bundle of a checkpoint: ONNX network, mapped rows, schema. Needs neither script nor torch to serve."""
    try:
        from sparsefleet.export import export_checkpoint
    except ImportError as error:
        raise SparseFleetError(f"exporting needs more packages ({error}): pip install 'sparsefleet[serve]'") from error
    done = export_checkpoint(
        str(checkpoint_of(checkpoint, which)),
        out,
        rows=rows,
        min_seen=min_seen,
        name=name,
        same_inputs=same_inputs,
        progress=lambda what: console.print(f"writing {what}", markup=False),
    )
    manifest = done.manifest
    summary = Table("part", "rows", "left out", "kept as", "size")
    for table in manifest.tables:
        size = size_text(manifest.file(table.path).bytes)
        summary.add_row(f"table {table.name}", f"{table.rows:,}", f"{table.dropped:,}", table.dtype, size)
    summary.add_row("network", "", "", "ONNX", size_text(manifest.file("model.onnx").bytes))
    console.print(summary)
    say(
        f"[bold]bundle[/] {done.path}  version {manifest.name}, of {manifest.checkpoint.name}; "
        f"ONNX Runtime differs from torch by {done.difference:.1e} at most",
    )
    if manifest.inputs is not None and (takes := pipe_advice(manifest.inputs)):
        say(f"requests must hold {takes} (--same-inputs where the schema makes the same of raw values)", markup=False)
    if json_output:
        tables = {table.name: {"rows": table.rows, "dropped": table.dropped} for table in manifest.tables}
        total = sum(entry.bytes for entry in manifest.files)
        facts = {"bundle": str(done.path), "version": manifest.name, "id": manifest.id, "bytes": total}
        print(json.dumps({**facts, "tables": tables, "difference": done.difference}))
