"""How far `sparsefleet infer` is: rows are counted where the reader hears that they are scored."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sparsefleet.cli.reading import ReadingOptions
from sparsefleet.cli.scoring import Scoring
from sparsefleet.core.batch import Batch
from sparsefleet.core.schema import Schema
from sparsefleet.data.base import Epoch, Reader

Tell = Callable[[int, float | None], None]
"""Takes the rows scored so far, and the share of the input that they are, 0 to 1; None where it is not known."""


@dataclass(frozen=True)
class ToldScoring(Scoring):
    """Scoring that tells how far it is, from whichever thread scores."""

    tell: Tell = field(kw_only=True)

    def _reading(self) -> ReadingOptions:
        return _ToldReading(**vars(super()._reading()), tell=self.tell)


@dataclass(frozen=True)
class _ToldReading(ReadingOptions):
    tell: Tell = field(kw_only=True)

    def open(
        self, path: str | Sequence[str], schema: Schema, shuffle_seed: int | None = None, *, load: bool = True
    ) -> Reader:
        return _ToldReader(super().open(path, schema, shuffle_seed, load=load), self.tell)


class _ToldReader(Reader):
    """Another reader, that tells of what is consumed."""

    def __init__(self, reader: Reader, tell: Tell) -> None:
        self._reader, self._tell, self._rows = reader, tell, 0
        self._telling = threading.Lock()
        self.schema, self.batch_size = reader.schema, reader.batch_size

    def consumed(self, batch: Batch) -> None:
        self._reader.consumed(batch)
        with self._telling:
            self._rows += len(batch.labels)
            self._tell(self._rows, self._reader.progress())

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

    def skipped(self) -> dict[str, int]:
        return self._reader.skipped()


def all_rows(rows: int, share: float | None) -> int | None:
    """How many there will be, if the rest is like what has been scored."""
    return max(rows, round(rows / share)) if share else None
