"""How far scoring is: samples are counted where the reader hears that they are scored."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from sparsefleet.core.batch import Batch
from sparsefleet.core.inputs import Inputs
from sparsefleet.data.base import Epoch, Reader

Tell = Callable[[int, float | None], None]
"""Takes the samples scored so far, and the share of the input that they are, 0 to 1; None where it is not known."""


class ToldReader(Reader):
    """Another reader, that tells of what is consumed, from whichever thread scores."""

    def __init__(self, reader: Reader, tell: Tell) -> None:
        self._reader, self._tell, self._samples = reader, tell, 0
        self._telling = threading.Lock()
        self.schema, self.batch_size, self.same_inputs = reader.schema, reader.batch_size, reader.same_inputs

    def consumed(self, batch: Batch) -> None:
        self._reader.consumed(batch)
        with self._telling:
            self._samples += len(batch.labels)
            self._tell(self._samples, self._reader.progress())

    def epoch(self, threads: int = 1) -> Epoch:
        return self._reader.epoch(threads)

    def position(self) -> dict[str, Any]:
        return self._reader.position()

    def seek(self, position: Mapping[str, Any]) -> None:
        self._reader.seek(position)

    def set_epoch(self, number: int) -> None:
        self._reader.set_epoch(number)

    def progress(self) -> float | None:
        return self._reader.progress()

    def inputs(self) -> Inputs | None:
        return self._reader.inputs()

    def skipped(self) -> dict[str, int]:
        return self._reader.skipped()
