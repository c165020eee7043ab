"""A server's life in a job, from its role and its strategy to the end of the process.

Without torch, which servers do not need: so they are up in half the time, and again so after a loss.
"""

from __future__ import annotations

import contextlib
import sys
from typing import NoReturn

from sparsefleet.core.errors import SparseFleetError
from sparsefleet.fleet.healing import HealingVariables
from sparsefleet.fleet.roles import Role
from sparsefleet.fleet.security import Security
from sparsefleet.fleet.strategy import Resolved
from sparsefleet.server import ServerConfig
from sparsefleet.server.process import run_server
from sparsefleet.store.remote import RemoteConfig
from sparsefleet.store.remote.failed_start import tell_peers

SILENT_ATTEMPTS = 5
"""Time-outs that a server of a job that heals waits for trainers to come back."""


def serve(role: Role, strategy: Resolved, load_from: str | None = None) -> NoReturn:
    """Serve until all trainers have stopped. Ends the process. load_from: a checkpoint to start from."""
    try:
        run_server(_config(role, strategy, load_from))
    except SparseFleetError as error:
        # One line, and at once: whoever started it by hand looks at it, and the others wait for this server.
        sys.stderr.write(f"error: {error}\n")
        sys.stderr.flush()
        _tell_other_servers(role, str(error))
        sys.exit(1)


def _tell_other_servers(role: Role, reason: str) -> None:
    with contextlib.suppress(SparseFleetError):  # what could be wrong with them is this server's error already
        security = Security.from_environment()
        tell_peers(
            RemoteConfig(role.server_endpoints, token=security.token, tls_root_certs=security.roots),
            role.index,
            reason,
        )


def _config(role: Role, strategy: Resolved, load_from: str | None) -> ServerConfig:
    assert role.current_endpoint is not None
    host, _, port = role.current_endpoint.rpartition(":")
    security, healing = Security.from_environment(), HealingVariables.from_environment()
    return ServerConfig(
        host=host,
        port=int(port),
        index=role.index,
        endpoints=role.server_endpoints,
        workers=role.worker_num,
        elastic=role.elastic,
        mode=strategy.mode,
        timeout=strategy.timeout,
        join_timeout=strategy.connect_timeout,
        # In a job that heals, trainers that have fallen silent are started again.
        abandoned_after=strategy.timeout * (1 if healing is None else SILENT_ATTEMPTS),
        # Of an elastic job the others have the lost one's data.
        lost_trainer="drop" if strategy.lost_trainer == "drop" or role.elastic else "error",
        load_from=load_from,
        attempt=None if healing is None else healing.attempt,
        cut=None if healing is None else healing.cut,
        stopped=() if healing is None else healing.stopped,
        crew=None if healing is None or role.elastic is None else healing.crew,
        token=security.token,
        tls_certificate=security.certificate,
        tls_key=security.key,
        insecure=security.insecure,
    )
