"""What a command that trains does where the environment makes it a server: `train`, `word2vec train`."""

from __future__ import annotations

import logging
from typing import NoReturn

from sparsefleet.fleet.roles import Role
from sparsefleet.fleet.strategy import DistributedStrategy


def log_to_stderr() -> None:
    """What servers and connections have to say belongs into a role's log."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")


def serve(role: Role, strategy: DistributedStrategy) -> NoReturn:
    """A server's whole life. It starts empty: a run that is resumed has its first trainer tell all servers to load."""
    from sparsefleet.fleet.server_life import serve  # late: --help need not wait for it

    log_to_stderr()
    serve(role, strategy.resolved())
