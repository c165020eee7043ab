"""RunningJob: server 0 of a job that runs, for commands that change the job's shape."""

from __future__ import annotations

import time
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from sparsefleet.core.errors import ConfigError, StoreError
from sparsefleet.fleet.roles import parse_endpoints
from sparsefleet.fleet.security import Security
from sparsefleet.launch import job_token
from sparsefleet.store.remote.config import RemoteConfig
from sparsefleet.store.remote.link import ServerLink

ANSWER_SECONDS = 5.0


class RunningJob:
    def __init__(self, addresses: str, seconds: float) -> None:
        """addresses: of its servers, or of server 0 alone. seconds: for all that is asked of it."""
        security, endpoints = Security.from_environment(), parse_endpoints("addresses", addresses)
        token = security.token or job_token.find(endpoints[0])
        config = RemoteConfig(endpoints, timeout=ANSWER_SECONDS, tls_root_certs=security.roots)
        self._link = ServerLink(replace(config, token=token), 0)
        self.begun = time.monotonic()
        self.seconds = seconds

    def __enter__(self) -> Self:
        index = self._link.action("stats", {}).get("index")
        if index != 0:
            raise ConfigError(f"{self._link.endpoint} is server {index} of its job: name server 0 first")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._link.client.close()

    @property
    def waited(self) -> float:
        return time.monotonic() - self.begun

    def ask(self, action: str, **request: Any) -> dict[str, Any]:
        return self._link.action(action, request)

    def look(self) -> dict[str, Any] | None:
        """What server 0 says of the present attempt; None where it does not answer just now."""
        try:
            return self._link.action("look", {})
        except StoreError:
            return None
