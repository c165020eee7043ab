"""Meters: how much a server does and how long it takes, over the last few seconds."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

import numpy as np

WINDOW = 10.0
KEPT = 4096


class Meter:
    """The last calls of one kind. Appending is atomic, so handlers need no lock."""

    def __init__(self) -> None:
        self._calls: deque[tuple[float, int, float]] = deque(maxlen=KEPT)
        self._since = time.monotonic()
        self.total = 0

    def note(self, rows: int, seconds: float) -> None:
        self._calls.append((time.monotonic(), rows, seconds))
        self.total += 1

    def to_dict(self) -> dict[str, Any]:
        now = time.monotonic()
        calls = [call for call in list(self._calls) if now - call[0] <= WINDOW]
        if not calls:
            return {"total": self.total, "per_s": 0.0, "rows_per_s": 0.0}
        # A full deque covers less than the window; so does a meter that is new, but a single call is no rate yet.
        span = min(WINDOW, max(now - self._since, 1.0)) if len(calls) < KEPT else max(now - calls[0][0], 1e-3)
        p50, p90, p99 = (float(q) * 1e3 for q in np.quantile([call[2] for call in calls], [0.5, 0.9, 0.99]))
        return {
            "total": self.total,
            "per_s": round(len(calls) / span, 1),
            "rows_per_s": round(sum(call[1] for call in calls) / span, 1),
            "ms": {"p50": round(p50, 3), "p90": round(p90, 3), "p99": round(p99, 3)},
        }


class Meters:
    def __init__(self) -> None:
        self._meters: dict[str, Meter] = {}
        self.under_way = 0
        """Messages being handled right now; only for people to look at, so races do not matter."""

    def of(self, name: str) -> Meter:
        meter = self._meters.get(name)
        return meter if meter is not None else self._meters.setdefault(name, Meter())

    def to_dict(self) -> dict[str, Any]:
        return {name: meter.to_dict() for name, meter in sorted(self._meters.copy().items())}
