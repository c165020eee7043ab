"""Pass: one run over the data, shared by the streams of an epoch. Who reads what, and what has been consumed
of it.

Input comes in units (files, byte ranges, sample ranges, items of an iterable). Streams claim them one after the
other, so a fast thread takes more of them. Progress is noted per unit and only for consumed batches: that is
the position.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparsefleet.core.batch import Batch, Mark
from sparsefleet.core.errors import ConfigError, DataError
from sparsefleet.data.batching import Cutter
from sparsefleet.data.formats.base import BadSamples, Chunk

POSITION_FORMAT = "sparsefleet-position"
POSITION_VERSION = 1

MOST_HANDED_OUT = 1024
"""Batches of a stream that are followed from hand to hand; more only where nobody says `consumed`."""

Position = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Claim:
    """A unit that the claiming stream reads from its start, or from `resume`, to its end."""

    unit: int
    open: Callable[[BadSamples], Iterator[Chunk]]
    resume: Mark | None = None


class Pass(ABC):
    """Shared by the threads of one epoch; every method may be called from any of them."""

    def __init__(self, sought: Mapping[str, Any]) -> None:
        self._lock = threading.Lock()
        self._sought = dict(sought)
        self._touched = False
        self._streams = 0
        self._going_on: set[object] = set()
        self._samples_seen = False
        self._handed_out: dict[int, deque[tuple[Mark, ...]]] = {}
        self._ahead: set[tuple[Mark, ...]] = set()
        """Consumed, but an earlier batch of the same stream is not."""

    @abstractmethod
    def claim(self, stopped: Callable[[], bool]) -> Claim | None:
        """The next unit for the calling stream, or None when all are taken."""

    @abstractmethod
    def _note(self, marks: Sequence[Mark]) -> None:
        """Add a consumed batch's marks; called under the lock, in the order in which a stream read them."""

    @abstractmethod
    def no_samples_in(self, mark: Mark) -> None:
        """This unit is finished without a batch that could say so."""

    @abstractmethod
    def _position(self) -> Position:
        """What is consumed, empty when everything is; called under the lock."""

    def share(self) -> float | None:
        """Share of the input consumed, 0 to 1, or None where it is not known."""
        return None

    def consumed(self, batch: Batch) -> None:
        if not batch.marks:
            raise ConfigError("this batch carries no marks: hand `consumed` the very batch that the stream gave")
        with self._lock:
            self._touched = True
            lines = self._handed_out.values()
            for first in lines:
                if first and first[0] is batch.marks and not self._ahead:  # in its turn, as nearly all are
                    self._note(first.popleft())
                    return
            line = next((line for line in lines if batch.marks in line), None)
            if line is None:
                self._note(batch.marks)
                return
            self._ahead.add(batch.marks)
            while line and line[0] in self._ahead:
                marks = line.popleft()
                self._ahead.discard(marks)
                self._note(marks)

    def hand_out(self, stream: int, batch: Batch) -> None:
        """Note that this batch leaves the stream's queue.

        Several threads may draw from one queue, so a later batch may be consumed before an earlier one. The position
        holds the later one only once the earlier one is consumed too.
        """
        with self._lock:
            line = self._handed_out.get(stream)
            if line is None:
                line = self._handed_out[stream] = deque(maxlen=MOST_HANDED_OUT)
            line.append(batch.marks)

    def position(self) -> Position:
        with self._lock:
            return self._position() if self._touched else dict(self._sought)

    def settled(self) -> bool:
        """Whether the position holds all that is consumed."""
        with self._lock:
            return not self._ahead

    def enter(self, stream: object) -> None:
        """One more stream takes part."""
        with self._lock:
            self._streams += 1
            self._going_on.add(stream)

    def interrupt(self, stream: object) -> None:
        """This stream wants no more. With the last one, a read under way for any of them may give up."""
        with self._lock:
            self._going_on.discard(stream)
            if self._going_on:
                return
        self.cancel()

    def cancel(self) -> None:  # noqa: B027  (nothing to do is a fine default)
        """Give up a read that is under way in `claim`; may be called again and again."""

    def saw_samples(self) -> None:
        self._samples_seen = True

    def leave(self, stream: object, *, reached_end: bool) -> None:
        """A stream takes no more units. The last one to reach the end complains if there was no sample."""
        with self._lock:
            self._streams -= 1
            self._going_on.discard(stream)
            last = self._streams == 0
        if last:
            self.close()
            if reached_end and not self._samples_seen and not self._sought:
                raise DataError(self.nothing())

    def nothing(self) -> str:
        """What to say when the input turns out to have no samples."""
        return "the input has no samples"

    def close(self) -> None:  # noqa: B027  (nothing to do is a fine default)
        """No stream reads any more."""


class Groups:
    """The batches of one stream, in groups as they come out of the chunks of the units it claims."""

    def __init__(self, shared: Pass, cutter: Cutter, bad_samples: BadSamples) -> None:
        self._pass, self._cutter, self._bad_samples = shared, cutter, bad_samples
        self._chunks: Iterator[Chunk] | None = None
        self._stopped = False
        shared.enter(self)

    def interrupt(self) -> None:
        """Ask a read that is under way in another thread to give up, where the format's iterator offers
        `cancel`.
        """
        self._stopped = True
        self._pass.interrupt(self)
        cancel = getattr(self._chunks, "cancel", None)
        if cancel is not None:
            cancel()

    def __call__(self) -> Iterator[Sequence[Batch]]:
        reached_end = False
        try:
            while (claim := self._pass.claim(lambda: self._stopped)) is not None:
                yield from self._read(claim)
                mark = self._cutter.end_unit(claim.unit, claim.resume)
                if mark is not None:
                    self._pass.no_samples_in(mark)
            batches, dropped = self._cutter.finish()
            for mark in dropped:
                self._pass.no_samples_in(mark)
            yield batches
            reached_end = not self._stopped
        except Exception:
            # What is complete is good; the error comes after it.
            yield self._cutter.full()
            raise
        finally:
            self._pass.leave(self, reached_end=reached_end)

    def _read(self, claim: Claim) -> Iterator[Sequence[Batch]]:
        self._chunks = chunks = claim.open(self._bad_samples)
        try:
            for chunk in chunks:
                if len(chunk.batch):
                    self._pass.saw_samples()
                    yield self._cutter.add(claim.unit, chunk)
        finally:
            self._chunks = None
            close = getattr(chunks, "close", None)
            if close is not None:
                close()


def check_position(position: Mapping[str, Any], kind: str) -> None:
    """Refuse what `position()` of this kind of reader cannot have given."""
    if not isinstance(position, Mapping) or position.get("format") != POSITION_FORMAT:
        raise ConfigError(f"not a reader's position (no format={POSITION_FORMAT!r} in it): {position!r:.200}")
    if position.get("version") != POSITION_VERSION:
        raise ConfigError(
            f"reader position of version {position.get('version')!r}; this release reads version {POSITION_VERSION}"
        )
    if position.get("kind") != kind:
        raise ConfigError(
            f"this position is of a reader of kind {position.get('kind')!r}, this one is of kind {kind!r}: "
            f"resume with the same reader, or begin the epoch anew (seek({{}}), or without --resume)"
        )


def new_position(kind: str, **fields: Any) -> Position:
    return {"format": POSITION_FORMAT, "version": POSITION_VERSION, "kind": kind, **fields}
