"""Where the time of a run's steps went (docs/tuning.md says what to do about each part)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparsefleet.core.stopwatch import Stopwatch, watch_this_thread

PARTS = {
    "reading": "waiting for input",
    "rows": "unique keys, pull",
    "forward": "pooling, network, loss",
    "backward": "gradients",
    "push": "handing gradients in, updates",
    "waiting": "for saves, other threads, other trainers",
    "other": "metrics, handlers, saving",
}
"""The parts of a step, in their order, and what happens there."""


@dataclass(frozen=True)
class StepProfile:
    """Of all training threads; a step is one batch of one thread."""

    steps: int
    threads: int
    seconds: Mapping[str, float]
    """By part, summed over steps and threads."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data: milliseconds a step, and percent of the whole."""
        total = sum(self.seconds.values())
        return {
            "steps": self.steps,
            "threads": self.threads,
            "ms_per_step": total / max(self.steps, 1) * 1e3,
            "parts": {
                part: {"ms": spent / max(self.steps, 1) * 1e3, "percent": spent / total * 100 if total else 0.0}
                for part, spent in self.seconds.items()
            },
        }


class Profiler:
    """Collects the stopwatches of a run's training threads."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._stopwatches: list[Stopwatch] = []

    def begin_thread(self) -> None:
        """Called by each training thread, in each epoch."""
        self._stopwatches.append(watch_this_thread())

    def result(self, steps: int) -> StepProfile:
        seconds = {part: sum(watch.seconds[part] for watch in self._stopwatches) for part in PARTS}
        return StepProfile(steps, self._threads, seconds)
