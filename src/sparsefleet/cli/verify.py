"""`sparsefleet verify`: is what is served what was trained? Exit status 1 where something differs."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from sparsefleet.cli.console import console, errors_exit_with, say
from sparsefleet.cli.reading import OWN_MODEL, SAME_INPUTS
from sparsefleet.cli.verify_view import show_report
from sparsefleet.core.errors import BundleError, SparseFleetError
from sparsefleet.data.formats import format_help

UNREADABLE = 2
"""Exit status where there is nothing to compare: 1 says that something differs."""


@errors_exit_with(UNREADABLE)
def verify(
    checkpoint: Annotated[
        str, typer.Option(help="A checkpoint, or a run's folder: then its best one, or the newest where none is.")
    ],
    bundle: Annotated[str, typer.Option(help="The bundle that was made of it: a folder, or its URI (s3://…).")],
    data: Annotated[str, typer.Option(help="Rows to score everywhere: a folder, a file or a pattern.")],
    own_model: Annotated[str | None, typer.Option("--model", help=OWN_MODEL)] = None,
    url: Annotated[str | None, typer.Option(help="A running server, http://host:port.")] = None,
    redis: Annotated[
        str | None, typer.Option(help="Where the rows were published: redis://host:port/database?prefix=NAME.")
    ] = None,
    rows: Annotated[int, typer.Option(help="Rows of the data that are scored.")] = 1000,
    tolerance: Annotated[float, typer.Option(help="How far scores may be apart.")] = 1e-6,
    sparse_sample: Annotated[
        int | None, typer.Option(help="Compare about so many rows of each table instead of all.")
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds for one answer of a server.")] = 30.0,
    format: Annotated[str, typer.Option(help=format_help())] = "auto",
    pipe_command: Annotated[
        str | None, typer.Option(help="Shell command that turns a file (its stdin) into MultiSlot text.")
    ] = None,
    unlabelled: Annotated[bool, typer.Option(help="The rows have no label column.")] = False,
    same_inputs: Annotated[bool, typer.Option(help=SAME_INPUTS)] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print the report as one JSON object.")] = False,
) -> None:
    """Compare a checkpoint with its bundle and whoever serves it: network, parameters, settings, scores."""
    from sparsefleet.export.bundle import is_remote, local_path

    try:
        from sparsefleet.scoring.saved_model import saved_model
        from sparsefleet.verify import VerifyConfig
        from sparsefleet.verify import verify as compare
    except ImportError as error:
        raise SparseFleetError(f"verifying needs more packages ({error}): pip install 'sparsefleet[serve]'") from error
    config = VerifyConfig(
        rows=rows,
        tolerance=tolerance,
        sparse_sample=sparse_sample,
        timeout=timeout,
        format=format,
        pipe_command=pipe_command,
        labelled=not unlabelled,
        same_inputs=same_inputs,
    )
    with console.status("opening") as status:
        try:
            report = compare(
                checkpoint,
                bundle,
                data,
                url=url,
                redis=redis,
                model=None if own_model is None else saved_model(checkpoint, own_model)[0],
                config=config,
                progress=lambda what: status.update(f"comparing {what}"),
            )
        except BundleError as error:
            if not is_remote(bundle) and not (local_path(bundle) / "manifest.json").exists():
                raise
            _refused(error, json_output)
    if json_output:
        print(json.dumps(report.to_dict()))
    else:
        show_report(report)
    sys.stdout.flush()
    raise typer.Exit(0 if report.ok else 1)


def _refused(error: BundleError, json_output: bool) -> None:
    """There is a bundle, but nobody could serve it as it is: that is an answer, too."""
    if json_output:
        print(json.dumps({"ok": False, "error": str(error)}))
    say(f"differs: the bundle cannot be served as it is: {error}", style="bold red", markup=False)
    raise typer.Exit(1)
