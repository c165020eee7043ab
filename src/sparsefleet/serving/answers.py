"""The bytes that answer a request: scores, or why there are none."""

from __future__ import annotations

import json
from typing import Any

from starlette.requests import ClientDisconnect

from sparsefleet.core.batch import F32
from sparsefleet.core.errors import BundleError, SparseFleetError
from sparsefleet.serving.batcher import OverloadedError
from sparsefleet.serving.kernels.request import format_floats
from sparsefleet.serving.samples import RequestError
from sparsefleet.serving.source import SourceError

Answer = tuple[int, bytes, dict[str, str]]
"""Status, body, headers beside those that every answer has."""


class HttpError(Exception):
    def __init__(self, status: int, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.status, self.message = status, message
        self.facts = {name: value for name, value in facts.items() if value is not None}


def answer_bytes(version: str, scores: F32) -> bytes:
    text = format_floats(scores)
    if text is None:
        raise HttpError(500, f"version {version} gave a score that is not a number", version=version)
    return b'{"version": ' + json.dumps(version).encode() + b', "scores": ' + text + b"}"


def refusal(error: Exception, version: str) -> Answer | None:
    """The answer for an error, from a server that serves `version`; None if the fault is the server's own."""
    match error:
        case HttpError():
            # We do not read the rest of a body that is too long, so the connection cannot be used again.
            close = {"connection": "close"} if error.status in (408, 413) else {}
            return _problem(error.status, error.message, close, **error.facts)
        case RequestError():
            return _problem(400, str(error), field=error.field, row=error.row)
        case BundleError():
            return _problem(409, str(error), version=version)
        case OverloadedError() | SourceError():
            return _problem(503, str(error), {"retry-after": "1"})
        case ClientDisconnect():
            return 499, b"", {}
        case SparseFleetError():
            return _problem(400, str(error))
    return None


def _problem(status: int, message: str, headers: dict[str, str] | None = None, **facts: Any) -> Answer:
    document = {"error": message, **{name: value for name, value in facts.items() if value is not None}}
    # Texts of a request may hold half of a surrogate pair, which only \u can write.
    body = json.dumps(document, separators=(",", ":")).encode()
    return status, body, {"content-type": "application/json", **(headers or {})}
