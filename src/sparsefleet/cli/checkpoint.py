"""`sparsefleet checkpoint show | verify | diff`: what is inside, is it whole, how do two differ."""

from __future__ import annotations

import json
import math
from typing import Annotated, Any, NoReturn

import typer

from sparsefleet.checkpoint import Checkpoint, diff, latest, show
from sparsefleet.cli.console import add_figures, figures, results, say, size_text
from sparsefleet.cli.positions import describe_position
from sparsefleet.cli.train_checks import epochs_done
from sparsefleet.core.errors import SparseFleetError
from sparsefleet.core.inputs import Inputs, pipe_advice

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
    out = results()
    about = f"{found['path']}: step {found['step']:,}, {size_text(found['bytes'])}, saved {found['created']}"
    say(about, markup=False, to=out)
    tables = figures("table", ">rows", ">dim", "optimizer", ">state", ">updates", ">files", ">size")
    for table in found["tables"]:
        add_figures(
            tables,
            table["name"],
            f"{table['rows']:,}",
            str(table["dim"]),
            table["optimizer"],
            str(table["state_width"]) if table["state_width"] else "none",
            f"{table['step']:,}",
            str(table["files"]),
            size_text(table["bytes"]),
        )
    out.print(tables)
    parameters = figures("block", "parameter", "shape")
    for block in found["blocks"]:
        for name, shape in block["parameters"].items():
            add_figures(parameters, block["name"], name, " x ".join(map(str, shape)) or "scalar")
    out.print("", parameters)
    if found["inputs"] is not None:
        inputs = Inputs.from_dict(found["inputs"], found["path"])
        takes = pipe_advice(inputs)
        say(f"trained on {inputs.source()}" + (f": {takes}" if takes else ""), markup=False, to=out)
    epoch = epochs_done(found["extra"]) + 1
    for trainer, position in found["positions"].items():
        where = describe_position(position, epoch)
        whose = "all trainers (leases)" if trainer == "leases" else f"trainer {trainer}"
        say(f"reader position of {whose}: {where}", markup=False, to=out)


@app.command("verify")
def verify_command(path: Path, as_json: AsJson = False) -> None:
    """Read every byte and compare every checksum; exit status 1 when something is damaged."""
    try:
        checkpoint = Checkpoint.open(latest(path))
        problems = [str(problem) for problem in checkpoint.problems()]
    except SparseFleetError as error:
        _fail(error, as_json)
    files = [entry for layer in checkpoint.layers() for entry in layer.manifest.files]
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
        typer.echo(f"{checkpoint.location}: {len(files)} files, {size_text(total)}, all as the manifest says")
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
    out = results()

    def tell(text: str) -> None:
        say(text, markup=False, to=out)

    for side, step in zip("ab", found["step"], strict=True):
        tell(f"{side}: {found[side]} (step {step:,})")
    for part in ("schema", "model"):
        for field, (left, right) in found[part].items():
            tell(f"{part}: {field}: {json.dumps(left)} | {json.dumps(right)}")
    rows = figures("table", ">rows a", ">rows b", ">only a", ">only b", ">max diff", ">state diff")
    for name, table in found["tables"].items():
        if "only_in" in table:
            tell(f"table {name}: only in {table['only_in']}")
            continue
        for field, (left, right) in table["spec"].items():
            tell(f"table {name}: {field}: {left} | {right}")
        if table.get("seen_differs"):
            tell(f"table {name}: how often a row was seen: other counts in {table['seen_differs']:,} rows")
        numbers = (table.get(what) for what in ("only_in_a", "only_in_b", "max_difference", "max_state_difference"))
        add_figures(rows, name, *map(_number, (*table["rows"], *numbers)))
    if rows.row_count:
        out.print("", rows)
    tensors = figures("tensor", ">max diff")
    for name, tensor in found["dense"].items():
        if "only_in" in tensor:
            tell(f"tensor {name}: only in {tensor['only_in']}")
        elif "shapes" in tensor:
            tell(f"tensor {name}: {' | '.join(tensor['shapes'])}")
        else:
            add_figures(tensors, name, _number(tensor["max_difference"]))
    if tensors.row_count:
        out.print("", tensors)
    out.print("", "same" if found["same"] else "they differ", sep="\n")


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


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
