"""LongWait: says now and then what a long wait is for."""

from __future__ import annotations

import logging
import time

log = logging.getLogger(__name__)

TELL_AFTER = 10.0
"""Others are rarely slower than that by chance."""
TELL_SELDOM = 300.0


class LongWait:
    """One wait, from here on. Who waits long hears of it ever more seldom: shares may well be uneven."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._next = TELL_AFTER

    def tell(self, what: str, whom: str) -> None:
        waited = time.monotonic() - self._since
        if waited >= self._next:
            self._next = waited + min(2 * self._next, TELL_SELDOM)
            log.warning("%s: waiting, %.0f s so far: %s", what, waited, whom)
