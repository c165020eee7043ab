"""What a server says on stderr, a line each, with the time in UTC: changes of version, failures, uvicorn's warnings."""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from datetime import UTC, datetime
from typing import Any

UVICORN: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"timed": {"()": "sparsefleet.serving.log.TimedFormatter"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "timed", "stream": "ext://sys.stderr"}},
    "loggers": {"uvicorn": {"handlers": ["stderr"], "level": "WARNING", "propagate": False}},
}
"""uvicorn's messages in the same form."""


class TimedFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return f"{_now()} {record.levelname.lower()}: {super().format(record)}"


def tell(text: str) -> None:
    print(f"{_now()} {text}", file=sys.stderr, flush=True)


class Seldom:
    """Tells of each kind of event once in `seconds` at most, and then how many of its kind were not told."""

    def __init__(self, seconds: float = 1.0) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._kinds: dict[str, tuple[float, int]] = {}
        """When one was told last, and how many came since."""

    def __call__(self, kind: str, text: str) -> None:
        now = time.monotonic()
        with self._lock:
            told, since = self._kinds.get(kind, (-self._seconds, 0))
            if now - told < self._seconds:
                self._kinds[kind] = told, since + 1
                return
            self._kinds[kind] = now, 0
        tell(f"{text} (and {since:,} more of this kind since the last line)" if since else text)


tell_seldom = Seldom()


def tell_failure(error: BaseException) -> None:
    """A fault of our own, with all that helps to find it."""
    told = "".join(traceback.format_exception(error)).rstrip()
    tell_seldom(f"failure {type(error).__name__}", f"the server failed:\n{told}")


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
