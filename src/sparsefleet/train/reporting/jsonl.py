"""Metrics as JSON lines in the run's folder: one object a line, `kind` says which."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from sparsefleet.core.errors import SparseFleetError
from sparsefleet.train.progress import Snapshot
from sparsefleet.train.reporting.base import Look, Reporter

FILE_NAME = "metrics.jsonl"


def plain_numbers(values: Mapping[str, object]) -> dict[str, object]:
    """NaN and infinity are not JSON: they become null."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}


class JsonLinesReporter(Reporter):
    def __init__(self, folder: str | Path, seconds: float = 5.0) -> None:
        self._path = Path(folder) / FILE_NAME
        with self._telling():
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("a")
        self._seconds, self._next = seconds, time.monotonic() + seconds

    def start(self, facts: Mapping[str, object]) -> None:
        self._write("start", facts)

    def tick(self, look: Look) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + self._seconds
            self._write("train", look().values())

    def epoch_end(self, snapshot: Snapshot) -> None:
        self._write("epoch", snapshot.values())

    def evaluated(self, step: int, values: Mapping[str, float]) -> None:
        self._write("test", {"step": step, **values})

    def validated(self, step: int, values: Mapping[str, float], best: bool) -> None:
        self._write("valid", {"step": step, **values, "best": best})

    def saved(self, path: str, step: int) -> None:
        self._write("save", {"step": step, "path": path})

    def close(self) -> None:
        with self._telling():
            self._file.close()

    def _write(self, kind: str, values: Mapping[str, object]) -> None:
        line = {"kind": kind, "time": round(time.time(), 3), **plain_numbers(values)}
        with self._telling():
            self._file.write(json.dumps(line, default=str) + "\n")
            self._file.flush()

    @contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise SparseFleetError(f"cannot write metrics to {self._path}: {error.strerror or error}") from error
