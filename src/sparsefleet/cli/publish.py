"""`sparsefleet publish`: write a bundle's rows to Redis, complete before they are switched to. Imports no torch."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.markup import escape

from sparsefleet.cli.console import errors_to_exit, progress, say, size_text
from sparsefleet.core.errors import ConfigError
from sparsefleet.core.interrupts import sigterm_interrupts


@errors_to_exit
def publish(
    bundle: Annotated[
        str, typer.Argument(help="A bundle: a folder, or its URI. With --rollback there is none: give the URL alone.")
    ],
    url: Annotated[
        str | None, typer.Argument(help=r"redis://\[user:password@]host\[:port]\[/database], rediss:// for TLS.")
    ] = None,
    prefix: Annotated[
        str | None, typer.Option(help="What all names in Redis start with; one per model. By default sparsefleet.")
    ] = None,
    rollback: Annotated[bool, typer.Option("--rollback", help="Make the previous version current again.")] = False,
    thin: Annotated[
        str | None,
        typer.Option(help="Also write the bundle without its rows to this folder, for servers that read them here."),
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds that Redis may take over one step.")] = 30.0,
    json_output: Annotated[bool, typer.Option("--json", help="Print what was done as one JSON object.")] = False,
) -> None:
    """Publish a bundle's rows to Redis, for `serve --sparse redis://…`. The previous version stays for roll-back."""
    from sparsefleet.export.bundle import Bundle
    from sparsefleet.export.thin import check_thin, write_thin
    from sparsefleet.serving.redis import RedisAddress
    from sparsefleet.serving.redis import publish as run
    from sparsefleet.serving.redis import roll_back as back

    if url is None and not rollback:
        raise ConfigError("publish wants two words, a bundle and where it goes: sparsefleet publish BUNDLE redis://…")
    if thin is not None and rollback:
        raise ConfigError("--thin writes a part of the bundle that is published; --rollback publishes none")
    if url is not None and rollback:
        raise ConfigError("--rollback goes with the address alone: sparsefleet publish redis://… --rollback")
    address = RedisAddress.parse(url or bundle, prefix=prefix)
    with sigterm_interrupts():
        if rollback:
            done = back(address, timeout=timeout)
        else:
            if thin is not None:
                check_thin(thin)  # before servers could see what is published
            opened = Bundle.open(bundle, full=True)
            with progress(f"publishing {opened.name}") as report:
                done = run(opened, address, progress=report, timeout=timeout)
            if thin is not None:
                write_thin(opened, thin)
    what = f"{done.rows:,} rows, {size_text(done.bytes)} in {done.seconds:.1f} s" if done.written else "was there"
    say(
        f"{address.shown}, prefix {address.prefix}: version {done.version} is current ({what}); "
        f"previous: {done.previous or 'none'}; removed: {', '.join(done.removed) or 'none'}",
        markup=False,
    )
    if done.warning:
        say(f"[yellow]warning:[/] {escape(done.warning)}")
    if json_output:
        print(json.dumps({"url": address.shown, "prefix": address.prefix, **asdict(done)}))
