"""`sparsefleet checkpoint show | verify | diff`: what is inside, is it whole, how do two differ."""

from __future__ import annotations

import json
import math
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.table import Table

from sparsefleet.checkpoint import Checkpoint, diff, latest, show
from sparsefleet.core.errors import SparseFleetError

app = typer.Typer(name="checkpoint", help="Look into checkpoints, check them, compare them.", no_args_is_help=True)

Path = Annotated[
    str, typer.Argument(help="A checkpoint, or a run's folder of them (the newest is taken); path or URI.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command("show")
def show_command(path: Path, as_json: AsJson = False) -> None:
    """Tables, dense blocks, sizes, step and reader positions."""
    try:
        found = show(path)
    except SparseFleetError as error:
        _fail(error, as_json)
    if as_json:
        _print_json(found)
        return
    console = Console(markup=False, highlight=False)
    console.print(
        f"{found['path']}: step {found['step']:,}, {_size(found['bytes'])}, saved {found['created']}",
        soft_wrap=True,
    )
    tables = Table("table", "rows", "dim", "optimizer", "state", "updates", "files", "size")
    for table in found["tables"]:
        tables.add_row(
            table["name"],
            f"{table['rows']:,}",
            str(table["dim"]),
            table["optimizer"],
            str(table["state_width"]) if table["state_width"] else "none",
            f"{table['step']:,}",
            str(table["files"]),
            _size(table["bytes"]),
        )
    console.print(tables)
    parameters = Table("block", "parameter", "shape")
    for block in found["blocks"]:
        for name, shape in block["parameters"].items():
            parameters.add_row(block["name"], name, " x ".join(map(str, shape)) or "scalar")
    console.print(parameters)
    for trainer, position in found["positions"].items():
        console.print(f"reader position of trainer {trainer}: {json.dumps(position)}", soft_wrap=True)


@app.command("verify")
def verify_command(path: Path, as_json: AsJson = False) -> None:
    """Read every byte and compare every checksum; exit status 1 when something is damaged."""
    try:
        checkpoint = Checkpoint.open(latest(path))
        problems = [str(problem) for problem in checkpoint.problems()]
    except SparseFleetError as error:
        _fail(error, as_json)
    files = checkpoint.manifest.files
    total = sum(entry.bytes for entry in files)
    result = {
        "path": str(checkpoint.location),
        "ok": not problems,
        "files": len(files),
        "bytes": total,
        "problems": problems,
    }
    if as_json:
        _print_json(result)
    elif problems:
        for problem in problems:
            typer.echo(problem, err=True)
        typer.echo(f"{checkpoint.location}: {len(problems)} of {len(files)} files damaged", err=True)
    else:
        typer.echo(f"{checkpoint.location}: {len(files)} files, {_size(total)}, all as the manifest says")
    raise typer.Exit(1 if problems else 0)


@app.command("diff")
def diff_command(a: Path, b: Path, as_json: AsJson = False) -> None:
    """Compare schema, tables row by row, and dense tensors; exit status 1 when anything differs."""
    try:
        found = diff(a, b)
    except SparseFleetError as error:
        _fail(error, as_json)
    if as_json:
        _print_json(found)
    else:
        _print_diff(found)
    raise typer.Exit(0 if found["same"] else 1)


def _print_diff(found: dict[str, Any]) -> None:
    console = Console(markup=False, highlight=False)
    console.print(
        f"a: {found['a']} (step {found['step'][0]:,})\nb: {found['b']} (step {found['step'][1]:,})",
        soft_wrap=True,
    )
    for part in ("schema", "model"):
        for field, (left, right) in found[part].items():
            console.print(f"{part}: {field}: {json.dumps(left)} | {json.dumps(right)}", soft_wrap=True)
    rows = Table("table", "rows a", "rows b", "only in a", "only in b", "max difference", "of state", "spec")
    for name, table in found["tables"].items():
        if "only_in" in table:
            rows.add_row(name, *[""] * 6, f"only in {table['only_in']}")
            continue
        spec = ", ".join(f"{field} {left} | {right}" for field, (left, right) in table["spec"].items())
        numbers = (table.get(what) for what in ("only_in_a", "only_in_b", "max_difference", "max_state_difference"))
        left, right = (f"{count:,}" for count in table["rows"])
        rows.add_row(name, left, right, *("-" if n is None else f"{n:,g}" for n in numbers), spec or "same")
    console.print(rows)
    tensors = Table("tensor", "max difference")
    for name, tensor in found["dense"].items():
        if "only_in" in tensor:
            tensors.add_row(name, f"only in {tensor['only_in']}")
        elif "shapes" in tensor:
            tensors.add_row(name, " | ".join(tensor["shapes"]))
        else:
            tensors.add_row(name, f"{tensor['max_difference']:g}")
    console.print(tensors)
    console.print("same" if found["same"] else "they differ")


def _fail(error: SparseFleetError, as_json: bool) -> NoReturn:
    if as_json:
        _print_json({"ok": False, "error": str(error)})
    typer.echo(f"error: {error}", err=True)
    raise typer.Exit(1)


def _print_json(data: Any) -> None:
    typer.echo(json.dumps(_finite(data)))


def _finite(data: Any) -> Any:
    """JSON has no infinity: an infinite difference (a NaN on one side) is told as text."""
    if isinstance(data, dict):
        return {name: _finite(value) for name, value in data.items()}
    if isinstance(data, list):
        return [_finite(value) for value in data]
    return str(data) if isinstance(data, float) and not math.isfinite(data) else data


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
