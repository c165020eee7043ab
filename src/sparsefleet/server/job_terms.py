"""JobTerms: what all processes of a job must agree on. Who comes with other terms is refused, and told both."""

from __future__ import annotations

from sparsefleet.core.errors import Rejoin, StoreError
from sparsefleet.server.config import ServerConfig
from sparsefleet.server.members import Registration

MAX_WORKERS = 65536


class JobTerms:
    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self.endpoints = config.endpoints
        """All servers, once known."""
        self.workers = config.workers if config.elastic is None else config.elastic.most
        """Numbers that trainers may have, once known."""
        self.mode = config.mode
        """How the trainers work together, once known."""

    def check(self, joining: Registration, at_work: bool) -> None:
        """Refuse a trainer that disagrees. `at_work`: others are, so the mode is theirs."""
        who, servers, workers = f"worker {joining.worker} ({joining.about})", joining.servers, joining.workers
        if joining.index != self._config.index:
            raise StoreError(
                f"{who} takes this for server {joining.index}, but it is server {self._config.index}: "
                "the server lists differ in order"
            )
        if joining.index >= len(servers):
            raise StoreError(f"{who} lists {len(servers)} servers; this is number {joining.index}")
        if self.endpoints is not None and servers != self.endpoints:
            raise StoreError(
                f"server lists differ: {who} has {', '.join(servers)}; this server has {', '.join(self.endpoints)}"
            )
        if self.workers is not None and workers != self.workers:
            raise StoreError(f"worker counts differ: {who} says {workers}; this server has {self.workers}")
        if not 0 <= joining.worker < workers <= MAX_WORKERS:
            raise StoreError(f"{who}: with {workers} workers, numbers are 0 to {workers - 1}")
        # A new job may have another mode than the one before it, unless this server was started for one.
        if at_work or self._config.mode:
            self._check_mode(who, joining.mode)

    def _check_mode(self, who: str, mode: str | None) -> None:
        if mode is not None and self.mode is not None and mode != self.mode:
            raise StoreError(
                f"modes differ: {who} trains in mode {mode}; this server and its other trainers in {self.mode}. "
                "Start every process of a job with the same mode"
            )

    def check_attempt(self, joining: Registration) -> None:
        if joining.attempt != self._config.attempt:
            if joining.attempt is None or self._config.attempt is None:
                raise StoreError(
                    f"worker {joining.worker} ({joining.about}) and this server disagree on whether the job heals "
                    "after a loss: start all processes of a job with the same launcher"
                )
            raise Rejoin(f"this server is in attempt {self._config.attempt} of the job, not in {joining.attempt}")

    def settle(self, joining: Registration) -> None:
        """The terms of a trainer that was taken in are the job's."""
        self.endpoints, self.workers = joining.servers, joining.workers
        self.mode = joining.mode or self.mode

    def new_job(self) -> None:
        """The servers and the number of trainers stay; the mode may be another one."""
        self.mode = self._config.mode
