"""`sparsefleet serve`: answer predictions over HTTP from a bundle. Imports no torch."""

from __future__ import annotations

from typing import Annotated

import typer

from sparsefleet.cli.console import console, errors_to_exit
from sparsefleet.core.errors import SparseFleetError


@errors_to_exit
def serve(
    bundle: Annotated[
        str,
        typer.Argument(help="A bundle, or a folder of bundles with a file `current` that names one: it is followed."),
    ],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 8000,
    threads: Annotated[int, typer.Option(help="Requests scored at a time.")] = 2,
    sparse: Annotated[
        str, typer.Option(help="Where rows come from: mmap (the bundle's own files) or redis://…?prefix=NAME.")
    ] = "mmap",
    check: Annotated[
        str, typer.Option(help="Check of a bundle before it serves: full, or quick (not the rows).")
    ] = "full",
    max_body: Annotated[int, typer.Option(help="Bytes that a request may have.")] = 16 << 20,
    max_rows: Annotated[int, typer.Option(help="Rows that a JSON request may have.")] = 10_000,
    batch_rows: Annotated[int, typer.Option(help="Rows scored together at most.")] = 400,
    watch_seconds: Annotated[float, typer.Option(help="How often `current` is looked at.")] = 2.0,
    log_requests: Annotated[
        str | None, typer.Option(help="Write every JSON request with its scores to this file, for `replay`.")
    ] = None,
    log_max_bytes: Annotated[int, typer.Option(help="A log of this size is kept as FILE.1, and a new one begun.")] = 256
    << 20,
    allow_missing: Annotated[bool, typer.Option(help="A field that a row leaves out counts as null.")] = False,
) -> None:
    """Serve predictions: POST /v1/predict, GET /v1/model, /healthz, /metrics; POST /v1/reload, /v1/rollback."""
    try:
        from sparsefleet.serving.config import ServeConfig
        from sparsefleet.serving.server import serve as run
    except ImportError as error:
        raise SparseFleetError(f"serving needs more packages ({error}): pip install 'sparsefleet[serve]'") from error
    config = ServeConfig(
        bundle=bundle,
        host=host,
        port=port,
        threads=threads,
        sparse=sparse,
        check=check,
        max_body=max_body,
        max_rows=max_rows,
        batch_rows=batch_rows,
        allow_missing=allow_missing,
        log_requests=log_requests,
        log_max_bytes=log_max_bytes,
        watch_seconds=watch_seconds,
    )
    console.print(f"serving {bundle}; SIGTERM or Ctrl-C ends it", markup=False)
    run(config)
