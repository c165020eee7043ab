"""What a command says to the server 0 of a running job, for tests of elastic ones."""

from __future__ import annotations

import time
from typing import Any

from healing_jobs import TOKEN, Job

from sparsefleet.core.errors import StoreError
from sparsefleet.store.remote.config import RemoteConfig
from sparsefleet.store.remote.link import ServerLink


class Scale:
    """Implements `Asks` (`cli/scale_workers.py`)."""

    def __init__(self, job: Job, seconds: float = 60.0) -> None:
        self.seconds, self._begun = seconds, time.monotonic()
        endpoints = job.view.processes["server 0"].role.server_endpoints
        self._link = ServerLink(RemoteConfig(endpoints, token=TOKEN), 0)

    @property
    def waited(self) -> float:
        return time.monotonic() - self._begun

    def ask(self, action: str, **data: Any) -> dict[str, Any]:
        return self._link.action(action, data, 10.0)

    def look(self) -> dict[str, Any] | None:
        try:
            return self.ask("look")
        except StoreError:
            return None
