"""Cutting chunks into batches of exactly the wanted size, each with the marks that say how far it reaches.

A batch may cross the border between two units, so that many small files do not give many short batches. A
batch that lies inside one chunk is a view of it; only a batch at a junction is copied.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from sparsefleet.core.batch import Batch, Mark
from sparsefleet.core.errors import ConfigError
from sparsefleet.data.formats.base import Chunk


def check_batch_size(batch_size: int) -> int:
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise ConfigError(f"batch_size={batch_size!r} must be a whole number of samples, 1 or above")
    return batch_size


@dataclass(slots=True)
class _Part:
    """What is left of one chunk, and what is known to be finished once its last sample is."""

    unit: int
    chunk: Chunk
    start: int = 0
    done: bool = False
    empty_units: list[Mark] = field(default_factory=list)
    """Units after this one that had no samples: they are finished when this part is."""

    def __len__(self) -> int:
        return len(self.chunk.batch) - self.start

    def mark(self, stop: int) -> Mark:
        ends = self.chunk.ends
        return Mark(
            unit=self.unit,
            samples=int(self.chunk.lines[stop - 1]),
            offset=-1 if ends is None else int(ends[stop - 1]),
            done=self.done and stop == len(self.chunk.batch),
        )


class Cutter:
    """Takes chunks unit by unit, gives batches.

    It always keeps at least one sample back until the next one comes or `finish` is called. Only then does it know
    whether a batch was the last of its unit, which the batch's mark has to say.
    """

    def __init__(self, batch_size: int, *, drop_last: bool = False) -> None:
        self.batch_size = check_batch_size(batch_size)
        self.drop_last = drop_last
        # With drop_last, the marks of a short rest go to the last full batch, so that batch waits for the rest.
        self._kept = self.batch_size if drop_last else 0
        self._parts: deque[_Part] = deque()
        self._samples = 0

    def add(self, unit: int, chunk: Chunk) -> list[Batch]:
        """The batches that are complete with this chunk of the unit under way."""
        if not len(chunk.batch):
            return []
        self._parts.append(_Part(unit, chunk))
        self._samples += len(chunk.batch)
        batches = []
        while self._samples > self.batch_size + self._kept:
            batches.append(self._cut(self.batch_size))
        return batches

    def end_unit(self, unit: int, resume: Mark | None = None) -> Mark | None:
        """The unit has no further samples. Returns the mark of a unit without any sample where no batch is to come
        that could carry it.
        """
        if self._parts and self._parts[-1].unit == unit:
            self._parts[-1].done = True
            return None
        samples, offset = (0, -1) if resume is None else (resume.samples, resume.offset)
        mark = Mark(unit, samples, offset, done=True)
        if self._parts:
            self._parts[-1].empty_units.append(mark)
            return None
        return mark

    def full(self) -> list[Batch]:
        """The complete batches kept back so far: what can still be given when reading fails."""
        batches = []
        while self._samples >= self.batch_size:
            batches.append(self._cut(self.batch_size))
        return batches

    def finish(self) -> tuple[list[Batch], tuple[Mark, ...]]:
        """The last batches, and the marks of dropped samples that no batch could carry."""
        batches = self.full()
        if not self._samples:
            return batches, ()
        rest = self._cut(self._samples)
        if not self.drop_last:
            return [*batches, rest], ()
        if not batches:
            return [], rest.marks
        batches[-1] = batches[-1].with_marks(_latest([*batches[-1].marks, *rest.marks]))
        return batches, ()

    def _cut(self, samples: int) -> Batch:
        pieces: list[tuple[Batch, int, int]] = []
        marks: list[Mark] = []
        self._samples -= samples
        while samples:
            part = self._parts[0]
            stop = part.start + min(samples, len(part))
            pieces.append((part.chunk.batch, part.start, stop))
            marks.append(part.mark(stop))
            samples -= stop - part.start
            part.start = stop
            if not len(part):
                marks.extend(part.empty_units)
                self._parts.popleft()
        if len(pieces) == 1:
            ((batch, start, stop),) = pieces
            return batch.samples(start, stop, _latest(marks))
        return Batch.concat([batch.samples(start, stop) for batch, start, stop in pieces]).with_marks(_latest(marks))


class WholeItems(Cutter):
    """Gives every chunk as one batch, as it came; keeps one back, to know which is the last."""

    def __init__(self) -> None:
        super().__init__(1)

    def add(self, unit: int, chunk: Chunk) -> list[Batch]:
        ready = self.full()
        self._parts.append(_Part(unit, chunk))
        self._samples += len(chunk.batch)
        return ready

    def full(self) -> list[Batch]:
        return [self._cut(self._samples)] if self._samples else []


def _latest(marks: list[Mark]) -> list[Mark]:
    """One mark per unit: the last, which reaches furthest."""
    return list({mark.unit: mark for mark in marks}.values())
