"""Reader: hands batches to training threads, and knows how far they have come.

```
reader.epoch(threads=2) -> [stream 0, stream 1]      each an iterator of Batch for one training thread
reader.consumed(batch)                               the trainer says so after each step
reader.position() -> dict                            consumed so far, as plain JSON data, for a checkpoint
reader.seek(position)                                the next epoch() starts there
```
With one thread the order of samples is fixed. Whatever is read ahead but not consumed is not in the position.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from sparsefleet.core.batch import Batch
from sparsefleet.core.inputs import Inputs
from sparsefleet.core.schema import Schema


class BatchStream(Iterator[Batch], ABC):
    """The batches of one training thread. `close` stops whatever reads ahead; closing twice is fine."""

    @abstractmethod
    def __next__(self) -> Batch: ...

    def coming(self) -> Batch | None:
        """The batch that `next` will most likely give, where it has been read already; it stays where it is.

        Only a hint: another thread may take that batch, and then `next` gives another.
        """
        return None

    def close(self) -> None:
        """Stop reading ahead and let go of files and child processes."""


class Epoch:
    """The streams of one pass over the data; leaving the `with` block closes them all."""

    def __init__(self, streams: Sequence[BatchStream]) -> None:
        self.streams = tuple(streams)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close all streams; twice is fine."""
        for stream in self.streams:
            stream.close()


class Reader(ABC):
    schema: Schema
    batch_size: int
    asked_threads: int | None = None
    """Training threads that somebody asked for at the reader (`set_thread`), as in Fluid."""
    same_inputs: bool = False
    """Somebody vouches that samples read so have the keys and numbers of a training that read them otherwise."""

    @abstractmethod
    def epoch(self, threads: int = 1) -> Epoch:
        """Start a pass over the data, from the last `seek` or the beginning, split over `threads` streams.

        Each sample comes once, in exactly one stream.
        """

    @abstractmethod
    def consumed(self, batch: Batch) -> None:
        """This batch has been trained on. Called from the thread that drew it."""

    @abstractmethod
    def position(self) -> dict[str, Any]:
        """What has been consumed of the epoch under way; empty before its first batch and after its last."""

    def settled(self) -> bool:
        """Whether `position` holds every batch consumed so far.

        A thread whose own input has ended takes batches from another's queue. It may finish a batch while an earlier
        one of that queue is still under way; until the earlier one is consumed, the position holds neither.
        """
        return True

    @abstractmethod
    def seek(self, position: Mapping[str, Any]) -> None:
        """Make the next epoch start from `position`, as `position()` gave it; {} means the beginning."""

    def set_epoch(self, number: int) -> None:  # noqa: B027  (most readers give every epoch alike)
        """Say which epoch comes next (the first is 0), where the order of samples depends on it."""

    def progress(self) -> float | None:
        """Share of the epoch consumed, 0 to 1, or None where it is not known."""
        return None

    def inputs(self) -> Inputs | None:
        """How samples are read: what of them the schema hashes and normalises. None where it is not known."""
        return None

    def skipped(self) -> dict[str, int]:
        """Bad samples passed over so far, per reason (with on_bad_row='skip')."""
        return {}
