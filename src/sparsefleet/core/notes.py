"""Notes for scripts that come from Fluid and Fleet: what they say and is not needed here, told once each."""

from __future__ import annotations

import logging

log = logging.getLogger("sparsefleet.notes")
_told: set[str] = set()


def note(text: str) -> None:
    """Into the log, where everybody sees it, the first time that this process says it."""
    if text not in _told:
        _told.add(text)
        log.warning("note: %s", text)
