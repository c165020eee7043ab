"""A pass over a Python iterable: whichever stream is free draws the next item, under a lock.

Nothing in an iterable has an address, so samples are counted. The position says how many samples from the start are
consumed, and which ones beyond (several threads do not finish in order); going on runs the iterable again and
leaves them out. It also has a checksum of the first sample's keys, to know the iterable again.
"""

from __future__ import annotations

import threading
import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from sparsefleet.core.batch import Batch, Mark
from sparsefleet.core.errors import ConfigError, DataError
from sparsefleet.data.formats.base import BadSamples, Chunk
from sparsefleet.data.passes import Claim, Pass, Position, new_position

KIND = "iterable"


class Spans:
    """A set of sample numbers as sorted, disjoint spans [first, stop)."""

    def __init__(self) -> None:
        self._spans: list[tuple[int, int]] = []

    def add(self, first: int, stop: int) -> None:
        if first >= stop:
            return
        spans = self._spans
        at = bisect_left(spans, (first, first))
        if at and spans[at - 1][1] >= first:
            at -= 1
        end = at
        while end < len(spans) and spans[end][0] <= stop:
            first, stop = min(first, spans[end][0]), max(stop, spans[end][1])
            end += 1
        spans[at:end] = [(first, stop)]

    def without(self, first: int, stop: int) -> list[int]:
        """The numbers in [first, stop) that are not in the set."""
        inside = [(max(a, first), min(b, stop)) for a, b in self._spans if a < stop and b > first]
        if not inside:
            return list(range(first, stop))
        return [n for n in range(first, stop) if not any(a <= n < b for a, b in inside)]

    @property
    def prefix(self) -> int:
        return self._spans[0][1] if self._spans and self._spans[0][0] == 0 else 0

    @property
    def end(self) -> int:
        return self._spans[-1][1] if self._spans else 0

    @property
    def beyond(self) -> list[list[int]]:
        return [[a, b] for a, b in self._spans if a != 0]


class IterablePass(Pass):
    def __init__(
        self,
        items: Iterator[Batch],
        sought: Mapping[str, Any],
        close: Callable[[], None],
        cancel: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(sought)
        self._items, self._close, self._cancel = items, close, cancel
        self._drawing = threading.Lock()  # held while the user's code runs; `_lock` never is
        self._consumed = spans_of(sought)
        self._skip = spans_of(sought)
        self._drawn_samples = 0
        self._next_unit = 0
        self._first_sample: dict[int, int] = {}
        self._exhausted = False
        given = sought.get("first")
        self._first_keys: int | None = given if isinstance(given, int) else None
        """Checksum of the first sample's keys."""

    def claim(self, stopped: Callable[[], bool]) -> Claim | None:
        while not self._drawing.acquire(timeout=0.1):
            if stopped():
                return None
        try:
            while not self._exhausted and not stopped():
                try:
                    item = next(self._items)
                except StopIteration:
                    self._end()
                    break
                first, stop = self._drawn_samples, self._drawn_samples + len(item)
                if first < stop:
                    self.saw_samples()
                    if first == 0:
                        self._check_first(item)
                self._drawn_samples = stop
                left = self._skip.without(first, stop) if first < self._skip.end else range(first, stop)
                if len(left):
                    return self._claim_samples(item, first, left)
            return None
        finally:
            self._drawing.release()

    def _check_first(self, item: Batch) -> None:
        """A source that makes other keys in every process is found out where it goes on in another one."""
        found = zlib.crc32(item.keys[: item.offsets[len(item.slots)]].tobytes())
        before = self._first_keys
        if before is not None and found != before:
            raise DataError(
                "the first sample has other keys than when the position was taken: the iterable gives other samples, "
                "or makes other keys in every process (of Python's own hash, of random numbers); make them of the "
                "values alone (stable_hash), or begin the epoch anew (seek({}), or without --resume)"
            )
        self._first_keys = found

    def _claim_samples(self, item: Batch, first: int, left: list[int] | range) -> Claim:
        numbers = np.arange(left.start, left.stop) if isinstance(left, range) else np.asarray(left)
        samples = item if len(numbers) == len(item) else item.take(numbers - first)
        chunk = Chunk(samples, numbers - first + 1)
        with self._lock:
            unit = self._next_unit
            self._next_unit += 1
            self._first_sample[unit] = first

        def read(bad_samples: BadSamples) -> Iterator[Chunk]:
            yield chunk

        return Claim(unit, read)

    def _end(self) -> None:
        if self._drawn_samples < self._skip.end:
            raise DataError(
                f"the iterable ended after {self._drawn_samples} samples, but the position says "
                f"that {self._skip.end} samples had been drawn; it must give the same samples again to go on"
            )
        with self._lock:
            self._exhausted = True

    def _note(self, marks: Sequence[Mark]) -> None:
        for mark in marks:
            first = self._first_sample.get(mark.unit)
            if first is None:
                continue
            self._consumed.add(first, first + mark.samples)
            if mark.done:
                del self._first_sample[mark.unit]

    def no_samples_in(self, mark: Mark) -> None:
        with self._lock:
            first = self._first_sample.pop(mark.unit, None)
            if first is not None:
                self._consumed.add(first, first + mark.samples)

    def _position(self) -> Position:
        if self._exhausted and self._consumed.prefix == self._drawn_samples:
            return {}
        first = {} if self._first_keys is None else {"first": self._first_keys}
        return new_position(KIND, rows=self._consumed.prefix, beyond=self._consumed.beyond, **first)

    def share(self) -> float | None:
        with self._lock:
            if self._exhausted and self._consumed.prefix == self._drawn_samples:
                return 1.0
            return None if self._touched or self._sought else 0.0

    def nothing(self) -> str:
        return "there are no samples in the iterable: it ended before it gave one"

    def close(self) -> None:
        self._close()

    def cancel(self) -> None:
        self._cancel()


def spans_of(position: Mapping[str, Any]) -> Spans:
    """The consumed samples of a position, checked."""
    spans = Spans()
    if not position:
        return spans
    samples, beyond = position.get("rows"), position.get("beyond")
    if isinstance(samples, bool) or not isinstance(samples, int) or samples < 0 or not isinstance(beyond, list | tuple):
        raise ConfigError(f"reader position: rows={samples!r}, beyond={beyond!r:.80} make no sense")
    spans.add(0, samples)
    for span in beyond:
        match span:
            case [int(first), int(stop)] if samples < first < stop:
                spans.add(first, stop)
            case _:
                raise ConfigError(f"reader position: {span!r} is not [first sample, sample after the last]")
    return spans
