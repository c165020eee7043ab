"""Watch: asks all endpoints of a cluster now and then, and keeps what they tell."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import aiohttp

from sparsefleet.core.errors import ConfigError
from sparsefleet.launch.on_ray.metrics_page.endpoints import LIST, read_endpoints
from sparsefleet.launch.on_ray.metrics_page.history import MOST_LINES, History
from sparsefleet.launch.on_ray.metrics_page.scrape import BadEndpoint, Figure, figures_at

EVERY_SECONDS = 5.0
"""Ray's endpoints have something new every 10 s; this is how late we may be."""
NAMED = 3
"""Of many bad endpoints so many are named; on a large cluster the others have the same trouble."""


class Watch:
    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        """folder: of the head. say: is told of each trouble once."""
        self._folder, self._say = folder, say
        self._told: set[str] = set()
        # A clock that is set back would make lines run backwards.
        self._began_at, self._began = time.time(), time.monotonic()
        self.history = History()
        self.endpoints: list[str] = []
        self.bad: dict[str, str] = {}
        """Endpoints that told nothing the last time, and why."""
        self.no_list = ""
        """Why the list of endpoints could not be read the last time."""

    def now(self) -> float:
        return self._began_at + time.monotonic() - self._began

    async def begin(self, session: aiohttp.ClientSession) -> None:
        """The first look. Refuses a folder without a list, and a list that nobody of answers: its cluster has ended."""
        self.endpoints = read_endpoints(self._folder)
        if not self.endpoints:
            raise ConfigError(f"{self._folder / LIST} names no endpoint: its cluster is only starting, or has no node")
        await self._ask_all(session)
        if len(self.bad) == len(self.endpoints):
            raise ConfigError(
                f"no Ray cluster answers: of what {self._folder / LIST} names, {_in_words(self.bad, self.endpoints)}. "
                f"Start a head first (ray start --head); if it was given another --temp-dir, give it here, too"
            )

    async def go_on(self, session: aiohttp.ClientSession) -> None:
        """Look until this task is ended; troubles are told, and end nothing."""
        while True:
            await asyncio.sleep(EVERY_SECONDS)
            try:
                # Read anew each time: nodes come and go, and so do clusters.
                self.endpoints, self.no_list = read_endpoints(self._folder), ""
            except ConfigError as error:
                self.endpoints, self.no_list = [], str(error)
                self._say_once("list", f"{error}; goes on looking")
            await self._ask_all(session)

    async def _ask_all(self, session: aiohttp.ClientSession) -> None:
        answers = await asyncio.gather(*(figures_or_why(session, one) for one in self.endpoints))
        self.bad = {one: answer for one, answer in zip(self.endpoints, answers, strict=True) if isinstance(answer, str)}
        figures = [figure for answer in answers if not isinstance(answer, str) for figure in answer]
        if self.history.add(self.now(), figures):
            self._say_once("room", f"there are more than {MOST_LINES:,} series; those that came later are not kept")
        new = {one: why for one, why in self.bad.items() if one not in self._told}
        if new:
            self._told |= new.keys()
            self._say(f"{_in_words(new, self.endpoints)}; goes on without")

    def _say_once(self, what: str, text: str) -> None:
        if what not in self._told:
            self._told.add(what)
            self._say(text)

    def troubles(self) -> list[str]:
        """Those of the last look, in words."""
        told = [self.no_list] if self.no_list else []
        return [*told, _in_words(self.bad, self.endpoints)] if self.bad else told


async def figures_or_why(session: aiohttp.ClientSession, endpoint: str) -> list[Figure] | str:
    try:
        return await figures_at(session, endpoint)
    except BadEndpoint as error:
        return str(error)


def _in_words(bad: dict[str, str], endpoints: Sequence[str]) -> str:
    named = [f"{one[:100]} ({why})" for one, why in list(bad.items())[:NAMED]]
    more = f" and {len(bad) - NAMED} more" if len(bad) > NAMED else ""
    many = f"{len(endpoints)} endpoints" if len(endpoints) > 1 else "1 endpoint"
    return f"{len(bad)} of {many} of Ray cannot be asked: {', '.join(named)}{more}"
