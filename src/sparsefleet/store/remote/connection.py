"""Connection: one trainer's connection to all servers of its job. The store, the crew and their helpers share it."""

from __future__ import annotations

import contextlib
import os
import socket
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from sparsefleet.core.errors import StoreError
from sparsefleet.store.remote.callers import Callers
from sparsefleet.store.remote.config import RemoteConfig
from sparsefleet.store.remote.failed_start import check_peers
from sparsefleet.store.remote.heartbeats import Heartbeats
from sparsefleet.store.remote.link import Saved, ServerLink, on_all

GOOD_BYE_SECONDS = 2.0


class Connection:
    def __init__(self, config: RemoteConfig) -> None:
        """Connect to all servers, waiting for those that are not up yet, and register this trainer."""
        self.config = config
        self.incarnation = uuid.uuid4().hex
        self.identity: Mapping[str, Any] = {"worker": config.worker, "incarnation": self.incarnation}
        saved = Saved()
        self.links = [ServerLink(config, index, saved) for index in range(len(config.endpoints))]
        self._register()
        self.callers = Callers(self.links, self.identity, config.timeout)
        self.heartbeats = Heartbeats(self.links, self.identity, config.heartbeat)
        for link in self.links:
            link.check_all = self.heartbeats.check
        self.closed = False
        self.given_up = False
        """To the servers this trainer is lost."""

    def close(self) -> None:
        """Say good-bye to the servers, so that nobody waits for this trainer; after `give_up` it counts as lost."""
        if self.closed:
            return
        self.closed = True
        self.heartbeats.stop()
        self.callers.close()
        if not self.given_up:
            self._say_good_bye(self.links, {})
        for link in self.links:
            link.client.close()

    def give_up(self, reason: str, **how: bool) -> None:
        """No more signs of life, and word to the servers why."""
        if self.given_up or self.closed:
            return
        self.given_up = True
        self.heartbeats.silence()
        self._say_good_bye(self.links, {"failed": reason, **how})

    def _register(self) -> None:
        """At all servers or, after an error, at none: our number must be free for another try."""
        about, registered = f"process {os.getpid()} on {socket.gethostname()}", list[ServerLink]()
        try:
            # The servers that are up hear of us while we wait for the others: or they would take us for dead.
            with contextlib.ExitStack() as heartbeats:
                for link in self.links:
                    link.register(self.incarnation, about, lambda link=link: check_peers(self.links, link))  # type: ignore[misc]
                    registered.append(link)
                    heartbeats.callback(Heartbeats([link], self.identity, self.config.heartbeat).stop)
        except BaseException as error:
            self._say_good_bye(registered, {"failed": reason_of(error)})
            for link in self.links:
                link.client.close()
            raise

    def _say_good_bye(self, links: Sequence[ServerLink], how: Mapping[str, Any]) -> None:
        request = {**self.identity, "for_good": True, **how}

        def part_from(link: ServerLink) -> None:
            with contextlib.suppress(StoreError):  # a server that is gone needs no good-bye
                link.action("leave", request, min(GOOD_BYE_SECONDS, self.config.timeout / 4))

        on_all(links, part_from)


def reason_of(error: BaseException) -> str:
    return f"exit status {error.code}" if isinstance(error, SystemExit) else str(error) or type(error).__name__
