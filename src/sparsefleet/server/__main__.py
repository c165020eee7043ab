"""`python -m sparsefleet.server`: one parameter server. Its first line of output is JSON: where it listens."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from pathlib import Path

from sparsefleet.core.errors import SparseFleetError
from sparsefleet.server.config import ServerConfig
from sparsefleet.server.process import run_server
from sparsefleet.store.wire.auth import TOKEN_VARIABLE, insecure_allowed


def read_arguments(arguments: list[str]) -> ServerConfig:
    parser = argparse.ArgumentParser(prog="python -m sparsefleet.server", description="One parameter server.")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    parser.add_argument("--index", type=int, default=0, help="which of the run's servers this is")
    parser.add_argument("--servers", help="host:port of all servers, with commas; default: what trainers say")
    parser.add_argument("--workers", type=int, help="number of trainers; default: what trainers say")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds of silence after which a trainer is lost")
    parser.add_argument("--join-timeout", type=float, default=120.0, help="seconds in which all trainers must register")
    parser.add_argument("--lost-trainer", choices=("error", "drop"), default="error")
    parser.add_argument("--load-from", help="checkpoint to start from")
    parser.add_argument("--tls-certificate", type=Path, help="PEM file")
    parser.add_argument("--tls-key", type=Path, help="PEM file")
    parser.add_argument("--insecure", action="store_true", help="listen beyond this machine without a token")
    parser.add_argument("--watch-parent", action="store_true", help="end when the starting process ends")
    chosen = parser.parse_args(arguments)
    return ServerConfig(
        host=chosen.host,
        port=chosen.port,
        index=chosen.index,
        endpoints=tuple(chosen.servers.split(",")) if chosen.servers else None,
        workers=chosen.workers,
        timeout=chosen.timeout,
        join_timeout=chosen.join_timeout,
        lost_trainer=chosen.lost_trainer,
        load_from=chosen.load_from,
        token=os.environ.get(TOKEN_VARIABLE) or None,
        tls_certificate=chosen.tls_certificate.read_bytes() if chosen.tls_certificate else None,
        tls_key=chosen.tls_key.read_bytes() if chosen.tls_key else None,
        insecure=chosen.insecure or insecure_allowed(os.environ),
        watch_parent=chosen.watch_parent,
    )


def main(arguments: list[str]) -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        run_server(
            read_arguments(arguments), announce=lambda endpoint: print(json.dumps({"endpoint": endpoint}), flush=True)
        )
    except (SparseFleetError, OSError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main(sys.argv[1:])
