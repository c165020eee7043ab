"""Which attempt of a job that heals this process takes part in: what its launcher says in the environment.

```
SPARSEFLEET_CUTS=/shared/job/cuts    every process: the job heals, and its cuts go here (a path, or s3://… and the like)
SPARSEFLEET_ATTEMPT=3                every process: a server is in this attempt, a trainer joins it or a later one
SPARSEFLEET_CUT_EVERY=60             trainers: seconds between cuts; without: so that they cost about 1 % of the time
SPARSEFLEET_CUT=/shared/job/cuts/…   servers: what the attempt begins from; without: as the first one did
SPARSEFLEET_STOPPED=0,2              servers: trainers that came to their end in an earlier attempt
SPARSEFLEET_CREW=0,1,3               servers of an elastic job: trainers of the attempt at its beginning
```
Without SPARSEFLEET_CUTS a job does not heal.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sparsefleet.checkpoint import Chain, locate
from sparsefleet.core.errors import ConfigError, StoreError
from sparsefleet.store.remote import RemoteStore
from sparsefleet.store.remote.attempts import furthest_fit

log = logging.getLogger(__name__)

CUTS = "SPARSEFLEET_CUTS"
CUT_EVERY = "SPARSEFLEET_CUT_EVERY"
ATTEMPT = "SPARSEFLEET_ATTEMPT"
CUT = "SPARSEFLEET_CUT"
STOPPED = "SPARSEFLEET_STOPPED"
CREW = "SPARSEFLEET_CREW"
HEALING_VARIABLES = (CUTS, CUT_EVERY, ATTEMPT, CUT, STOPPED, CREW)

START_AGAIN = 75
"""Exit status (EX_TEMPFAIL) of a trainer that has met the end of an attempt outside of `fit`: start it again."""


@dataclass(frozen=True)
class HealingVariables:
    folder: str
    attempt: int = 1
    cut_every: float | None = None
    cut: str | None = None
    stopped: tuple[int, ...] = ()
    crew: tuple[int, ...] | None = None

    def environment(self) -> dict[str, str]:
        """The inverse of `from_environment`."""
        return {
            CUTS: self.folder,
            ATTEMPT: str(self.attempt),
            **({CUT_EVERY: repr(self.cut_every)} if self.cut_every is not None else {}),
            **({CUT: self.cut} if self.cut is not None else {}),
            **({STOPPED: ",".join(map(str, self.stopped))} if self.stopped else {}),
            **({CREW: ",".join(map(str, self.crew))} if self.crew else {}),
        }

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> HealingVariables | None:
        given = os.environ if environment is None else environment
        folder = given.get(CUTS)
        if not folder:
            return None
        try:
            every = given.get(CUT_EVERY)
            return cls(
                folder,
                int(given.get(ATTEMPT) or 1),
                float(every) if every else None,
                given.get(CUT) or None,
                _numbers(given.get(STOPPED)),
                _numbers(given.get(CREW)) or None,
            )
        except ValueError as error:
            raise ConfigError(
                f"{ATTEMPT}, {CUT_EVERY}, {STOPPED} and {CREW} are set by a launcher, and are numbers: {error}"
            ) from None


def _numbers(text: str | None) -> tuple[int, ...]:
    return tuple(int(number) for number in (text or "").split(",") if number)


def folder_of(cuts: str, attempt: int) -> str:
    """Where an attempt's cuts go: nobody else writes there, however late."""
    return str(locate(cuts) / f"attempt-{attempt:04d}")


def attempt_of(name: str) -> int:
    """Which attempt's cuts a folder of this name holds; -1: it is another folder."""
    number = name.removeprefix("attempt-") if name.startswith("attempt-") else ""
    return int(number) if number.isdecimal() else -1


class FleetHealing:
    """Implements `Healing` (`train/healing.py`) for a trainer on servers."""

    def __init__(self, variables: HealingVariables, store: RemoteStore, reconnect: Callable[[str, int], None]) -> None:
        """`reconnect` joins the next attempt, for the given reason, having begun so many calls of `fit`."""
        self._variables, self._store, self._reconnect = variables, store, reconnect
        self.chain = Chain()

    @property
    def attempt(self) -> int:
        return self._store.connection.attempt or 1

    @property
    def cut(self) -> str | None:
        return self._store.connection.cut

    @property
    def folder(self) -> str:
        return folder_of(self._variables.folder, self.attempt)

    @property
    def cut_every(self) -> float | None:
        return self._variables.cut_every

    @property
    def cut_wanted(self) -> str | None:
        return self._store.connection.heartbeats.cut_wanted

    def cut_taken(self, ticket: str, cut: str | None, error: str | None) -> None:
        told = {"ticket": ticket, **({"cut": cut} if error is None else {"error": error})}
        try:
            self._store.connection.links[0].action("scale_step", told)
        except StoreError as failed:  # the attempt is over, or is about to be
            log.warning("a cut was asked for, and who asked cannot be told of it: %s", failed)

    def rejoin(self, why: StoreError, fits: int) -> None:
        self._reconnect(str(why), fits)

    def caught_up(self) -> None:
        self._store.crew.catching_up = False

    def catch_up(self, fit: int) -> None:
        if not self._store.crew.late:
            self._store.crew.catching_up = furthest_fit(self._store.connection) > fit

    def start_again(self) -> None:
        self._store.connection.starts_again = True
