"""`sparsefleet serve`: answer predictions over HTTP from a bundle. Imports no torch."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated

import typer

from sparsefleet.cli.console import console, errors_to_exit
from sparsefleet.cli.distribution import pip_install
from sparsefleet.core.errors import SparseFleetError


@errors_to_exit
def serve(
    bundle: Annotated[
        str,
        typer.Argument(
            help="A bundle, or a folder of bundles with a file `current` that names one: it is followed. A path, or a "
            "URI such as s3://bucket/models/v1."
        ),
    ],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 8000,
    grpc_port: Annotated[
        int | None, typer.Option(help="Also serve the KServe (Triton) v2 protocol over gRPC there; 0 takes a free one.")
    ] = None,
    model_name: Annotated[str, typer.Option(help="What clients of that protocol call the model.")] = "model",
    threads: Annotated[
        int | None,
        typer.Option(help="Requests scored at a time; by default one a core (two at least), with Redis two a core."),
    ] = None,
    sparse: Annotated[
        str, typer.Option(help="Where rows come from: mmap (the bundle's own files) or redis://…?prefix=NAME.")
    ] = "mmap",
    fallback: Annotated[
        str | None, typer.Option(help="With --sparse redis://…: file takes the bundle's own rows where Redis fails.")
    ] = None,
    check: Annotated[
        str, typer.Option(help="Check of a bundle before it serves: full, or quick (not the rows).")
    ] = "full",
    max_body: Annotated[int, typer.Option(help="Bytes that a request may have.")] = 16 << 20,
    max_rows: Annotated[int, typer.Option(help="Rows that a JSON request may have.")] = 10_000,
    require: Annotated[
        list[str] | None, typer.Option(help='Serve only bundles whose metrics are good enough: "auc>=.75". May repeat.')
    ] = None,
    canary: Annotated[str | None, typer.Option(help="A second bundle, which answers a share of the requests.")] = None,
    canary_share: Annotated[float, typer.Option(help="The canary's share of the requests, 0 to 1.")] = 0.05,
    shadow: Annotated[
        str | None, typer.Option(help="A bundle that scores along; its scores are compared and answer nobody.")
    ] = None,
    batch_rows: Annotated[int, typer.Option(help="Rows scored together at most.")] = 400,
    queue_rows: Annotated[int, typer.Option(help="Rows that may wait; beyond them requests get 429.")] = 50_000,
    deadline: Annotated[
        float, typer.Option(help="Seconds for an answer at most; a request's header x-timeout-ms may say less.")
    ] = 30.0,
    header_timeout: Annotated[
        float, typer.Option(help="Seconds for the head of a request that has begun, and for a TLS handshake.")
    ] = 10.0,
    answer_timeout: Annotated[float, typer.Option(help="Seconds in which a client must have taken an answer.")] = 30.0,
    client_connections: Annotated[
        int, typer.Option(help="Connections without a request that one address may hold; the oldest is closed.")
    ] = 2000,
    max_connections: Annotated[
        int, typer.Option(help="Connections at a time, as far as the limit of open files allows; 0: all it allows.")
    ] = 0,
    linger: Annotated[
        float,
        typer.Option(
            help="Seconds that requests and connections are still taken after SIGTERM (not after Ctrl-C); each answer "
            "closes its connection."
        ),
    ] = 1.0,
    drain_timeout: Annotated[float, typer.Option(help="Seconds that requests under way get after that.")] = 30.0,
    watch_seconds: Annotated[
        float, typer.Option(help="How often `current` is looked at, and whether rows are still what they were.")
    ] = 2.0,
    log_requests: Annotated[
        str | None, typer.Option(help="Write every JSON request with its scores to this file, for `replay`.")
    ] = None,
    log_max_bytes: Annotated[int, typer.Option(help="A log of this size is kept as FILE.1, and a new one begun.")] = 256
    << 20,
    allow_missing: Annotated[bool, typer.Option(help="A field that a row leaves out counts as null.")] = False,
    allow_extra: Annotated[
        bool, typer.Option(help="A field that the model does not have is left out of account, not refused.")
    ] = False,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="SPARSEFLEET_PREDICT_TOKEN",
            show_envvar=True,
            help="What clients must send (Authorization: Bearer …). Others on the machine can read command lines: "
            "better set the variable.",
        ),
    ] = None,
    tls_cert: Annotated[str | None, typer.Option(help="Serve HTTPS with this certificate (PEM).")] = None,
    tls_key: Annotated[str | None, typer.Option(help="The certificate's key (PEM).")] = None,
) -> None:
    """Serve predictions of a bundle: POST /v1/predict; GET /v1/model, /healthz, /readyz, /metrics."""
    try:
        from sparsefleet.serving.config import ServeConfig
        from sparsefleet.serving.server import serve as run

        if grpc_port is not None:
            import_module("sparsefleet.serving.kserve.server")
    except ImportError as error:
        wanted = ("serve",) if grpc_port is None else ("serve", "grpc")
        raise SparseFleetError(f"serving needs more packages ({error}): {pip_install(*wanted)}") from error
    config = ServeConfig(
        bundle=bundle,
        host=host,
        port=port,
        grpc_port=grpc_port,
        model_name=model_name,
        threads=threads,
        sparse=sparse,
        check=check,
        max_body=max_body,
        max_rows=max_rows,
        batch_rows=batch_rows,
        allow_missing=allow_missing,
        allow_extra=allow_extra,
        fallback=fallback,
        require=tuple(require or ()),
        canary=canary,
        canary_share=canary_share,
        shadow=shadow,
        queue_rows=queue_rows,
        deadline=deadline,
        header_timeout=header_timeout,
        answer_timeout=answer_timeout,
        client_connections=client_connections,
        max_connections=max_connections,
        linger=linger,
        drain_timeout=drain_timeout,
        predict_token=token or None,
        tls_cert=tls_cert,
        tls_key=tls_key,
        log_requests=log_requests,
        log_max_bytes=log_max_bytes,
        watch_seconds=watch_seconds,
    )
    console.print(f"serving {bundle}; SIGTERM or Ctrl-C ends it", markup=False)
    run(config)
