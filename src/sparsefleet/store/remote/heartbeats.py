"""Heartbeats: this trainer's signs of life to every server, and theirs to it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from sparsefleet.core.errors import StoreError
from sparsefleet.store.remote.link import ServerLink

log = logging.getLogger(__name__)


class Heartbeats:
    """One thread per server, so that a stopped server does not make us look dead to the others."""

    def __init__(self, links: Sequence[ServerLink], identity: Mapping[str, Any], seconds: float) -> None:
        self.status: dict[str, Any] = {}
        self.first = 0
        """The lowest of the trainers that are left, as server 0 said last."""
        self.cut_wanted: str | None = None
        """A ticket where server 0 asks the first trainer for a cut."""
        self._identity, self._seconds = dict(identity), seconds
        self._stop = threading.Event()
        self._links = links
        self._threads = [
            threading.Thread(target=self._beat, args=(link,), name=f"sparsefleet-heartbeat-{link.index}", daemon=True)
            for link in links
        ]
        for thread in self._threads:
            thread.start()

    def hear_first(self, first: Any) -> None:
        """Server 0 says who is the first of those left; None: nobody is, or it does not say."""
        if first is not None:
            self.first = int(first)

    def check(self) -> None:
        """Raise if a server has been silent for the time-out: whoever waits for others may wait because of it.

        A server that is too busy to answer heartbeats in time, but answers anything else, is not silent.
        """
        for link in self._links:
            limit = link.config.timeout
            if time.monotonic() - link.heard > limit and not self._stop.is_set():
                raise link.silent("signs of life", limit)

    def silence(self) -> None:
        """No more signs of life from now on; `stop` then waits for those that are under way."""
        self._stop.set()

    def stop(self) -> None:
        self.silence()
        for thread in self._threads:
            thread.join(timeout=2 * self._seconds + 1)

    def _beat(self, link: ServerLink) -> None:
        while not self._stop.wait(self._seconds):
            known = self.first
            try:
                answer = link.action("heartbeat", {**self._identity, "status": self.status}, 2 * self._seconds)
                link.heard_of(answer)
                if link.index == 0:
                    wanted = answer.get("cut_wanted")
                    self.cut_wanted = wanted if isinstance(wanted, str) else None
                if link.index == 0 and self.first == known:  # else a meeting that ended meanwhile has newer word
                    self.hear_first(answer.get("first"))
            except StoreError as error:
                # Whoever next needs that server gets the error; here it is only for the log.
                log.debug("heartbeat: %s", error)
