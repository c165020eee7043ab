"""Scaling: how many workers somebody has asked for while the job runs (`sparsefleet scale --workers`). Server 0 knows.

Workers that are too many leave by themselves, as server 0 tells them; those that are missing, the launcher starts.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping, Sequence

from sparsefleet.core.errors import SparseFleetError
from sparsefleet.fleet.security import Security
from sparsefleet.store.remote.config import RemoteConfig
from sparsefleet.store.remote.link import ServerLink

LOOK_EVERY = 0.3
LOOK_SECONDS = 2.0
"""How long server 0 may take over one answer."""


Request = tuple[int | None, int]
"""A wish for so many workers: the attempt of the job that it was made in, and its number there."""


class Scaling:
    """A thread that asks; nobody waits for a server that does not answer."""

    def __init__(self, endpoints: Sequence[str], environment: Mapping[str, str]) -> None:
        self._endpoints, self._environment = tuple(endpoints), environment
        self._served: Request | None = None
        self._wanted: tuple[Request, int] | None = None
        self.taken: set[int] = set()
        """Numbers that workers have, as server 0 knows, those that were started by hand too."""
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._ask, name="scaling", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wanted(self) -> tuple[Request, int] | None:
        """A request that was not served yet, and how many workers it is for."""
        wanted = self._wanted
        return None if wanted is None or wanted[0] == self._served else wanted

    def serve(self, request: Request) -> None:
        """All that it needs has been done: from now on it is the workers' own business how many they are."""
        self._served = request

    def close(self) -> None:
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join(LOOK_SECONDS + 1)

    def _ask(self) -> None:
        link: ServerLink | None = None
        while not self._closing.wait(LOOK_EVERY):
            with contextlib.suppress(SparseFleetError, KeyError, TypeError, ValueError):  # it starts, or is gone
                link = link or self._link()
                answer = link.action("look", {}, LOOK_SECONDS)
                if (scaled := answer.get("scaled_to")) is not None:
                    self.taken = {int(worker) for worker in scaled["present"]}
                    self._wanted = ((answer.get("attempt"), int(scaled["request"])), int(scaled["workers"]))
        if link is not None:
            link.client.close()

    def _link(self) -> ServerLink:
        security = Security.from_environment(self._environment)
        return ServerLink(RemoteConfig(self._endpoints, token=security.token, tls_root_certs=security.roots), 0)
