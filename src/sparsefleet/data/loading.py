"""Loading: all samples of some units into memory, by several threads, in the order of the units."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence

from sparsefleet.core.errors import DataError
from sparsefleet.data.formats.base import BadSamples, Chunk, Format, Unit
from sparsefleet.data.sample_blocks import Block, BlockBuilder

STOP_SECONDS = 1.0
"""How long `stop` waits for threads that are busy inside a format."""


class Loading:
    """One load under way. The blocks come out in the order of the units, whichever thread read them."""

    def __init__(self, format: Format, units: Sequence[Unit], threads: int, on_bad_row: str) -> None:
        self._format, self._units = format, list(units)
        self._lock = threading.Lock()
        self._next = 0
        self._blocks: dict[int, list[Block]] = {}
        self._stopping = False
        self._error: BaseException | None = None
        self._open: dict[int, Iterator[Chunk]] = {}
        self.bad_samples = [BadSamples(on_bad_row) for _ in range(threads)]
        self._left = threads
        # Not the threads' own `join`: a Ctrl-C that comes in the middle of it makes Python 3.11 take a thread that
        # runs for one that has ended.
        self._ended = threading.Event()
        for i, bad in enumerate(self.bad_samples):
            threading.Thread(target=self._run, args=(bad,), name=f"sparsefleet-load-{i}", daemon=True).start()

    @property
    def running(self) -> bool:
        return not self._ended.is_set()

    def wait(self) -> list[Block]:
        """The blocks, or the error of whichever thread failed first, as it was raised there."""
        try:
            self._ended.wait()
        except BaseException:  # Ctrl-C
            self.stop()
            raise
        if self._error is not None:
            raise self._error
        if self._stopping:
            raise DataError("loading into memory was stopped by release_memory")
        return [block for index in range(len(self._units)) for block in self._blocks.get(index, ())]

    def stop(self) -> None:
        """Give up: interrupt reads that offer `cancel`, and wait a moment for the threads."""
        self._stopping = True
        deadline = time.monotonic() + STOP_SECONDS
        while self.running and time.monotonic() < deadline:
            for chunks in list(self._open.values()):
                cancel = getattr(chunks, "cancel", None)
                if cancel is not None:
                    cancel()
            self._ended.wait(0.1)

    def _run(self, bad_samples: BadSamples) -> None:
        try:
            while not self._stopping and (index := self._claim()) is not None:
                self._blocks[index] = self._read(index, bad_samples)
        except BaseException as error:
            with self._lock:
                self._error = self._error or error
                self._stopping = True
        finally:
            with self._lock:
                self._left -= 1
                if not self._left:
                    self._ended.set()

    def _claim(self) -> int | None:
        with self._lock:
            if self._next == len(self._units):
                return None
            self._next += 1
            return self._next - 1

    def _read(self, index: int, bad_samples: BadSamples) -> list[Block]:
        schema = self._format.schema
        builder = BlockBuilder(schema.slot_names, len(schema.dense))
        chunks = self._format.read(self._units[index], bad_samples)
        self._open[index] = chunks
        try:
            for chunk in chunks:
                builder.add(chunk.batch)
                if self._stopping:
                    break
        finally:
            del self._open[index]
            close = getattr(chunks, "close", None)
            if close is not None:
                close()
        return builder.finish()
