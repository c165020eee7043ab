"""Connection: one trainer's connection to all servers of its job. The store, the crew and their helpers share it."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sparsefleet.core.errors import Rejoin, StoreError
from sparsefleet.store.remote.attempts import OtherServers, attempt_to_join
from sparsefleet.store.remote.callers import Callers
from sparsefleet.store.remote.config import RemoteConfig
from sparsefleet.store.remote.failed_start import check_peers
from sparsefleet.store.remote.heartbeats import Heartbeats
from sparsefleet.store.remote.link import NOT_UP, Saved, ServerLink, on_all

log = logging.getLogger(__name__)

GOOD_BYE_SECONDS = 2.0


class Connection:
    def __init__(self, config: RemoteConfig, why: str | None = None) -> None:
        """Connect to all servers, waiting for those that are not up yet, and register this trainer.

        why: in a job that heals, what ended this trainer's part in the attempt before.
        """
        if config.worker < 0:
            numbered = uuid.uuid4().hex
            config = replace(config, worker=_number(config, numbered))
        else:
            numbered = None
        self.config = config
        """With the servers of the attempt that was joined, which may be others than were given."""
        self.late = False
        """This trainer came while the others were at work, and has not entered their rounds."""
        self.links = self._links_to_all()
        self.attempt: int | None = None
        """Of a job that heals, the attempt that this connection is of; it ends with it."""
        self.cut: str | None = None
        """The checkpoint that this attempt began from; None: from the job's beginning."""
        least = config.attempt
        while True:
            if least is not None:
                self.attempt = self._agree_on_attempt(least, why)
            # What is said under the name of an incarnation is said for its attempt.
            life = numbered or uuid.uuid4().hex
            self.incarnation = life if self.attempt is None else f"{self.attempt}-{life}"
            self.identity: Mapping[str, Any] = {"worker": config.worker, "incarnation": self.incarnation}
            self.late, self.cut = False, None  # in the attempt before it may have been otherwise
            try:
                self._register()
                break
            except Rejoin as over:  # another process was lost meanwhile
                if self.attempt is None:
                    raise
                least, why = self.attempt + 1, str(over)
        self.callers = Callers(self.links, self.identity, config.timeout)
        self.heartbeats = Heartbeats(self.links, self.identity, config.heartbeat)
        for link in self.links:
            link.check_all = self.heartbeats.check
        self.closed = False
        self.given_up = False
        """To the servers this trainer is lost."""
        self.starts_again = False
        """In a job that heals: this process is about to end, and to be started again."""

    def _agree_on_attempt(self, least: int, why: str | None) -> int:
        while True:
            try:
                return attempt_to_join(self.links, least, why, self.config.connect_timeout)
            except OtherServers as other:
                for link in self.links:
                    link.client.close()
                log.warning("the job goes on with %d servers: %s", len(other.servers), other)
                self.config = replace(self.config, endpoints=other.servers)
                self.links = self._links_to_all()
            except BaseException:
                for link in self.links:
                    link.client.close()
                raise

    def _links_to_all(self) -> list[ServerLink]:
        saved = Saved()
        return [ServerLink(self.config, index, saved) for index in range(len(self.config.endpoints))]

    def abandon(self) -> None:
        """This attempt is over: end all that is under way, without a word to servers that know."""
        if self.closed:
            return
        self.closed = True
        self.heartbeats.silence()
        self.callers.close()
        self.heartbeats.stop()
        for link in self.links:
            link.client.close()

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
                    answer = link.register(
                        self.incarnation,
                        about,
                        lambda link=link: check_peers(self.links, link),  # type: ignore[misc]
                        self.attempt,
                    )
                    self.cut, self.late = answer.get("cut"), self.late or answer.get("late") is True
                    registered.append(link)
                    heartbeats.callback(Heartbeats([link], self.identity, self.config.heartbeat).stop)
        except Rejoin:
            raise  # this attempt is over, and with it what the servers knew of us
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


def _number(config: RemoteConfig, incarnation: str) -> int:
    """Ask server 0, which may not be up yet, for a number."""
    link, until = ServerLink(config, 0, Saved()), time.monotonic() + config.connect_timeout
    try:
        while True:
            try:
                return int(link.action("give_number", {"incarnation": incarnation}, min(5.0, config.timeout))["worker"])
            except StoreError as error:
                if not isinstance(error.__cause__, NOT_UP) or time.monotonic() > until:
                    raise
                time.sleep(0.2)
    finally:
        link.client.close()


def reason_of(error: BaseException) -> str:
    return f"exit status {error.code}" if isinstance(error, SystemExit) else str(error) or type(error).__name__
