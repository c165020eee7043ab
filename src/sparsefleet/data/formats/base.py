"""Format: how one kind of input becomes rows. Readers decide who reads what and when; a format only reads one unit.

A unit is a file, or, where the format can be cut, a byte range of one. A format yields chunks of any size; readers
cut them into batches (`data/batching.py`), so each chunk says for every row where the unit stands once it is consumed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from sparsefleet.core.batch import I64, Batch, Mark
from sparsefleet.core.errors import BadRowError, ConfigError
from sparsefleet.core.schema import Schema

CHUNK_ROWS = 8192
"""About how many rows a chunk holds: large enough to hide Python, small enough to keep memory flat."""


@dataclass(frozen=True, slots=True)
class Unit:
    """One piece of input that one thread reads from its start to its end."""

    file: str
    start: int = 0
    stop: int | None = None
    """Byte range: the rows whose first byte lies in [start, stop); None: to the end of the file."""


@dataclass(frozen=True, slots=True)
class Chunk:
    batch: Batch
    lines: I64
    """[B] rows of the unit consumed once row i is, skipped ones included."""
    ends: I64 | None = None
    """[B] byte offset in the file of the row after row i; None where there is no such thing."""


@dataclass(slots=True)
class BadRows:
    """What to do with a row that does not parse, and what was done. One per reading thread."""

    policy: str = "error"
    """error: raise BadRowError; skip: count it and go on."""
    counts: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.policy not in ("error", "skip"):
            raise ConfigError(f"on_bad_row={self.policy!r} is not a policy; choose error or skip")

    def add(self, reason: str, count: int = 1) -> None:
        self.counts[reason] = self.counts.get(reason, 0) + count

    def refuse(self, error: BadRowError) -> None:
        """Raise, or count the row under its reason, as the policy says."""
        if self.policy == "error":
            raise error
        self.add(error.reason)


class Format(ABC):
    """Stateless and shared by threads: all that changes lives in the iterator that `read` returns."""

    schema: Schema

    @abstractmethod
    def plan(self, files: Sequence[str], pieces: int) -> list[Unit]:
        """Units that cover all rows of all files once, in a stable order; at least `pieces` where files can be cut.

        With pieces=1 the units are the files themselves, in the given order.
        """

    @abstractmethod
    def read(self, unit: Unit, bad_rows: BadRows, resume: Mark | None = None) -> Iterator[Chunk]:
        """The rows of the unit, from its start or from where `resume` stands. Closing the iterator frees everything."""
