"""JobCuts: the checkpoints that a job that heals goes back to when one of its processes is lost.

Most of them are deltas: the rows that changed since the one before (`checkpoint/chain.py`). One that cannot be written
(a full disk) ends nothing: it is told, the last good one stands, and the next is tried.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sparsefleet.checkpoint import Manifest, cut_path
from sparsefleet.core.errors import Rejoin
from sparsefleet.store.base import RunFacts
from sparsefleet.train.healing import Healing
from sparsefleet.train.saver import Saver

logger = logging.getLogger("sparsefleet.train")

LEAST_SECONDS = 10.0
"""Between two cuts whose distance is not given."""
MOST_SECONDS = 1800.0
"""Likewise: a loss never costs more work than that, even where cuts then cost more than `COST`."""
COST = 0.01
"""Of the time, what cuts may take where their distance is not given."""
RECENT = 8
"""Cuts whose mean time decides the distance: after a whole one, which takes longer, come several deltas."""
KEPT = 3
"""Cuts of an attempt that stay: servers may be about to load one that is not the last any more."""
AGAIN_AFTER = (1.0, 3.0)
"""Seconds after which a cut that all wait for, at the beginning or end of a call of `fit`, is tried again where it
could not be written: after the end there is no other one."""
LOOK_EVERY = 0.1
"""Seconds between two looks at whether a cut is due, while this trainer waits for others."""


class Distance:
    """How long to wait between two cuts, from how long the last ones took."""

    def __init__(self, given: float | None) -> None:
        """given: the user's choice; None: so that cuts take `COST` of the time."""
        self._given = given
        self._took: deque[float] = deque(maxlen=RECENT)

    @property
    def seconds(self) -> float:
        if self._given is not None:
            return self._given
        mean = sum(self._took) / len(self._took) if self._took else 0.0
        return min(MOST_SECONDS, max(LEAST_SECONDS, mean / COST))

    def took(self, seconds: float) -> None:
        self._took.append(seconds)


class JobCuts:
    def __init__(self, saver: Saver, healing: Healing) -> None:
        self._saver, self._healing = saver, healing
        self._folder = healing.folder
        self._distance = Distance(healing.cut_every)
        self._under_way = False
        self._ticket: str | None = None
        """Of who waits for the cut under way."""
        self._answered: str | None = None
        """The last ticket that was answered: servers may ask for a moment longer."""
        self._path = ""
        self._begun = time.monotonic()
        self._next = self._begun + self._distance.seconds
        self._failure: Exception | None = None
        """Why the last one was not written."""

    def due(self) -> bool:
        return (time.monotonic() >= self._next or self._asked() is not None) and not self._under_way

    def take(self, *, wait: bool = False) -> None:
        """Name a cut, and write it while training goes on; `wait`: until it is written, and try it a few times."""
        self._take(wait)
        for pause in AGAIN_AFTER if wait else ():
            if self._failure is None or isinstance(self._failure, Rejoin):  # what ends an attempt does not pass
                break
            time.sleep(pause)
            self._take(wait)

    def _take(self, wait: bool) -> None:
        self._under_way, self._begun = True, time.monotonic()
        self._ticket = self._asked()
        self._saver.aside(self._path_of, KEPT, self._ended, chain=self._healing.chain, wait=wait)

    @contextmanager
    def while_waiting(self, mine: Callable[[], bool]) -> Iterator[None]:
        """This trainer has nothing left to train, and waits inside for the others, which train on: cuts go on.

        mine: whether they are this trainer's to take. Outside, none is being named.
        """
        over = threading.Event()

        def watch() -> None:
            while not over.wait(LOOK_EVERY):
                if self.due() and mine():
                    self.take()

        watching = threading.Thread(target=watch, name="sparsefleet-cuts", daemon=True)
        watching.start()
        try:
            yield
        finally:
            over.set()
            watching.join()

    def _asked(self) -> str | None:
        ticket = self._healing.cut_wanted
        return None if ticket == self._answered else ticket

    def _path_of(self, facts: RunFacts) -> str:
        self._path = str(cut_path(self._folder, facts.step))
        return self._path

    def _ended(self, outcome: Manifest | Exception) -> None:
        now = time.monotonic()
        took = now - self._begun
        self._distance.took(took)
        wait = self._distance.seconds
        self._next = now + wait
        if isinstance(outcome, Exception):
            logger.warning("a cut was not written, training goes on, and a loss costs more: %s", outcome)
        else:
            if self._failure is not None:
                logger.warning("cuts are written again")
            logger.info("%s; the next in %.0f s", _in_words(outcome, took), wait)
        self._failure = outcome if isinstance(outcome, Exception) else None
        ticket, self._ticket = self._ticket, None
        if ticket is not None:
            error = f"no cut could be written: {outcome}" if isinstance(outcome, Exception) else None
            self._answered = ticket
            self._healing.cut_taken(ticket, self._path, error)
        self._under_way = False


def _in_words(written: Manifest, took: float) -> str:
    what = "a whole cut" if written.base is None else f"a cut of what changed since {written.base.name}"
    rows = sum(entry.rows or 0 for entry in written.files)
    size = sum(entry.bytes for entry in written.files)
    return f"{what} at step {written.step}: {rows:,} rows, {size / 1e6:.1f} MB in {took:.2f} s"
