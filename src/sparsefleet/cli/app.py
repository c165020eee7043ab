"""All commands in one place."""

from __future__ import annotations

import typer

from sparsefleet import __version__
from sparsefleet.cli import checkpoint, data
from sparsefleet.cli.export import export
from sparsefleet.cli.infer import infer
from sparsefleet.cli.publish import publish
from sparsefleet.cli.replay import replay
from sparsefleet.cli.serve import serve
from sparsefleet.cli.status import status
from sparsefleet.cli.train import train
from sparsefleet.cli.verify import verify

app = typer.Typer(
    name="sparsefleet",
    help="Train click-through-rate models with huge sparse embedding tables on CPU machines.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
)
app.add_typer(data.app, name="data")
app.add_typer(checkpoint.app, name="checkpoint")
app.command()(train)
app.command()(infer)
app.command()(status)
app.command()(export)
app.command()(publish)
app.command()(serve)
app.command()(verify)
app.command()(replay)


@app.callback(invoke_without_command=True)
def root(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    if version:
        print(__version__)
        raise typer.Exit
