"""A trainer of a job that heals finds the attempt to join: all servers must be in the same one."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sparsefleet.core.errors import Rejoin, StoreError
from sparsefleet.store.remote.link import ServerLink, on_all

if TYPE_CHECKING:
    from sparsefleet.store.remote.connection import Connection

log = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
"""How long a server may take to say in which attempt it is."""
AGAIN_SECONDS = 0.1
ASK_AFTER = 1.0
"""A lost process is mostly noticed by who started it; only then is a new attempt asked for."""


class OtherServers(Exception):
    """The job has gone on with other servers: these."""

    def __init__(self, servers: tuple[str, ...]) -> None:
        super().__init__(", ".join(servers))
        self.servers = servers


def attempt_to_join(links: Sequence[ServerLink], least: int, why: str | None, seconds: float) -> int:
    """Wait until all servers are in the same attempt, `least` or later, and return it.

    why: what ended the attempt before, for who starts the next one. seconds: how long to wait for it. `OtherServers`
    where server 0, which stays in every job, tells of an attempt with another list of them.
    """
    begun = time.monotonic()
    while True:
        answers = on_all(links, _look)
        for answer in answers:
            if isinstance(answer.get("broken"), str):
                raise StoreError(answer["broken"])
        _check_servers(links, answers[0], least)
        attempts = {answer.get("attempt") for answer in answers}
        if len(attempts) == 1 and type(number := attempts.pop()) is int and number >= least:
            return number
        waited = time.monotonic() - begun
        if waited > seconds:
            where = ", ".join(f"{link}: {_in_words(answer)}" for link, answer in zip(links, answers, strict=True))
            raise StoreError(
                f"no attempt {least} of the job began within {seconds:g} s ({where}). Is its launcher still there? "
                f"{why or ''}"
            )
        if why is not None and waited > ASK_AFTER:
            for link, answer in zip(links, answers, strict=True):
                if answer.get("attempt") == least - 1 and not answer.get("wanted"):
                    _ask(link, least - 1, why)
        time.sleep(AGAIN_SECONDS)


def furthest_fit(connection: Connection) -> int:
    """The furthest call of `fit` that a trainer of this attempt had begun when it came to it. Waits until all have."""
    link, until = connection.links[0], time.monotonic() + connection.config.connect_timeout
    while True:
        answer = link.action("look", {})
        if answer.get("attempt") != connection.attempt:
            raise Rejoin(f"attempt {answer.get('attempt')} of the job has begun, after {connection.attempt}")
        if not (awaited := answer["awaited"]):
            return int(answer["furthest_fit"])
        if time.monotonic() > until:
            raise StoreError(
                f"worker {', '.join(map(str, awaited))} has not come to attempt {connection.attempt} of the job within "
                f"{connection.config.connect_timeout:g} s"
            )
        connection.heartbeats.check()
        time.sleep(AGAIN_SECONDS)


def _check_servers(links: Sequence[ServerLink], answer: dict[str, Any], least: int) -> None:
    number, servers = answer.get("attempt"), answer.get("servers")
    if type(number) is int and number >= least and isinstance(servers, list):
        listed = tuple(map(str, servers))
        if listed != links[0].config.endpoints:
            raise OtherServers(listed)


def _look(link: ServerLink) -> dict[str, Any]:
    try:
        return link.action("look", {}, LOOK_SECONDS)
    except StoreError as error:
        return {"error": str(error)}


def _ask(link: ServerLink, attempt: int, why: str) -> None:
    try:
        link.action("want_attempt", {"attempt": attempt, "why": why}, LOOK_SECONDS)
    except StoreError as error:
        log.debug("asking for an attempt: %s", error)


def _in_words(answer: dict[str, Any]) -> str:
    return str(answer["error"]) if "error" in answer else f"attempt {answer.get('attempt')}"
