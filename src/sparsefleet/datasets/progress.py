"""How a tool tells its caller how far it has come. The tools print nothing themselves."""

from __future__ import annotations

from collections.abc import Callable

OnProgress = Callable[[int, int | None], None]
"""Called with (done so far, total or None where it is not known); rows or bytes, as the tool says."""


def ignore_progress(done: int, total: int | None) -> None:
    """For callers who do not want to know."""
