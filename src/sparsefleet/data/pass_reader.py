"""PassReader: what all our readers share. A reader says how a pass starts; the rest is here.

Only one epoch can be open at a time, because the marks of two could not be told apart.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from sparsefleet.core.batch import Batch
from sparsefleet.core.errors import ConfigError
from sparsefleet.data.base import Epoch, Reader
from sparsefleet.data.batching import Cutter
from sparsefleet.data.formats.base import BadSamples
from sparsefleet.data.passes import Groups, Pass, Position
from sparsefleet.data.readahead import ReadAhead, Stream, Together
from sparsefleet.data.units import named_as_here


def check_threads(threads: int) -> int:
    if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
        raise ConfigError(f"threads={threads!r} must be a whole number, 1 or above")
    return threads


class DirectStream(Stream):
    """A stream that reads when it is asked, in the thread that asks."""

    def __init__(self, groups: Groups) -> None:
        self._interrupt = groups.interrupt
        self._groups: Iterator[Sequence[Batch]] = groups()
        self._ready: Iterator[Batch] = iter(())
        self._finished = False
        self._reading = threading.Lock()

    @property
    def finished(self) -> bool:
        return self._finished

    def __next__(self) -> Batch:
        while not self._finished:
            for batch in self._ready:
                return batch
            try:
                with self._reading:
                    group = next(self._groups)
            except BaseException:
                stopped, self._finished = self._finished, True
                if stopped:  # another thread has closed the stream, so an error of this read does not matter
                    break
                raise
            finally:
                if self._finished:
                    self.close()
            self._ready = iter(group)
        raise StopIteration

    def ask_to_stop(self) -> None:
        self._finished = True
        self._interrupt()

    def close(self) -> None:
        self.ask_to_stop()
        # If another thread is in the middle of a read, that thread closes the stream when the read ends.
        if self._reading.acquire(blocking=False):
            try:
                self._ready = iter(())
                self._groups.close()  # type: ignore[attr-defined]
            finally:
                self._reading.release()


class StreamEpoch(Epoch):
    """Asks all streams to stop before it waits for the first: closing many takes no longer than one."""

    def __init__(self, streams: Sequence[Stream]) -> None:
        super().__init__(streams)
        self._own = tuple(streams)

    def close(self) -> None:
        for stream in self._own:
            stream.ask_to_stop()
        super().close()


class PassReader(Reader):
    threads: int = 1
    """Streams that `epoch()` gives when it is not told how many."""
    on_bad_row: str = "error"
    read_ahead: int | None = 16
    """Batches that each stream's own thread reads ahead; None: no thread, batches are read when they are
    asked for.
    """

    def __init__(self) -> None:
        self._sought: Position = {}
        self._pass: Pass | None = None
        self._streams: tuple[Stream, ...] = ()
        self._bad_samples: list[BadSamples] = []
        self._guard = threading.RLock()

    @abstractmethod
    def _start(self, threads: int, sought: Mapping[str, Any]) -> Pass:
        """A pass from the sought position ({}: the beginning), for this many streams."""

    @abstractmethod
    def _check(self, position: Mapping[str, Any]) -> None:
        """Refuse a position that is not of this reader's input."""

    def _file_names(self) -> Sequence[str]:
        """The files that positions speak of, as this reader calls them; none where it reads no files."""
        return ()

    def _cutter(self) -> Cutter:
        return Cutter(self.batch_size)

    @property
    def _under_way(self) -> bool:
        return any(not stream.finished for stream in self._streams)

    def epoch(self, threads: int | None = None) -> Epoch:
        count = self.threads if threads is None else check_threads(threads)
        with self._guard:
            if self._under_way:
                raise ConfigError(
                    "the previous epoch is still open: leave its `with` block, or close its streams, first"
                )
            started = self._start(count, self._sought)
            self._bad_samples = [BadSamples(self.on_bad_row) for _ in range(count)]
            # All streams enter the pass before the first begins to read, for the last one to leave closes the pass.
            groups = [Groups(started, self._cutter(), bad_samples) for bad_samples in self._bad_samples]
            together = Together()
            self._streams = tuple(self._stream(each, index, started, together) for index, each in enumerate(groups))
            self._pass, self._sought = started, {}
            return StreamEpoch(self._streams)

    def _stream(self, groups: Groups, index: int, started: Pass, together: Together) -> Stream:
        if self.read_ahead is None:
            return DirectStream(groups)
        return ReadAhead(
            groups,
            capacity=self.read_ahead,
            name=f"sparsefleet-{type(self).__name__}-{index}",
            interrupt=groups.interrupt,
            hand_out=partial(started.hand_out, index),
            together=together,
        )

    def consumed(self, batch: Batch) -> None:
        if self._pass is None:
            raise ConfigError("no epoch has been started: a batch can be consumed only after epoch() gave it")
        self._pass.consumed(batch)

    def position(self) -> Position:
        with self._guard:
            if self._sought or self._pass is None:
                return dict(self._sought)
            return self._pass.position()

    def settled(self) -> bool:
        return self._pass is None or self._pass.settled()

    def seek(self, position: Mapping[str, Any]) -> None:
        with self._guard:
            if self._under_way:
                raise ConfigError("seek while an epoch is open: leave its `with` block, or close its streams, first")
            if position:
                position = named_as_here(position, self._file_names())
                self._check(position)
            self._sought, self._pass, self._streams = dict(position), None, ()

    def progress(self) -> float | None:
        with self._guard:
            return 0.0 if self._pass is None else self._pass.share()

    def skipped(self) -> dict[str, int]:
        """Bad samples passed over in the epoch under way, or in the last one, per reason."""
        return sum_counts(self._bad_samples)


def sum_counts(all_bad_samples: Iterable[BadSamples]) -> dict[str, int]:
    total: dict[str, int] = {}
    for bad_samples in all_bad_samples:
        for reason, count in dict(bad_samples.counts).items():
            total[reason] = total.get(reason, 0) + count
    return total
