"""The last hour of all series, in memory that is bounded."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable

from sparsefleet.launch.on_ray.metrics_page.scrape import Figure

KEPT_SECONDS = 3600.0
MOST_LINES = 2000
"""With an hour of points each about 40 MB."""
MOST_DRAWN = 360
"""Points of a line that a page is given: its charts have hardly more pixels."""

Line = tuple[str, str, str]
"""The series, the job's name, the role."""


class History:
    def __init__(self, kept_seconds: float = KEPT_SECONDS, most_lines: int = MOST_LINES) -> None:
        self._kept_seconds, self._most_lines = kept_seconds, most_lines
        self._times: dict[Line, array[float]] = {}
        self._values: dict[Line, array[float]] = {}

    def add(self, now: float, figures: Iterable[Figure]) -> int:
        """Figures of one moment, which come in the order of time. How many had no room."""
        told = {(name, job, role): value for name, job, role, value in figures}
        self._forget(now - self._kept_seconds)
        without_room = 0
        for line, value in told.items():
            if line not in self._times:
                if len(self._times) >= self._most_lines:
                    without_room += 1
                    continue
                self._times[line], self._values[line] = array("d"), array("d")
            self._times[line].append(now)
            self._values[line].append(value)
        return without_room

    def _forget(self, before: float) -> None:
        for line in list(self._times):
            old = bisect_left(self._times[line], before)
            del self._times[line][:old], self._values[line][:old]
            if not self._times[line]:
                del self._times[line], self._values[line]

    def since(self, begin: float, now: float) -> dict[Line, list[tuple[float, float]]]:
        """Time and value of each line from `begin` on, thinned; lines without any are left out."""
        every = max((now - begin) / MOST_DRAWN, 1e-3)
        found = {}
        for line, times in self._times.items():
            first = bisect_left(times, begin)
            # The last point of each stretch of time. Stretches stand still, so that a line does not flicker.
            told = zip(times[first:], self._values[line][first:], strict=True)
            if points := {int(time // every): (time, value) for time, value in told}:
                found[line] = list(points.values())
        return found
