"""What a server says on stderr, a line each, with the time in UTC: changes of version, failures, uvicorn's warnings."""

from __future__ import annotations

import logging
import sys
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


def tell_failure(error: BaseException) -> None:
    """A fault of our own, with all that helps to find it."""
    tell("the server failed:\n" + "".join(traceback.format_exception(error)).rstrip())


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
