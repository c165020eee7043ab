"""The bytes that answer a request: scores, or why there are none."""

from __future__ import annotations

import json
from typing import Any

from starlette.requests import ClientDisconnect

from sparsefleet.core.batch import F32
from sparsefleet.core.errors import BundleError, SparseFleetError
from sparsefleet.serving.batcher import LateError, OverloadedError
from sparsefleet.serving.kernels.request import format_floats
from sparsefleet.serving.log import tell_seldom
from sparsefleet.serving.predictor import Scores
from sparsefleet.serving.samples import RequestError
from sparsefleet.serving.source import SourceError

Answer = tuple[int, bytes, dict[str, str]]
"""Status, body, headers beside those that every answer has."""


class HttpError(Exception):
    def __init__(self, status: int, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.status, self.message = status, message
        self.facts = {name: value for name, value in facts.items() if value is not None}


def answer_bytes(version: str, scores: Scores, request_id: str | int | None = None) -> bytes:
    """`scores` of the first label; of a model for several labels, `scores_by_label` too."""
    text = _numbers(version, scores.probabilities)
    if scores.by_label:
        listed = (json.dumps(name).encode() + b": " + _numbers(version, of) for name, of in scores.by_label.items())
        text += b', "scores_by_label": {' + b", ".join(listed) + b"}"
    echoed = b"" if request_id is None else b', "request_id": ' + json.dumps(request_id).encode()
    return b'{"version": ' + json.dumps(version).encode() + b', "scores": ' + text + echoed + b"}"


def no_number(version: str) -> HttpError:
    return HttpError(503, f"version {version} gave a score that is not a number", version=version)


def _numbers(version: str, scores: F32) -> bytes:
    text = format_floats(scores)
    if text is None:
        raise no_number(version)
    return text


def told(answer: Answer) -> Answer:
    """The same; what is not the client's fault is told in the log, too."""
    status, body, _ = answer
    if status >= 500 or status == 429:
        tell_seldom(f"answer {status}", f"answered {status}: {body.decode(errors='replace'):.500}")
    return answer


def refusal(error: Exception, version: str) -> Answer | None:
    """The answer for an error, from a server that serves `version`; None if the fault is the server's own."""
    match error:
        case HttpError():
            # We do not read the rest of a body that is too long, so the connection cannot be used again.
            close = {"connection": "close"} if error.status in (408, 413) else {}
            close |= {"www-authenticate": "Bearer"} if error.status == 401 else {}
            close |= {"retry-after": "1"} if error.status == 503 else {}
            return _problem(error.status, error.message, close, **error.facts)
        case RequestError():
            return _problem(400, str(error), field=error.field, row=error.row)
        case BundleError():
            return _problem(409, str(error), version=version)
        case OverloadedError():
            return _problem(429, str(error), {"retry-after": str(error.retry_after)})
        case SourceError() | LateError():
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
