"""A log of requests: JSON lines {"request": {…}, "scores": […]}, as `sparsefleet serve --log-requests` writes them.

`request` is the body of POST /v1/predict: {"rows": […]} or {"context": {…}, "candidates": […]}. `scores` are the
probabilities that were answered, in that order; of a model for several labels, `scores_by_label` has those of each.
`version` (text), where it is there, is the model's that answered. Other fields are not looked at.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sparsefleet.core.errors import DataError
from sparsefleet.verify.http_client import labelled_scores

MAX_LINE = 64 << 20


@dataclass(frozen=True, slots=True)
class Logged:
    line: int
    request: dict[str, Any]
    scores: dict[str, list[float]]
    """By label; of a model of one label, under `http_client.ONLY`."""
    version: str | None

    def row(self, index: int) -> Any:
        """The raw sample that a score belongs to."""
        rows = self.request.get("rows", self.request.get("candidates"))
        if not isinstance(rows, list) or index >= len(rows):
            return None
        context = self.request.get("context")
        return (
            {**context, **rows[index]} if isinstance(context, dict) and isinstance(rows[index], dict) else rows[index]
        )


@dataclass(frozen=True, slots=True)
class BadLine:
    line: int
    reason: str


def read_log(path: str) -> Iterator[Logged | BadLine]:
    """Every line that is not blank, in order; one line in memory at a time.

    Those that are there now: the server may be writing to this very log while its requests are sent once more.
    """
    number = 0
    try:
        with open(path, "rb") as file:
            end = os.fstat(file.fileno()).st_size
            while file.tell() < end and (raw := file.readline(MAX_LINE + 1)):
                number += 1
                if len(raw) > MAX_LINE:
                    while raw and not raw.endswith(b"\n"):
                        raw = file.readline(MAX_LINE)
                    yield BadLine(number, f"longer than {MAX_LINE} bytes")
                elif raw.strip():
                    yield _parsed(number, raw)
    except OSError as error:
        raise DataError(f"cannot read the log {path}: {error.strerror or error}") from error


def _parsed(number: int, raw: bytes) -> Logged | BadLine:
    try:
        entry = json.loads(raw)
    except (ValueError, RecursionError) as error:
        return BadLine(number, f"not JSON: {error}")
    if not isinstance(entry, dict):
        return BadLine(number, 'not an object {"request": …, "scores": …}')
    request, scores, version = entry.get("request"), labelled_scores(entry), entry.get("version")
    if not isinstance(request, dict):
        return BadLine(number, '"request" must be the body of a prediction, an object')
    if scores is None:
        return BadLine(number, '"scores" must be a list of finite numbers')
    if version is not None and not isinstance(version, str):
        return BadLine(number, '"version" must be text')
    return Logged(number, request, scores, version)
