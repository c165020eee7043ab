"""JobCuts: the checkpoints that a job that heals goes back to when one of its processes is lost.

One that cannot be written (a full disk) ends nothing: it is told, the last good one stands, and the next is tried.
"""

from __future__ import annotations

import logging
import time

from sparsefleet.checkpoint import step_path
from sparsefleet.store.base import RunFacts
from sparsefleet.train.saver import Saver

logger = logging.getLogger("sparsefleet.train")

LEAST_SECONDS = 10.0
"""Between two cuts whose distance is not given."""
COST = 0.01
"""Of the time, what cuts may take then."""
KEPT = 3
"""Cuts of an attempt that stay: servers may be about to load one that is not the last any more."""


class JobCuts:
    def __init__(self, saver: Saver, folder: str, every: float | None) -> None:
        self._saver, self._folder, self._every = saver, folder, every
        self._under_way = False
        self._begun = time.monotonic()
        self._next = self._begun + (LEAST_SECONDS if every is None else every)
        self._failed = False

    def due(self) -> bool:
        return time.monotonic() >= self._next and not self._under_way

    def take(self, *, wait: bool = False) -> None:
        """Name a cut, and write it while training goes on; `wait`: until it is written."""
        self._under_way, self._begun = True, time.monotonic()
        self._saver.aside(self._path, KEPT, self._ended, wait=wait)

    def _path(self, facts: RunFacts) -> str:
        return str(step_path(self._folder, facts.step))

    def _ended(self, error: Exception | None) -> None:
        now = time.monotonic()
        took = now - self._begun
        self._next = now + (max(LEAST_SECONDS, took / COST) if self._every is None else self._every)
        self._under_way = False
        if error is not None:
            logger.warning("a cut was not written, training goes on, and a loss costs more: %s", error)
        elif self._failed:
            logger.warning("cuts are written again")
        self._failed = error is not None
