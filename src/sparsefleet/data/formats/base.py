"""Format: how one kind of input becomes samples. Readers decide who reads what and when; a format only reads one unit.

A unit is a file, or, where the format can be cut, a byte range of one. A format yields chunks of any size; readers
cut them into batches (`data/batching.py`), so each chunk says for every sample where the unit stands once the sample
is consumed.
"""

from __future__ import annotations

import gzip
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt

from sparsefleet.core.batch import I64, Batch, Mark
from sparsefleet.core.errors import BadRowError, ConfigError, DataError
from sparsefleet.core.inputs import EITHER, Inputs
from sparsefleet.core.schema import Schema
from sparsefleet.data.files import check_file, is_gzip, is_zstd, open_file

F64 = npt.NDArray[np.float64]

HEAD_BYTES = 1 << 16
"""How much of a file a format may look at to recognise it: the longest line, by default."""
_CONTROLS = bytes(set(range(32)) - set(b"\t\n\r\x1f"))
CHUNK_SAMPLES = 8192
"""About how many samples a chunk holds: large enough to hide Python, small enough to keep memory flat."""


@dataclass(frozen=True, slots=True)
class Unit:
    """One piece of input that one thread reads from its start to its end."""

    file: str
    start: int = 0
    stop: int | None = None
    """Byte range: the samples whose first byte lies in [start, stop); None: to the end of the file."""


@dataclass(frozen=True, slots=True)
class Chunk:
    batch: Batch
    lines: I64
    """[B] samples of the unit consumed once sample i is, skipped ones included."""
    ends: I64 | None = None
    """[B] byte offset in the file of the sample after sample i; None where there is no such thing."""
    text: list[bytes] | None = None
    """[B] the lines themselves, without their ends; only where raw samples were asked for."""
    numbers: F64 | None = None
    """[B, n] the numbers before they are scaled, NaN where missing; only where raw samples were asked for."""


@dataclass(slots=True)
class BadSamples:
    """What to do with a sample that does not parse, and what was done. One per reading thread."""

    policy: str = "error"
    """error: raise BadRowError; skip: count it and go on."""
    counts: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.policy not in ("error", "skip"):
            raise ConfigError(f"on_bad_row={self.policy!r} is not a policy; choose error or skip")

    def add(self, reason: str, count: int = 1) -> None:
        self.counts[reason] = self.counts.get(reason, 0) + count

    def refuse(self, error: BadRowError) -> None:
        """Raise, or count the sample under its reason, as the policy says."""
        if self.policy == "error":
            raise error
        self.add(error.reason)


@dataclass(frozen=True, slots=True)
class FormatOptions:
    """What a user can say about the format of files. A format takes what concerns it."""

    labelled: bool = True
    """False: the samples have no label."""
    pipe_command: str | None = None
    layout: Sequence[tuple[str, str]] | None = None
    """(name, kind) of every slot of a line, in order."""
    timeout: float | None = None
    """Seconds that a command may be without output; None: the format's default."""
    max_line: int | None = None
    """Bytes of the longest line; None: the format's default."""


@dataclass(frozen=True, slots=True)
class Head:
    """The beginning of a file, unpacked where it is packed: what a format recognises it by."""

    file: str
    data: bytes

    @staticmethod
    def of(file: str) -> Head:
        check_file(file)
        try:
            if is_zstd(file):
                return Head(file, beginning(file, HEAD_BYTES))
            packed = is_gzip(file)
            with open_file(file) as raw, gzip.GzipFile(fileobj=raw) if packed else raw as stream:
                return Head(file, stream.read(HEAD_BYTES))
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{file}: cannot be read: {error}") from error

    @property
    def line(self) -> bytes:
        """The first line, or as much of it as there is."""
        return self.data.split(b"\n", 1)[0]

    @property
    def is_text(self) -> bool:
        """A tenth and more of binary data are control characters; text has none, but for a damaged byte or two."""
        data = self.data[:4096]
        return 20 * (len(data) - len(data.translate(None, _CONTROLS))) <= len(data)


def beginning(file: str, size: int) -> bytes:
    """The first bytes of a file, unpacked where it is packed."""
    from sparsefleet.data.formats.source import open_source

    source, data = open_source(file), bytearray(size)
    try:
        filled = 0
        while filled < size and (count := source.readinto(memoryview(data)[filled:])):
            filled += count
    finally:
        source.close()
    return bytes(data[:filled])


class Format(ABC):
    """Stateless and shared by threads: all that changes lives in the iterator that `read` returns."""

    schema: Schema
    cuttable: ClassVar[bool] = False
    """Whether several workers may read byte ranges of one file, cut anywhere: each reads the samples whose first byte
    lies in its range, and a sample begins behind a line feed.
    """
    looks: ClassVar[str] = ""
    """How `guess` recognises a file, in a few words; "": it never does."""

    @classmethod
    @abstractmethod
    def create(cls, schema: Schema, options: FormatOptions) -> Self:
        """The format with the options that concern it."""

    @classmethod
    def guess(cls, head: Head, schema: Schema) -> bool:
        """Whether this looks like a file of this format, with samples of this schema."""
        return False

    def inputs(self, files: Sequence[str]) -> Inputs:
        """What of these files' samples the schema hashes and normalises, and what comes ready."""
        return Inputs.of_schema(type(self).__name__, self.schema, EITHER)

    @abstractmethod
    def plan(self, files: Sequence[str], pieces: int) -> list[Unit]:
        """Units that cover all samples of all files once, in a stable order; at least `pieces` where files can be cut.

        With pieces=1 the units are the files themselves, in the given order.
        """

    @abstractmethod
    def read(self, unit: Unit, bad_samples: BadSamples, resume: Mark | None = None) -> Iterator[Chunk]:
        """The samples of the unit, from its start or from where `resume` stands.

        Closing the iterator closes whatever it has open.
        """
