"""Metrics for TensorBoard (the `tensorboard` extra)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from sparsefleet.core.errors import ConfigError
from sparsefleet.train.progress import Snapshot
from sparsefleet.train.reporting.base import Look, Reporter


def writer_type() -> Any:
    """torch's SummaryWriter, or an error where TensorBoard is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ConfigError("TensorBoard is not installed: pip install 'sparsefleet[tensorboard]'") from error
    return SummaryWriter


class TensorBoardReporter(Reporter):
    def __init__(self, folder: str, seconds: float = 5.0) -> None:
        self._writer = writer_type()(folder)
        self._seconds, self._next = seconds, time.monotonic()

    def tick(self, look: Look) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + self._seconds
            snapshot = look()
            self._add("train", snapshot.step, snapshot.values())

    def epoch_end(self, snapshot: Snapshot) -> None:
        self._add("train", snapshot.step, snapshot.values())

    def evaluated(self, step: int, values: Mapping[str, float]) -> None:
        self._add("test", step, values)

    def validated(self, step: int, values: Mapping[str, float], best: bool) -> None:
        self._add("valid", step, values)

    def close(self) -> None:
        self._writer.close()

    def _add(self, group: str, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            if name not in ("epoch", "step"):
                self._writer.add_scalar(f"{group}/{name}", value, step)
